"""How the adapter gets on with the vLLM around it: versions, settings, keys, and its sampler.

vLLM itself is in tests/vllm.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foresay.errors import InputError
from foresay.integrations.vllm import SuffixProposer, VllmSettings, host, sampler_patch
from integrations.vllm_side import config


def drafted(proposer: SuffixProposer, rows: int, reading: int = 0, **later: Any) -> int:
    """The longest draft in a step of so many texts that repeat themselves, some still unread."""
    token_ids = np.zeros((rows + reading, 512), np.int32)
    for row in range(rows):
        token_ids[row, :201] = [row * 10 + at % 5 for at in range(201)]
    lengths = np.array([201] * rows + [8] * reading, np.int32)
    new = [[int(token_ids[row, 200])] for row in range(rows)] + [[] for _ in range(reading)]
    return max(map(len, proposer.propose(new, lengths, token_ids, **later)))


def platform(cpu: bool) -> Any:
    """What vLLM says of the machine."""
    return SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: cpu))


# ---- what vLLM gives -------------------------------------------------------------------------


def test_what_a_later_vllm_gives_besides_is_not_looked_at() -> None:
    proposer = SuffixProposer(config(length=512))
    assert drafted(proposer, 1, slot_mappings={}, num_speculative_tokens=3, request_ids=["a"]) == 6
    assert proposer.stats().errors == 0


@pytest.mark.parametrize(
    ("rows", "reading", "most"),
    [(1, 0, 6), (2, 0, 6), (2, 1, 2), (3, 0, 2), (5, 0, 2), (6, 0, 2), (8, 0, 0), (20, 0, 0)],
)
def test_drafts_by_the_size_of_the_batch(rows: int, reading: int, most: int) -> None:
    """Inclusive ranges; what is between two, and after the last, goes on as before it."""
    ranges = [(8, 12, 0), (1, 2, 9), (3, 5, 2)]
    proposer = SuffixProposer(config(length=512, num_speculative_tokens_per_batch_size=ranges))
    assert drafted(proposer, rows, reading) == most
    assert proposer.stats().errors == 0


# ---- versions and settings -------------------------------------------------------------------


def says(version: str | None, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> list[str]:
    """What two drafters in one process of that vLLM write to the log."""
    monkeypatch.setattr(host, "_warned", False)
    if version is not None:
        there = ModuleType("vllm")
        there.__dict__["__version__"] = version
        monkeypatch.setitem(sys.modules, "vllm", there)
        monkeypatch.setitem(sys.modules, "vllm.platforms", platform(cpu=False))
    caplog.clear()
    with caplog.at_level(logging.INFO, "vllm.foresay"):
        SuffixProposer(config())
        SuffixProposer(config())
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("version", ["0.22.0", "0.27.1.dev3+g1", "0.32.0+cpu"])
def test_one_line_at_the_start(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FORESAY_VLLM_THREADS", "3")
    monkeypatch.setenv("FORESAY_VLLM_HISTORY", "0")
    begin, end = f"foresay 0.1.0 in vLLM {version}: ", ", settings: history=False, threads=3"
    assert says(version, monkeypatch, caplog) == [f"{begin}custom_class, threads: 3{end}"] * 2


@pytest.mark.parametrize("version", ["0.21.4", "0.33.0", "1.0.0", "dev"])
def test_another_version_is_warned_of_once_and_by_name(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = says(version, monkeypatch, caplog)
    (warning,) = (line for line in lines if "not supported" in line)
    assert warning.startswith(f"foresay: vLLM {version} is not supported by foresay 0.1.0;")
    assert len(lines) == 3 and lines[0].endswith("settings: as by default")


REGISTER = """
import logging
logging.basicConfig()
from foresay.integrations.vllm import SuffixProposer, register
register()
try:
    SuffixProposer(None)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"FORESAY_VLLM_GRACE": "many"}, "FORESAY_VLLM_GRACE is 'many'"),
        ({"FORESAY_VLLM_GRACE": "-1"}, "FORESAY_VLLM_GRACE is -1"),
        ({"FORESAY_VLLM_SUFFIX": "1"}, "the variable FORESAY_VLLM_SUFFIX is set"),
        ({"FORESAY_CONFIG": "nowhere.json"}, "FORESAY_CONFIG names nowhere.json"),
    ],
)
def test_a_wrong_setting_ends_nothing_but_a_drafter(environ: dict[str, str], says: str) -> None:
    """vLLM calls `register` for each of its commands, `vllm --version` too."""
    command = [sys.executable, "-c", REGISTER]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert f"foresay: {says}" in done.stderr and done.stdout.startswith(says)


def test_settings_made_by_hand_go_by_their_own_names() -> None:
    with pytest.raises(InputError, match=r"^grace is -1; expected a whole number from 0 to 4096"):
        VllmSettings(grace=-1)


# ---- the sampler -----------------------------------------------------------------------------


def test_an_expansion_that_is_lost_is_found() -> None:
    torch = pytest.importorskip("torch")

    def lost(x: Any, ends: Any, count: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        """As vLLM 0.32 does it on processors: through whole numbers, into a copy."""
        out = x.new_empty(count)
        out.to(torch.int64).copy_(
            sampler_patch._expand(x.long(), ends, count, replace_from, replace_to)
        )
        return out

    def whole(x: Any, ends: Any, count: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        """As it would be if only the copy were given back."""
        return sampler_patch._expand(x.long(), ends, count, replace_from, replace_to).to(x.dtype)

    assert sampler_patch._is_expanded(sampler_patch._expand)
    assert not sampler_patch._is_expanded(lost) and not sampler_patch._is_expanded(whole)
    ends = torch.tensor([0, 3, 4], dtype=torch.int32)
    found = sampler_patch._expand(torch.tensor([7, 0, 9], dtype=torch.int32), ends, 4)
    assert found.dtype == torch.int32 and found.tolist() == [0, 0, 0, 9]


def test_without_vllm_nothing_is_patched() -> None:
    assert "vllm" not in sys.modules
    assert sampler_patch.patch_sampler()


SAMPLER = "vllm.v1.sample.rejection_sampler"


def sampler_of(**changed: Any) -> Any:
    """A sampler with the functions that are looked at, some of them changed, or none if None."""

    def rejection_sample(
        draft_token_ids: Any,
        num_draft_tokens: Any,
        max_spec_len: Any,
        cu_num_draft_tokens: Any,
        draft_probs: Any,
        target_logits: Any,
        bonus_token_ids: Any,
        sampling_metadata: Any,
    ) -> Any:
        raise AssertionError("nothing is sampled here")

    class RejectionSampler:
        def forward(
            self, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any
        ) -> Any:
            raise AssertionError("nothing is sampled here")

    functions = {
        "expand_batch_to_tokens": sampler_patch._expand,
        "apply_top_k_top_p": lambda logits, k, p: logits,
        "rejection_sample": rejection_sample,
        "RejectionSampler": RejectionSampler,
    } | changed
    return SimpleNamespace(**{key: value for key, value in functions.items() if value is not None})


def drafts_with(sampler: Any, machine: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How much the proposer drafts in a vLLM with that sampler; None: it has none."""
    pytest.importorskip("torch")
    there = ModuleType("vllm")
    there.__dict__["__version__"] = "0.32.0"
    monkeypatch.setitem(sys.modules, "vllm", there)
    for name, module in (("vllm.platforms", machine), (SAMPLER, sampler)):
        if module is None:
            monkeypatch.delitem(sys.modules, name, raising=False)
        else:
            monkeypatch.setitem(sys.modules, name, module)
    return drafted(SuffixProposer(config(length=512)), 1)


def other_expand(x: Any, cu_num_tokens: Any) -> Any:
    raise AssertionError("its arguments do not fit")


def wrong_seam(logits: Any, k: Any) -> Any:
    raise AssertionError("its arguments do not fit")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (None, SAMPLER),
        ({"expand_batch_to_tokens": None}, "expand_batch_to_tokens"),
        ({"expand_batch_to_tokens": other_expand}, "other_expand"),
        ({"expand_batch_to_tokens": lambda *a, **b: None}, "tolist"),
        ({"apply_top_k_top_p": None}, "apply_top_k_top_p"),
        ({"apply_top_k_top_p": wrong_seam}, "wrong_seam"),
        ({"rejection_sample": None}, "rejection_sample"),
        ({"RejectionSampler": None}, "RejectionSampler"),
        ({"RejectionSampler": object()}, "forward"),
    ],
)
def test_nothing_is_drafted_where_sampled_requests_are_not_safe(
    changed: dict[str, Any] | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sampler = None if changed is None else sampler_of(**changed)
    assert drafts_with(sampler, platform(cpu=True), monkeypatch) == 0
    (line,) = [r.getMessage() for r in caplog.records if "nothing is drafted" in r.msg]
    assert why in line and "\n" not in line
    caplog.clear()
    # Where vLLM computes on something else, its sampler is not looked at.
    assert drafts_with(sampler, platform(cpu=False), monkeypatch) == 6
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("machine", [None, SimpleNamespace()])
def test_nothing_is_drafted_where_vllm_does_not_say_on_what_it_runs(
    machine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert drafts_with(sampler_of(), machine, monkeypatch) == 0
    assert caplog.text.count("nothing is drafted") == 1


def no_tokens_fail(logits: Any, k: Any, p: Any) -> Any:
    raise IndexError("there is no row")


def other_sample(draft_token_ids: Any, max_spec_len: Any) -> Any:
    raise AssertionError("nothing is sampled here")


class OtherSampler:
    def forward(self, logits: Any, metadata: Any) -> Any:
        raise AssertionError("nothing is sampled here")


@pytest.mark.parametrize(
    ("changed", "warns"),
    [
        ({}, []),
        (
            {"expand_batch_to_tokens": lambda x, ends, count, **_: x.new_full((count,), 0.5)},
            ["does not fill in temperature"],
        ),
        ({"apply_top_k_top_p": no_tokens_fail}, ["fails with top_k"]),
        # The distribution is right there, only a seed gives other texts.
        ({"rejection_sample": other_sample}, ["other_sample takes draft_token_ids, max_spec_len"]),
        ({"RejectionSampler": OtherSampler}, ["forward takes self, logits, metadata, not self"]),
    ],
)
def test_what_is_patched_or_right_is_drafted_for(
    changed: dict[str, Any],
    warns: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sampler = sampler_of(**changed)
    assert drafts_with(sampler, platform(cpu=True), monkeypatch) == 6
    lines = {r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING}
    assert len(lines) == len(warns)  # of a second drafter the same
    assert all(any(warning in line for line in lines) for warning in warns)
    assert sampler_patch._is_expanded(sampler.expand_batch_to_tokens)
