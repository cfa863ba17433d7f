"""Which device a model runs on, by name and by what the machine has; on a machine without a GPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from foresay import LLM, SamplingParams
from foresay.drafters import ModelDrafter
from foresay.errors import InputError
from foresay.models import device
from foresay.models.cpu.stored_target import StoredTarget
from foresay.models.cpu.target import CpuTarget
from foresay.models.load import find_model, load
from foresay.models.load_transformers import plain_target_of, read_model
from foresay.models.options import LoadOptions, check_device_name
from foresay.models.reading import reading
from foresay.models.target import Outputs
from foresay.models.weights import StoredModel
from models import zoo
from models.weight_files import small_file
from tiny import save_model

MEMORY = 1 << 22


def options(**given: Any) -> LoadOptions:
    return LoadOptions(**given)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> int:
    """As if there were two, with all that they need."""
    monkeypatch.setattr(device, "has_driver", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(device, "find_spec", lambda name: object())
    return 2


class Asked:
    """In place of the GPU's target: a plain one on the CPU, and what was asked for."""

    def __init__(self) -> None:
        self.models: list[StoredModel] = []
        self.options: list[LoadOptions] = []

    def load_gpu(self, model: StoredModel, options: LoadOptions) -> Any:
        self.models.append(model)
        self.options.append(options)
        made = plain_target_of(read_model(model.folder, torch.float32))
        made.memory = MEMORY if options.memory is None else options.memory // 2
        return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    monkeypatch.setattr(device, "has_driver", lambda: True)
    monkeypatch.setattr(device, "cuda_devices", lambda: device.CudaDevices(2, None))
    module: Any = ModuleType("foresay.models.gpu.load")
    module.load_gpu = made.load_gpu
    monkeypatch.setitem(sys.modules, "foresay.models.gpu.load", module)
    return made


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"device": "gpu"}, "device is 'gpu'; expected auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:-1"}, "device is 'cuda:-1'; expected auto"),
        ({"device": "cuda:01"}, "device is 'cuda:01'; expected auto"),
        ({"device": "cpu:0"}, "device is 'cpu:0'; expected auto"),
        ({"device": None}, "device is None; expected auto"),
        ({"device": torch.device("cpu")}, "expected auto"),
        ({"memory": 0}, "memory is 0; expected"),
        ({"memory": 1.5}, "memory is 1.5; expected"),
        ({"device": "cuda", "quantize": "q8_0"}, "'q8_0' and device is 'cuda', where weights in"),
        ({"device": "cpu", "dtype": "float16"}, "'float16' and device is 'cpu'; expected bfloat16"),
        ({"dtype": "float64"}, "'float64'; expected auto, bfloat16, float32, float16"),
    ],
)
def test_options_that_are_refused_without_a_look_at_the_machine(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        LoadOptions(**given)
    assert said in str(refused.value)


def test_names_of_a_device_that_is_said() -> None:
    for name in ("cpu", "cuda", "cuda:0", "cuda:12"):
        check_device_name(name)
    for wrong in ("auto", "cuda:", "cuda:1a", "cuda:1000", "mps", 0):
        with pytest.raises(InputError, match="expected cpu, cuda or cuda:N"):
            check_device_name(wrong)


def test_what_auto_is(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.device_for(options()) == "cuda"
    assert device.device_for(options(dtype="float16")) == "cuda"
    assert device.device_for(options(quantize="q8_0")) == "cpu"  # which only the CPU has
    assert device.device_for(options(device="cpu")) == "cpu"
    assert device.device_for(options(device="cuda:1")) == "cuda:1"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.device_for(options()) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    assert device.device_for(options()) == "cpu"


def refused(given: LoadOptions) -> str:
    with pytest.raises(InputError) as raised:
        device.device_for(given)
    return str(raised.value)


def test_a_device_that_is_not_there(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = "device is 'cuda:2'; this machine has 2 CUDA devices; "
    assert refused(options(device="cuda:2")) == begin + "expected cpu, cuda or cuda:0 to cuda:1"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "1 CUDA device; expected cpu, cuda or cuda:0" in refused(options(device="cuda:1"))
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    begin = "device is 'cuda'; triton is not installed"
    assert refused(options(device="cuda")).startswith(begin)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refused(options(device="cuda")) == (
        "device is 'cuda'; this machine has no CUDA device that torch can use; expected cpu"
    )
    wrong = "dtype is 'float16', but this machine has no CUDA device that torch can use; expected"
    assert refused(options(dtype="float16")) == f"{wrong} bfloat16 or float32"
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert f"torch {torch.__version__} is built without CUDA" in refused(options(device="cuda"))
    monkeypatch.setattr(device, "has_driver", lambda: False)
    assert refused(options(dtype="float16")) == f"{wrong} bfloat16 or float32"


def test_torch_is_not_imported_to_find_that_there_is_no_driver() -> None:
    code = (
        "import sys; from foresay.models import device; from foresay.models.options import *;"
        "device.has_driver = lambda: False; print(device.device_for(LoadOptions()), end=' ');"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cpu", "False"]


# ---- what is loaded where ---------------------------------------------------------------------


def test_a_model_is_loaded_on_the_gpu(tmp_path: Path, asked: Asked) -> None:
    zoo.make("llama", intermediate_size=64).save_pretrained(tmp_path)
    target = load(tmp_path, dtype="float16", memory=MEMORY)
    assert target.memory == MEMORY // 2
    assert asked.options == [LoadOptions(dtype="float16", device="cuda", memory=MEMORY)]
    load(tmp_path, device="cuda:1")
    assert asked.options[1].device == "cuda:1" and asked.options[1].memory is None
    assert load(tmp_path, device="cpu", dtype="float32").memory is None
    load(tmp_path, quantize="q8_0")
    assert len(asked.options) == 2


def test_a_gguf_file_is_not_converted_for_the_gpu(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it read by the thread that reads for the core."""
    small_file(tmp_path / "a.gguf")

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the file is converted")

    monkeypatch.setattr("foresay.models.load.weights.find", never)
    for dtype in ("auto", "float32", "float16"):
        found = find_model(tmp_path / "a.gguf", dtype=dtype, cache=tmp_path)
        assert found.gguf == tmp_path / "a.gguf"
        with reading(found, "cuda") as read:
            assert read.decoder is None
    with reading(found) as read:
        assert read.decoder is not None
    with pytest.raises(AssertionError, match="converted"):
        find_model(tmp_path / "a.gguf", dtype="float32", device="cpu", cache=tmp_path)


def test_what_was_found_for_a_gpu_runs_on_the_cpu_too(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that the core does not know is converted then, and not read by the thread."""
    monkeypatch.setenv("FORESAY_CACHE", str(tmp_path / "cache"))
    small_file(tmp_path / "a.gguf")
    found = find_model(tmp_path / "a.gguf")
    assert found.plan is not None
    assert isinstance(load(found, device="cpu", threads=1), StoredTarget)
    config = {**found.plan.config, "model_type": "unknown"}
    odd = replace(found, plan=replace(found.plan, config=config))
    with reading(odd) as read:
        assert read.decoder is None
    assert isinstance(load(odd, device="cpu", threads=1), CpuTarget)


# ---- above the target -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path)
    return tmp_path


def test_an_llm_on_the_gpu(folder: Path, asked: Asked) -> None:
    llm = LLM(folder, f"model:{folder}", policy="fixed")
    small, whole = asked.options  # the drafter's model is loaded first
    assert llm.device == small.device == whole.device == "cuda"
    assert small.memory == 1 << 30 and small.quantize is None and whole.memory is None
    assert llm._limits["memory"] == MEMORY
    greedy = SamplingParams(temperature=0, max_tokens=8)
    text = llm.generate("Hello", greedy)[0]
    assert text.stats.accepted
    beside = llm.beside("suffix", policy="fixed")
    assert beside.device == "cuda" and len(asked.options) == 2
    assert beside.generate("Hello", greedy)[0].token_ids == text.token_ids
    assert LLM(folder, None, memory=MEMORY)._limits["memory"] == MEMORY // 2
    assert LLM(folder, None, device="cpu", memory=MEMORY)._limits["memory"] == MEMORY


def test_those_beside_each_other_leave_the_memory(folder: Path, asked: Asked) -> None:
    llm = LLM(folder, None)
    greedy = SamplingParams(temperature=0, max_tokens=4)
    prompt = list(range(3, 80))

    def cached(one: LLM) -> int:
        return one.engine.scheduler.prefixes.held

    llm.generate(prompt, greedy)
    assert cached(llm)  # alone, it keeps prefixes
    beside = llm.beside(None)
    assert not cached(llm)
    for one in (llm, beside):
        one.generate(prompt, greedy)
        assert not cached(one)
    stream: Any = llm.stream(prompt, SamplingParams(temperature=0, max_tokens=40))
    next(stream)
    beside.generate(prompt, greedy)
    stream.close()
    del beside, one
    llm.generate(prompt, greedy)
    assert cached(llm)


def test_a_draft_model_stays_on_the_cpu_by_itself(folder: Path, asked: Asked) -> None:
    ModelDrafter(folder)
    assert not asked.options
    ModelDrafter(folder, device="auto", memory=1 << 20)
    assert asked.options == [LoadOptions(device="cuda", memory=1 << 20)]


def test_heads_run_where_the_target_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from foresay import drafters
    from foresay.drafters.lineup import make_drafter

    made: list[Any] = []
    for name in ("EagleDrafter", "MtpDrafter"):
        monkeypatch.setattr(drafters, name, lambda *_, **given: made.append(given))
    for name in ("eagle:head", "mtp"):
        make_drafter(name, model="m", device="cuda:1")
        make_drafter(name, model="m", chain=True)
    on_gpu = {"device": "cuda:1", "dtype": "bfloat16"}
    on_cpu = {"device": "cpu", "dtype": "float32", "topk": 1}
    assert made == [on_gpu, on_cpu] * 2


# ---- waiting for the device -------------------------------------------------------------------


class OnGpu:
    device = torch.device("cuda:1")


def test_outputs_of_a_gpu_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    here = Outputs(torch.zeros(1, 2))
    assert here.wait() is here and not here.on_gpu and not waited
    there = Outputs(OnGpu())  # type: ignore[arg-type]
    assert there.wait() is there and there.on_gpu and waited == [OnGpu.device]


def test_the_likeliest_are_found_on_the_device() -> None:
    """By torch as by the core, also of rows that hold what is no number."""
    from foresay import _core
    from foresay.drafters.decoding.next_tokens import _topk

    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    logits[1, 7], logits[2] = torch.nan, -torch.inf
    tokens, logprobs = _topk(logits, 5)
    own, wanted = _core.topk(logits.numpy(), 5, threads=1)
    for row in (0, 3):
        assert np.array_equal(tokens[row], own[row])
        np.testing.assert_allclose(logprobs[row], wanted[row], atol=1e-5)
    assert not (logprobs[[1, 2]] > -np.inf).any()
