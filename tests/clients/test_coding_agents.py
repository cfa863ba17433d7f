"""Codex and Claude Code as they are: every request that they send is answered, a tool that the
model calls is run, its result comes back, and the turn comes to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.running import NAME, OFFLINE, QUIET, Served, given, running

PROGRAMS = Path(sys.prefix) / "npm" / "node_modules" / ".bin"
pytestmark = pytest.mark.skipif(
    not (PROGRAMS / "codex").exists() or not (PROGRAMS / "claude").exists(),
    reason="Codex and Claude Code are not installed in this environment: `make test-clients` "
    "installs them where there is npm when it builds the environment",
)
SAID = "There is one file."
CODEX, CLAUDE = "Run exec_command, please.", "Run Bash, please."
ANSWERS = {
    "The result of": [SAID],
    CODEX: [
        *("<think>", "I have to look.", "</think>"),
        '{"name": "exec_command", "arguments": {"cmd": "ls"}}',
    ],
    CLAUDE: ['{"name": "Bash", "arguments": {"command": "ls", "description": "List files"}}'],
}
# Nothing but this machine is reached.
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
CONFIG = """
model = "the-model"
model_provider = "foresay"
model_context_window = 32768
web_search = "disabled"
check_for_update_on_startup = false
analytics.enabled = false
agents.enabled = false
features = { view_image = false, goals = false }

[model_providers.foresay]
name = "foresay"
base_url = "%s/v1"
wire_api = "responses"
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a model that calls a tool and then answers."""
    folder = tmp_path_factory.mktemp("agent")
    model, answers = folder / "model", folder / "answers.json"
    answers.write_text(json.dumps(ANSWERS))
    script, tests = Path(__file__).parent / "scripted.py", Path(__file__).parents[1]
    subprocess.run(
        [given("FORESAY_TEST_PYTHON"), script, model, given("FORESAY_TEST_MODEL"), answers],
        env={**os.environ, **QUIET, **OFFLINE, "PYTHONPATH": str(tests)},
        timeout=120,
        check=True,
    )
    (folder / "work").mkdir()
    (folder / "work" / "one.txt").touch()
    with running(folder, str(model)) as found:
        yield found


def lines_of(agent: Served, *command: object, **variables: str) -> list[Any]:
    """What a program says, which ends well: a line of JSON each time."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=agent.folder / "work",
        env={**os.environ, **NOWHERE, "HOME": str(agent.folder), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_codex(agent: Served) -> None:
    """A turn with a call of its shell, and another turn of the same conversation."""
    home = agent.folder / "codex"
    home.mkdir()
    (home / "config.toml").write_text(CONFIG % agent.url)
    options = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    for turn in (("exec",), ("exec", "resume", "--last")):
        events = lines_of(agent, PROGRAMS / "codex", *turn, *options, CODEX, CODEX_HOME=str(home))
        items = [event["item"] for event in events if event["type"] == "item.completed"]
        (ran,) = (item for item in items if item["type"] == "command_execution")
        assert (ran["aggregated_output"], ran["exit_code"]) == ("one.txt\n", 0)
        assert items[-1]["type"] == "agent_message" and items[-1]["text"] == SAID
        assert events[-1]["type"] == "turn.completed"
        assert events[-1]["usage"]["reasoning_output_tokens"] > 0


def test_claude_code(agent: Served) -> None:
    """A turn with a call of its shell."""
    variables = {
        "ANTHROPIC_BASE_URL": agent.url,
        "ANTHROPIC_API_KEY": "unused",
        "ANTHROPIC_MODEL": NAME,
        "CLAUDE_CONFIG_DIR": str(agent.folder / "claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    options = ("--output-format", "stream-json", "--verbose", "--allowedTools", "Bash(ls)")
    told = lines_of(agent, PROGRAMS / "claude", "-p", CLAUDE, *options, **variables)
    blocks = [
        block
        for one in told
        if one["type"] in ("assistant", "user")
        for block in one["message"]["content"]
    ]
    assert [block["type"] for block in blocks] == ["tool_use", "tool_result", "text"]
    assert blocks[1]["content"] == "one.txt" and not blocks[1]["is_error"]
    assert told[-1]["subtype"] == "success" and told[-1]["result"] == SAID
