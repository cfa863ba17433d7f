"""The real verl: it finds our plugin, and what docs/verl.md says is what its vLLM gets."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from foresay.errors import InputError
from foresay.integrations.vllm.settings import VllmSettings, read_settings

pytestmark = pytest.mark.filterwarnings("ignore")  # verl's, vLLM's and Ray's own

HERE = Path(__file__).parent
DOCUMENT = (HERE.parent.parent / "docs" / "verl.md").read_text(encoding="utf-8")
MODEL = os.environ.get("FORESAY_TEST_MODEL", "")
ROLLOUT = "verl.workers.rollout.vllm_rollout"
PROPOSER = {
    "method": "custom_class",
    "model": "foresay.integrations.vllm.SuffixProposer",
    "num_speculative_tokens": 8,
}


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(found)


def lines(*names: str) -> list[str]:
    """The overrides of the document, as a shell would give them to verl."""
    return [word for name in names for word in shlex.split(block(f"hydra {name}"))]


@pytest.fixture(scope="module")
def verl() -> Any:
    return import_module("verl")


def composed(verl: Any, *overrides: str) -> Any:
    """verl's own configuration, with these overrides and the one that every run has."""
    hydra = import_module("hydra")
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with hydra.initialize_config_dir(str(folder), version_base=None):
        return hydra.compose("ppo_trainer", ["actor_rollout_ref.rollout.name=vllm", *overrides])


def rollout_of(config: Any) -> Any:
    """The rollout's part, made as the server makes it."""
    made = import_module("verl.utils.config").omega_conf_to_dataclass
    return made(config.actor_rollout_ref.rollout)


def command_of(rollout: Any) -> list[str]:
    """What vLLMHttpServer.launch_server makes of engine_kwargs."""
    given = rollout.get("engine_kwargs", {}).get("vllm", {}) or {}
    given = {key: value for key, value in given.items() if value is not None}
    return list(import_module(f"{ROLLOUT}.utils").build_cli_args_from_config(given))


def parsed(command: list[str]) -> Any:
    """By the parser of `vllm serve`."""
    vllm = import_module("vllm.engine.arg_utils")
    tools = import_module("vllm.utils.argparse_utils")
    parser = vllm.AsyncEngineArgs.add_cli_args(tools.FlexibleArgumentParser())
    return vllm.AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", "some", *command]))


# ---- the plugin ------------------------------------------------------------------------------


def test_verl_finds_and_loads_the_plugin(verl: Any) -> None:
    assert verl.__version__ == "0.9.1"
    assert "foresay.integrations.verl.plugin" in sys.modules
    hooks = import_module("foresay.integrations.vllm.versions")._hooks
    assert [hook.__name__ for hook in hooks] == ["hook_weights", "hook_metrics"]


def test_vllm_sets_the_hooks_in_the_server(verl: Any) -> None:
    server, worker = (
        import_module(f"{ROLLOUT}.vllm_async_server"),
        import_module(f"{ROLLOUT}.utils"),
    )
    import_module("vllm.plugins").load_general_plugins()
    import_module("foresay.integrations.vllm").register()  # if its plugins were loaded before
    extension = worker.vLLMColocateWorkerExtension
    assert hasattr(server.extract_prompt_logprobs, "_foresay")
    assert hasattr(extension.update_weights_from_ipc, "_foresay")


FAILS = """
import sys
sys.modules["foresay.integrations.vllm.versions"] = None
import verl
print("verl", verl.__version__)
"""
SILENT = """
import sys, verl
print([name for name in sys.modules if name.startswith("foresay")])
"""


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environ,
    )


def test_a_plugin_that_fails_is_loud_and_verl_goes_on() -> None:
    done = python(FAILS)
    assert "foresay: the plugin for verl is not in use (ModuleNotFoundError" in done.stderr
    assert done.stdout.strip() == "verl 0.9.1"


def test_the_plugin_can_be_left_out() -> None:
    assert python(SILENT, VERL_USE_EXTERNAL_PLUGINS="none").stdout.strip() == "[]"


# ---- the lines of the document ---------------------------------------------------------------


def test_the_documented_lines_reach_vllm(verl: Any) -> None:
    rollout = rollout_of(composed(verl, *lines("proposer", "metrics", "prometheus")))
    command = command_of(rollout)
    assert command[0] == "--speculative_config" and json.loads(command[1]) == PROPOSER
    found = parsed(command)
    assert found.speculative_config == PROPOSER
    assert found.per_request_spec_decode_metrics == "summary"
    assert rollout.disable_log_stats is False and rollout.prometheus.enable is True
    assert rollout.calculate_log_probs and rollout.logprobs_mode == "processed_logprobs"


def test_without_them_there_is_no_speculation(verl: Any) -> None:
    assert command_of(rollout_of(composed(verl))) == []


def test_a_misspelt_line_is_refused_by_vllm(verl: Any) -> None:
    wrong = [line.replace("speculative_config", "speculation_config") for line in lines("proposer")]
    with pytest.raises(SystemExit):
        parsed(command_of(rollout_of(composed(verl, *wrong))))
    with pytest.raises(Exception, match="Could not override"):
        composed(verl, *[line.removeprefix("+") for line in lines("proposer")])


def test_the_documented_settings_are_valid(verl: Any) -> None:
    """As Ray would set them: all of them strings."""
    config = composed(verl, *lines("settings"))
    to_container = import_module("omegaconf").OmegaConf.to_container
    environ = to_container(config.ray_kwargs.ray_init.runtime_env.env_vars)
    assert all(type(value) is str for value in environ.values())
    assert read_settings(environ) == VllmSettings(
        max_requests=64, versions=2, versions_file="versions.jsonl"
    )
    with pytest.raises(InputError, match="FORESAY_VLLM_MAX_REQUEST is set; expected one of"):
        read_settings({name.removesuffix("S"): value for name, value in environ.items()})


def test_the_lines_of_other_trainers() -> None:
    yaml = import_module("yaml")
    nemo = yaml.safe_load(block("yaml nemo-rl"))
    assert nemo["policy"]["generation"]["vllm_kwargs"]["speculative_config"] == PROPOSER
    words = shlex.split(block("sh trl"))
    assert json.loads(words[words.index("--speculative_config") + 1]) == PROPOSER


# ---- metrics ---------------------------------------------------------------------------------


def averaged(verl: Any) -> Any:
    """The trainer's own function, without its module, which imports half of the world."""
    path = Path(verl.__file__).parent / "trainer" / "ppo" / "ray_trainer.py"
    name = "compute_spec_decode_metrics"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", "") == name]
    found: dict[str, Any] = {}
    exec(compile(tree, str(path), "exec"), found)
    return found[name]


def test_counts_of_vllm_become_metrics_of_verl(verl: Any) -> None:
    server = import_module(f"{ROLLOUT}.vllm_async_server")
    import_module("foresay.integrations.vllm").register()
    outputs, stats = import_module("vllm.outputs"), import_module("vllm.v1.metrics.stats")
    fields: list[dict[str, Any]] = []
    for steps in ([(4, 4), (4, 0)], [(2, 1)]):
        counted = stats.RequestSpecDecodeMetrics.new(8)
        for step in steps:
            counted.observe(*step)
        answer = outputs.CompletionOutput(0, "", [1], None, None, spec_decode_metrics=counted)
        request = outputs.RequestOutput("a", None, [1], None, [answer], True)
        fields.append({"global_steps": 3})
        server.extract_prompt_logprobs(
            output=request, num_prompt_logprobs=None, result_dict=fields[-1]
        )
    drafted, accepted, verified = (
        [field[f"spec_num_{name}"] for field in fields]
        for name in ("draft_tokens", "accepted_tokens", "verify_steps")
    )
    assert averaged(verl)(drafted, accepted, verified) == {
        "rollout/spec_accept_rate": (4 / 8 + 1 / 2) / 2,
        "rollout/spec_accept_length": ((1 + 4 / 2) + (1 + 1 / 1)) / 2,
    }


# ---- weights ---------------------------------------------------------------------------------


def test_new_weights_begin_new_versions_in_a_real_vllm(tmp_path: Path) -> None:
    """By verl's own sender, receiver and worker extension. The same weights give the same texts."""
    assert MODEL, "set FORESAY_TEST_MODEL to the folder of the default model"
    speculation, out = tmp_path / "speculation.json", tmp_path / "out.json"
    speculation.write_text(json.dumps(PROPOSER))
    versions = tmp_path / "versions.jsonl"
    environ = {"FORESAY_VLLM_MEASURE": "0", "FORESAY_VLLM_VERSIONS_FILE": str(versions)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "drive.py"), MODEL, str(speculation), str(out)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environ,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, again, other = json.loads(out.read_text())
    assert [found["stats"]["versions"] for found in (first, again, other)] == [0, 1, 2]
    assert all(found["hooked"] and not found["stats"]["errors"] for found in (first, again, other))
    assert first["texts"] == again["texts"] != other["texts"]
    assert again["stats"]["accepted"] > first["stats"]["accepted"] > 0
    read = import_module("foresay.integrations.verl.report").read_versions
    assert [line.version for line in read(versions)] == [0, 1]
