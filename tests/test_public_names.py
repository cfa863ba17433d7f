"""What users may import, and that it is documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import foresay
import foresay.drafters
import foresay.errors
import foresay.sampling
from foresay.budget.policy import Policy
from foresay.models.target import Target, TextKv
from real_trl import import_trl

FACTS = ("Mutates:", "Valid until:", "Raises:", "GIL:")
DEFAULTS = r"Mutates: nothing\.|Valid until: for ever\.|Raises: nothing\.|GIL: held\."


def test_public_names() -> None:
    assert foresay.__all__ == [
        "LLM",
        "Draft",
        "DraftBatch",
        "Drafter",
        "ForesayError",
        "SamplingParams",
        "SeededParams",
        "Source",
        "StructuredOutputs",
        "TopK",
        "Verdict",
        "VerdictBatch",
        "Wants",
        "__version__",
    ]
    assert foresay.drafters.__all__ == [
        "CorpusDrafter",
        "ExternalDrafter",
        "GrammarDrafter",
        "MergeDrafter",
        "ModelDrafter",
        "NgramDrafter",
        "RecycleDrafter",
        "SelfDrafter",
        "SuffixDrafter",
        "WorkerDrafter",
    ]
    assert foresay.sampling.__all__ == [
        "Logprobs",
        "SamplingParams",
        "Stream",
        "VerificationBatch",
        "VerificationInput",
        "Verified",
        "logprobs_of",
        "match",
        "rejection",
        "verify",
    ]


@pytest.mark.parametrize("module", [foresay, foresay.drafters, foresay.sampling])
def test_all_is_complete_and_importable(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert len(names) == len(set(names))  # and ruff keeps them in order
    for name in names:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = module.nonsense  # type: ignore[attr-defined]


def test_every_error_is_in_the_tree() -> None:
    for name, kind in vars(foresay.errors).items():
        if inspect.isclass(kind):
            assert issubclass(kind, foresay.ForesayError)
            assert foresay.errors.__doc__ is not None and name in foresay.errors.__doc__
            assert kind.__doc__


PROTOCOLS = [foresay.Drafter, Policy, Target, TextKv]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda kind: kind.__name__)
def test_protocols_state_the_four_facts(protocol: type) -> None:
    """For the whole of it, or for each method."""
    methods = [thing for name, thing in vars(protocol).items() if not name.startswith("_")]
    said = [inspect.getdoc(thing) or "" for thing in methods if inspect.isfunction(thing)]
    whole = " ".join((inspect.getdoc(protocol) or "").split())
    each = [" ".join(doc.split()) for doc in said]
    for fact in FACTS:
        assert fact in whole or all(fact in doc for doc in each), fact


def test_other_docstrings_state_what_differs_from_the_default() -> None:
    root, blocks = Path(foresay.__file__).parent, 0
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            flat = " ".join((ast.get_docstring(node) or "").split())
            blocks += any(fact in flat for fact in ("Mutates:", "Valid until:", "GIL:"))
            if path.name not in ("drafter.py", "target.py", "policy.py"):
                assert not re.search(DEFAULTS, flat), f"{path}: {node.name}"
    assert blocks < 130


def test_every_module_says_what_it_is() -> None:
    import_trl()
    root = Path(foresay.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.name != "__main__.py":
            dotted = ".".join(["foresay", *path.relative_to(root).with_suffix("").parts])
            assert importlib.import_module(dotted.removesuffix(".__init__")).__doc__, dotted
