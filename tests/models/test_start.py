"""What a start imports: transformers takes longer than all else together, and is not needed for a
model whose weights are used as they are stored. Such weights are read beside other work, one layer
of each kind is tried, and what was found is remembered.
"""

from __future__ import annotations

import json
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from foresay import _core
from foresay.engine.llm import LLM
from foresay.errors import ModelError
from foresay.models import reading as reading_module
from foresay.models.cpu import stored_decoder
from foresay.models.cpu.decoder import LayeredDecoder
from foresay.models.cpu.stored_decoder import decoder_of
from foresay.models.cpu.stored_target import StoredTarget, load_blocks
from foresay.models.load import find_model, load
from foresay.models.options import LoadOptions
from foresay.models.reading import reading
from foresay.models.weights import StoredModel
from models import gguf_files
from models.test_load import logits
from models.test_quantised_decoder import make
from models.weight_files import printed, small_file

SLOW = ("transformers", "huggingface_hub", "gguf", "safetensors", "jinja2", "scipy", "triton")


def loaded_after(code: str, *arguments: str) -> set[str]:
    """The packages of a process that ran the code."""
    code = textwrap.dedent(code) + "\nimport sys; print(*{m.split('.')[0] for m in sys.modules})"
    return set(printed(code, *arguments).split())


def test_weights_as_stored_need_no_transformers(tmp_path: Path) -> None:
    small_file(tmp_path / "a.gguf")
    code = """
        import sys
        from foresay import LLM, SamplingParams
        llm = LLM(sys.argv[1], memory=1 << 26)
        answer = llm.generate("hello", SamplingParams(max_tokens=3, ignore_eos=True))[0]
        assert len(answer.token_ids) == 3 and llm.target.exact
    """
    loaded = loaded_after(code, str(tmp_path / "a.gguf"))
    assert {"torch", "tokenizers"} <= loaded and not loaded & set(SLOW)


def test_what_needs_no_torch(tmp_path: Path) -> None:
    """So that weights are read, or quantised, and texts are cut while torch is imported."""
    small_file(tmp_path / "a.gguf")
    make("llama").save_pretrained(tmp_path)
    code = """
        import sys
        from pathlib import Path
        from foresay.models.cpu.quantised_decoder import quantised_decoder
        from foresay.models.load import find_model
        from foresay.models.reading import reading
        from foresay.models.tokenizer import Tokenizer
        found = find_model(sys.argv[1], cache=sys.argv[2])
        with reading(found) as read:
            assert read.decoder.result().vocabulary
        tokenizer = Tokenizer(found.folder)
        assert "jinja2" not in sys.modules
        ids = tokenizer.chat([{"role": "user", "content": "hello"}])
        assert tokenizer.decode(ids, special=True) == "<|im_start|>hello<|im_end|>"
        quantised_decoder(Path(sys.argv[2]), "q8_0")
    """
    loaded = loaded_after(code, str(tmp_path / "a.gguf"), str(tmp_path))
    assert not loaded & {"torch", "transformers"}


def test_a_wrong_option_is_refused_before_anything_is_loaded() -> None:
    code = """
        from foresay.errors import InputError
        from foresay.models.load import load
        for options in ({"dtype": "int3"}, {"dtype": None}, {"dtype": []}, {"threads": -1}):
            try:
                load("/nowhere", **options)
            except InputError as error:
                assert "; expected" in str(error), error
            else:
                raise AssertionError(options)
    """
    assert not loaded_after(code) & {*SLOW, "torch"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of a model with seven layers of two kinds: with a window, and the sixth without one."""
    path = tmp_path_factory.mktemp("file") / "a.gguf"
    gguf_files.export(gguf_files.tiny("gemma3"), path, "gemma3", Kind.Q4_1)
    return path.read_bytes()


@pytest.fixture
def model(file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredModel:
    monkeypatch.setenv("FORESAY_CACHE", str(tmp_path))
    monkeypatch.delenv("FORESAY_REMEMBER", raising=False)
    (tmp_path / "a.gguf").write_bytes(file)
    return find_model(tmp_path / "a.gguf")


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "reading" in thread.name]


# --- reading ---------------------------------------------------------------------------------


def test_weights_that_a_thread_reads_are_the_same(model: StoredModel) -> None:
    plain = load(model, threads=1)
    with reading(model) as read:
        assert read == model and read.decoder is not None
        target = load(read, threads=1)
        with reading(read) as again:
            assert again is read
    assert not readers() and torch.equal(logits(target), logits(plain))


def test_a_folder_is_not_read_ahead(small: Path) -> None:
    found = find_model(small)
    with reading(found) as read:
        assert read is found and not readers()


def test_an_error_of_the_reading_is_raised_by_who_loads(model: StoredModel) -> None:
    assert model.gguf is not None
    tensor = model.tensors["model.layers.3.mlp.up_proj.weight"].tensor
    with open(model.gguf, "r+b") as file:
        file.seek(tensor.start)
        file.write(b"\xff\xff")
    said = r"a\.gguf': the tensor 'blk\.3\.ffn_up\.weight' cannot be used: block 0 of output 0 has"
    with reading(model) as read, pytest.raises(ModelError, match=said):
        load(read)
    with pytest.raises(ModelError, match=said):
        LLM(model)


def test_a_file_that_is_cut_meanwhile_is_an_error(model: StoredModel) -> None:
    assert model.gguf is not None
    with open(model.gguf, "r+b") as file:
        file.truncate(model.gguf.stat().st_size // 2)
    with pytest.raises(ModelError, match=r"cannot be used: it should have \d+ bytes at \d+, but"):
        load(model)


def test_who_leaves_ends_the_reading(model: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that would never end by itself."""

    def endless(model: StoredModel, threads: int, progress: Any) -> None:
        while True:
            progress("read", 0, None)
            time.sleep(0.001)

    monkeypatch.setattr(reading_module, "decoder_of", endless)
    with pytest.raises(KeyboardInterrupt), reading(model) as read:
        assert readers()
        raise KeyboardInterrupt
    assert not readers()
    assert read.decoder is not None and read.decoder.exception() is not None


def test_reading_can_be_ended_between_layers(
    model: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def counted(*given: Any) -> Any:
        read.append(given)
        return _core.read_linears(*given)

    def end(stage: str, done: int, total: int | None) -> None:
        if len(read) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(stored_decoder, "read_linears", counted)
    with pytest.raises(KeyboardInterrupt):
        decoder_of(model, 1, end)
    assert len(read) == 3
    decoder_of(model)
    assert len(read) == 3 + 8  # a call for each layer, and one for the embedding and the head


# --- the trial -------------------------------------------------------------------------------


def stages_of(model: StoredModel, **options: Any) -> tuple[StoredTarget, list[str]]:
    told: list[str] = []
    options["progress"] = lambda stage, *_: told.append(stage)
    target = load_blocks(model, LoadOptions(**options))
    return target, told


def test_one_layer_of_each_kind_is_tried(
    model: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers: list[int] = []
    forward = LayeredDecoder.forward

    def counted(self: LayeredDecoder, *given: Any) -> None:
        layers.append(len(self.shapes))
        forward(self, *given)

    monkeypatch.setattr(LayeredDecoder, "forward", counted)
    target, told = stages_of(model, threads=1)
    assert target.exact and "try" in told and set(layers) == {2}
    logits(target)
    assert layers[-1] == 7


@pytest.mark.parametrize("window", [6, 0])
@pytest.mark.parametrize("what", ["logits", "hidden"])
def test_a_kernel_that_depends_on_other_rows_is_found(
    what: str, window: int, model: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In layers of either kind, by a single bit of a single number; also where it does not reach
    the logits. It is tried again at the next start."""
    forward = LayeredDecoder.forward

    def wrong(
        self: LayeredDecoder, step: Any, tokens: Any, needed: Any, out: Any, states: Any, n: int
    ) -> None:
        forward(self, step, tokens, needed, out, states, n)
        changed = out if what == "logits" else states
        if len(tokens) > 40 and len(needed) and any(window == kind[-2] for kind in self.kinds):
            changed[-1, 3] = np.nextafter(changed[-1, 3], np.float32(1e9))

    monkeypatch.setattr(LayeredDecoder, "forward", wrong)
    for _ in range(2):
        target, told = stages_of(model, threads=1)
        assert target.exact is False and "try" in told


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "measured").glob("*"))


def test_the_trial_is_remembered(
    model: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "try" in stages_of(model, threads=1)[1]
    target, told = stages_of(model, threads=1)
    assert target.exact is True and "try" not in told
    assert "try" in stages_of(model, threads=2)[1]
    assert stages_of(model, threads=1, deterministic=False)[0].exact is None
    with monkeypatch.context() as changed:
        changed.setattr(_core, "cpu_level", lambda: "another")
        assert "try" in stages_of(model, threads=1)[1]
    monkeypatch.setenv("FORESAY_REMEMBER", "0")
    before = files(tmp_path)
    assert "try" in stages_of(model, threads=1)[1] and files(tmp_path) == before


@pytest.mark.parametrize("value", [False, 1, "true", [True], None])
def test_a_damaged_memory_is_not_believed(value: Any, model: StoredModel, tmp_path: Path) -> None:
    assert "try" in stages_of(model, threads=1)[1]
    (file,) = files(tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), "value": value}))
    target, told = stages_of(model, threads=1)
    assert target.exact is True and "try" in told
    assert "try" not in stages_of(model, threads=1)[1]
