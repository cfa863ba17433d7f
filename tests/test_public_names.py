"""What users may import, and that it is documented."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

import foresay
import foresay.drafters
import foresay.errors
import foresay.sampling

FACTS = ("Mutates:", "Valid until:", "Raises:", "GIL:")


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
        "TopK",
        "Verdict",
        "VerdictBatch",
        "Wants",
        "__version__",
    ]
    assert foresay.drafters.__all__ == [
        "CorpusDrafter",
        "MergeDrafter",
        "NgramDrafter",
        "SuffixDrafter",
    ]
    assert foresay.sampling.__all__ == [
        "Ask",
        "AskBatch",
        "Logprobs",
        "SamplingParams",
        "Stream",
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


@pytest.mark.parametrize("method", ["begin", "propose", "observe", "finish"])
@pytest.mark.parametrize(
    "owner", ["Drafter", "SuffixDrafter", "CorpusDrafter", "NgramDrafter", "MergeDrafter"]
)
def test_the_four_facts(owner: str, method: str) -> None:
    home = foresay if owner == "Drafter" else foresay.drafters
    doc = inspect.getdoc(getattr(getattr(home, owner), method)) or ""
    # Docstrings wrap, so a fact may be split over two lines.
    flat = " ".join(doc.split())
    assert all(fact in flat for fact in FACTS), f"{owner}.{method} must say {FACTS}"


@pytest.mark.parametrize(
    "name",
    [
        *("Draft", "DraftBatch", "SeededParams", "Source"),
        *("TopK", "Verdict", "VerdictBatch", "Wants"),
    ],
)
def test_the_four_facts_of_values(name: str) -> None:
    flat = " ".join((inspect.getdoc(getattr(foresay, name)) or "").split())
    assert all(fact in flat for fact in FACTS)


@pytest.mark.parametrize("name", foresay.sampling.__all__)
def test_the_four_facts_of_sampling(name: str) -> None:
    thing = getattr(foresay.sampling, name)
    home = inspect.getdoc(inspect.getmodule(thing)) or ""
    flat = " ".join(f"{inspect.getdoc(thing)} {home}".split())
    assert all(fact in flat for fact in FACTS), name


def test_every_module_says_what_it_is() -> None:
    root = Path(foresay.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.name != "__main__.py":
            dotted = ".".join(["foresay", *path.relative_to(root).with_suffix("").parts])
            assert importlib.import_module(dotted.removesuffix(".__init__")).__doc__, dotted
