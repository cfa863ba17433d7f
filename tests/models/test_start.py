"""What a start imports: transformers takes longer than all else together, and is not needed for a
model whose weights are used as they are stored.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

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
