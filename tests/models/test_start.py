"""What a start imports: transformers takes longer than all else together, and is not needed for a
model whose weights are used as they are stored.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from models.weight_files import printed, small_file

SLOW = ("transformers", "huggingface_hub", "gguf", "safetensors", "jinja2", "scipy", "triton")


def loaded_after(code: str, *arguments: str) -> set[str]:
    """The packages of a process that ran the code."""
    code = textwrap.dedent(code) + "\nimport sys; print(*{m.split('.')[0] for m in sys.modules})"
    return set(printed(code, *arguments).split())


def test_all_but_the_target_needs_no_transformers(tmp_path: Path) -> None:
    small_file(tmp_path / "a.gguf")
    code = """
        import sys
        from foresay import LLM
        from foresay.engine.engine import Engine
        from foresay.engine.llm import drafter_of
        from foresay.engine.measure import measured_cost
        from foresay.models import weights
        from foresay.models.load import load
        from foresay.models.options import check_dtype
        from foresay.models.rows import StepRows
        from foresay.models.tokenizer import Tokenizer

        check_dtype("auto")
        drafter_of("suffix")
        found = weights.find_stored(sys.argv[1], cache=sys.argv[2])
        tokenizer = Tokenizer(found.folder)
        assert len(tokenizer.encode("hello world")) and len(found.bytes_of("model.norm.weight"))
    """
    loaded = loaded_after(code, str(tmp_path / "a.gguf"), str(tmp_path / "c"))
    assert {"torch", "tokenizers"} <= loaded
    assert not loaded & set(SLOW)


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
