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
from foresay.integrations.vllm import Settings, SuffixDecodingCache, SuffixProposer, host, sampled


def config(most: int = 6, **keys: Any) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=most, **keys),
        model_config=SimpleNamespace(max_model_len=512),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )


def drafted(proposer: SuffixProposer, rows: int, reading: int = 0, **later: Any) -> int:
    """The longest draft in a step of so many texts that repeat themselves, some still unread."""
    token_ids = np.zeros((rows + reading, 512), np.int32)
    for row in range(rows):
        token_ids[row, :201] = [row * 10 + at % 5 for at in range(201)]
    lengths = np.array([201] * rows + [8] * reading, np.int32)
    new = [[int(token_ids[row, 200])] for row in range(rows)] + [[] for _ in range(reading)]
    return max(map(len, proposer.propose(new, lengths, token_ids, **later)))


# ---- what vLLM gives -------------------------------------------------------------------------


def test_what_a_later_vllm_gives_besides_is_not_looked_at() -> None:
    proposer = SuffixProposer(config())
    assert drafted(proposer, 1, slot_mappings={}, num_speculative_tokens=3, request_ids=["a"]) == 6
    assert proposer.stats().errors == 0


@pytest.mark.parametrize(
    ("rows", "reading", "most"),
    [(1, 0, 6), (2, 0, 6), (2, 1, 2), (3, 0, 2), (5, 0, 2), (6, 0, 2), (8, 0, 0), (20, 0, 0)],
)
def test_drafts_by_the_size_of_the_batch(rows: int, reading: int, most: int) -> None:
    """Inclusive ranges; what is between two, and after the last, goes on as before it."""
    ranges = [(8, 12, 0), (1, 2, 9), (3, 5, 2)]
    proposer = SuffixProposer(config(num_speculative_tokens_per_batch_size=ranges))
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
    caplog.clear()
    with caplog.at_level(logging.INFO, "vllm.foresay"):
        SuffixProposer(config())
        SuffixDecodingCache(24, 0)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("version", ["0.22.0", "0.27.1.dev3+g1", "0.32.0+cpu"])
def test_one_line_at_the_start(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FORESAY_VLLM_THREADS", "3")
    monkeypatch.setenv("FORESAY_VLLM_HISTORY", "0")
    begin, end = f"foresay 0.1.0 in vLLM {version}: ", ", settings: history=False, threads=3"
    assert says(version, monkeypatch, caplog) == [
        f"{begin}custom_class, threads: 3{end}",
        f"{begin}suffix, threads: 1{end}",
    ]


@pytest.mark.parametrize("version", ["0.21.4", "0.33.0", "1.0.0", "dev"])
def test_another_version_is_warned_of_once_and_by_name(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = says(version, monkeypatch, caplog)
    (warning,) = (line for line in lines if "written for" in line)
    assert warning.startswith(f"foresay: vLLM {version} is none that foresay 0.1.0 is written for")
    assert len(lines) == 3 and lines[0].endswith("settings: as by default")


REGISTER = """
import logging
logging.basicConfig()
from foresay.integrations.vllm import register
register()
try:
    from arctic_inference.suffix_decoding import SuffixDecodingCache
    SuffixDecodingCache()
except (ImportError, ValueError) as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("environ", "warns", "ends"),
    [
        ({"FORESAY_VLLM_GRACE": "many"}, "FORESAY_VLLM_GRACE is 'many'", "No module named"),
        ({"FORESAY_VLLM_GRACE": "-1"}, "FORESAY_VLLM_GRACE is -1", "No module named"),
        ({"FORESAY_VLLM_SUFFIX": "maybe"}, "FORESAY_VLLM_SUFFIX is 'maybe'", "No module named"),
        ({"FORESAY_CONFIG": "nowhere.json"}, "FORESAY_CONFIG names nowhere.json", "No module"),
        # Asked for, it is there, and refuses to begin: vLLM would take another's place for it.
        (
            {"FORESAY_VLLM_GRACE": "-1", "FORESAY_VLLM_SUFFIX": "1"},
            "FORESAY_VLLM_GRACE is -1",
            "FORESAY_VLLM_GRACE is -1",
        ),
    ],
)
def test_a_wrong_setting_ends_nothing_but_a_drafter(
    environ: dict[str, str], warns: str, ends: str
) -> None:
    """vLLM calls `register` for each of its commands, `vllm --version` too."""
    command = [sys.executable, "-c", REGISTER]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert f"foresay: {warns}" in done.stderr and done.stdout.startswith(ends)


def test_settings_made_by_hand_go_by_their_own_names() -> None:
    with pytest.raises(InputError, match=r"^grace is -1; it is a whole number from 0 to 4096"):
        Settings(grace=-1)


# ---- the sampler -----------------------------------------------------------------------------


def test_an_expansion_that_is_lost_is_found() -> None:
    torch = pytest.importorskip("torch")

    def lost(x: Any, ends: Any, count: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        """As vLLM 0.32 does it on processors: through whole numbers, into a copy."""
        out = x.new_empty(count)
        out.to(torch.int64).copy_(sampled._expand(x.long(), ends, count, replace_from, replace_to))
        return out

    def whole(x: Any, ends: Any, count: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        """As it would be if only the copy were given back."""
        return sampled._expand(x.long(), ends, count, replace_from, replace_to).to(x.dtype)

    assert sampled._is_expanded(sampled._expand)
    assert not sampled._is_expanded(lost) and not sampled._is_expanded(whole)
    ends = torch.tensor([0, 3, 4], dtype=torch.int32)
    found = sampled._expand(torch.tensor([7, 0, 9], dtype=torch.int32), ends, 4)
    assert found.dtype == torch.int32 and found.tolist() == [0, 0, 0, 9]


def test_without_vllm_nothing_is_mended() -> None:
    assert "vllm.v1.sample.rejection_sampler" not in sys.modules
    sampled.mend()
