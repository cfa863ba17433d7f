"""The plugin for verl where verl is not installed, or another one. The real one: tests/verl."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from foresay.integrations.verl import hooks
from foresay.integrations.verl.hooks import hook_metrics, hook_weights, install
from foresay.integrations.vllm.versions import changes

WORKER = "verl.workers.rollout.vllm_rollout.utils"
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_installed", False)
    monkeypatch.setattr("foresay.integrations.vllm.versions._hooks", [])
    hooks._warn_once.cache_clear()


def module(name: str, monkeypatch: pytest.MonkeyPatch, **content: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.mark.parametrize(
    ("version", "warned"),
    [("0.9.0", False), ("0.9.1", False), ("0.9.2.dev0", False), ("0.8.4", True), ("1.0", True)],
)
def test_another_verl_is_warned_of_by_name(
    version: str, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module("verl", monkeypatch, __version__=version)
    install()
    install()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == warned
    assert not warned or lines[0].startswith(f"foresay: verl {version} is not supported by foresay")


def test_a_failing_update_counts_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Extension:
        def update_weights_from_ipc(self, peft_config: Any = None, use_shm: bool = False) -> str:
            if use_shm:
                raise OSError("no shared memory")
            return "loaded"

    module(WORKER, monkeypatch, vLLMColocateWorkerExtension=Extension)
    hook_weights()
    hook_weights()
    before = changes()
    assert Extension().update_weights_from_ipc(peft_config={}) == "loaded"
    assert changes() == before + 1
    with pytest.raises(OSError, match="no shared memory"):
        Extension().update_weights_from_ipc(use_shm=True)
    assert changes() == before + 2


@pytest.mark.parametrize("content", [{}, {"vLLMColocateWorkerExtension": object}])
def test_a_verl_without_the_extension_is_warned_of(
    content: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook_weights()
    assert not caplog.records  # no vLLM of verl's here
    module(WORKER, monkeypatch, **content)
    hook_weights()
    hook_weights()
    assert len(caplog.records) == 1 and "update_weights_from_ipc" in caplog.text


def test_another_function_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def extract_prompt_logprobs(output: Any, into: Any) -> None:
        raise AssertionError("not called here")

    server = module(SERVER, monkeypatch, extract_prompt_logprobs=extract_prompt_logprobs)
    hook_metrics()
    hook_metrics()
    assert server.extract_prompt_logprobs is extract_prompt_logprobs
    assert caplog.text.count("takes output, into, not output") == 1


def test_answers_without_counts_get_zeros_once_any_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """verl averages over all answers of a batch, and fails where one has none."""

    def extract_prompt_logprobs(
        output: Any, num_prompt_logprobs: int | None, result_dict: dict[str, Any]
    ) -> None:
        result_dict["theirs"] = num_prompt_logprobs

    server = module(SERVER, monkeypatch, extract_prompt_logprobs=extract_prompt_logprobs)
    hook_metrics()
    found = []
    counted = SimpleNamespace(histogram=[3, 2, 0, 1], num_draft_tokens=17)
    for metrics in (None, counted, None):
        fields: dict[str, Any] = {}
        output = SimpleNamespace(outputs=[SimpleNamespace(spec_decode_metrics=metrics)])
        server.extract_prompt_logprobs(output=output, num_prompt_logprobs=1, result_dict=fields)
        assert fields.pop("theirs") == 1
        found.append(tuple(fields.values()))
    assert found == [(), (17, 5, 6), (0, 0, 0)]


def test_a_plugin_that_cannot_be_loaded_says_so() -> None:
    code = (
        "import sys; sys.modules['foresay.integrations.vllm.versions'] = None\n"
        "import foresay.integrations.verl.plugin"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "foresay: the plugin for verl is not in use (ModuleNotFoundError" in done.stderr
