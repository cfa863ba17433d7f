"""What verification asks of a device: one upload, then nothing that waits, then one download.

On the CPU, which stands in for a GPU, everything that would wait there is refused between the two.
On a real GPU torch itself refuses it (`set_sync_debug_mode`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foresay import Draft, DraftBatch
from foresay.sampling import SamplingParams, VerificationBatch, VerificationInput, reference
from foresay.sampling import logprobs as logprobs_module
from foresay.sampling.acceptance import match as match_module
from foresay.sampling.acceptance import tries as tries_module
from foresay.sampling.acceptance import upload as upload_module
from foresay.sampling.acceptance.match import match
from foresay.sampling.acceptance.rejection import rejection
from foresay.sampling.logprobs import logprobs_of, topk_of
from sampling.cases import sampled_draft

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "unique")
ON_THE_HOST = ("numpy", "tolist", "item", "cpu", "__array__", "__bool__", "__float__", "__int__")
FROM_THE_HOST = ("as_tensor", "tensor", "from_numpy")


class NoWaits(TorchDispatchMode):
    """Refuses what waits for a device, or has a size that only the device knows."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not any(name.startswith(each) for each in WAITING), f"{name} waits"
        if name in ("index", "index_put", "index_put_"):
            masks = [
                at for at in args[1] if at is not None and at.dtype in (torch.bool, torch.uint8)
            ]
            assert not masks, f"{name} by a mask waits"
        if name == "repeat_interleave":
            assert (kwargs or {}).get("output_size") is not None, "repeat_interleave waits"
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, device: str) -> Iterator[list[str]]:
    """The copies that are made, one after the other; between them, nothing may wait."""
    made = list[str]()
    modes = list[Any]()

    def refuse() -> None:
        for name in ON_THE_HOST:
            inner.setattr(torch.Tensor, name, forbidden(name))
        for name in FROM_THE_HOST:
            inner.setattr(torch, name, forbidden(name))

    def forbidden(name: str) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError(f"{name} copies or waits")

        return called

    inner = pytest.MonkeyPatch()

    def upload(arrays: Any, where: Any) -> Any:
        made.append("upload")
        sent = upload_module.upload(arrays, where)
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        else:
            refuse()
            modes.append(NoWaits())  # type: ignore[no-untyped-call]
            modes[-1].__enter__()
        return sent

    def download(tensor: Any) -> Any:
        made.append("download")
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
        else:
            modes.pop().__exit__(None, None, None)
            inner.undo()
        return upload_module.download(tensor)

    for module in (match_module, tries_module, logprobs_module):
        monkeypatch.setattr(module, "upload", upload)
        monkeypatch.setattr(module, "download", download)
    try:
        yield made
    finally:
        while modes:
            modes.pop().__exit__(None, None, None)
        inner.undo()
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8},
    "limits": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalties": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
        "logit_bias": {3: 2.0, 5: -np.inf},
        "min_tokens": 4,
        "stop": [7],
    },
}
PARAMS["all"] = {**PARAMS["limits"], **PARAMS["penalties"]}


def batch(params: dict[str, Any], vocabulary: int = 60) -> tuple[Any, torch.Tensor, Any]:
    rng = np.random.default_rng(0)
    drafts = DraftBatch.of(
        [Draft.chain([4, 5, 6]), Draft([1, 2, 3, 4], [-1, -1, 0, 2]), Draft.empty()]
    )
    inputs = [
        VerificationInput(SamplingParams(**params), 1, [1, 2, 3], [4]),
        VerificationInput(SamplingParams(temperature=1), 2, [1, 2]),
        VerificationInput(SamplingParams(**params), 3, [9, 9], [4, 4]),
    ]
    logits = rng.normal(size=(10, vocabulary)).astype(np.float32) * 2
    logits[9, 2] = np.nan
    return drafts, torch.from_numpy(logits), VerificationBatch.of(inputs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(PARAMS))
@pytest.mark.parametrize("rule", [match, rejection])
def test_a_step_waits_once(
    rule: Any, name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts, logits, inputs = batch(PARAMS[name])
    expected = rule(drafts, logits, inputs, kernel="core")
    kernel = "torch" if device == "cpu" else None
    with counted(monkeypatch, device) as made:
        found = rule(drafts, logits.to(device), inputs, kernel=kernel)
    assert made == ["upload", "download"]
    assert found.verdicts == expected.verdicts and list(found.failures) == [2]


@pytest.mark.parametrize("device", DEVICES)
def test_rejection_of_sampled_tokens_waits_once(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    drafts = [sampled_draft(rng, 30, bool(at % 2)) for at in range(40)]
    rows = [rng.normal(size=(len(draft) + 1, 30)).astype(np.float32) for draft in drafts]
    inputs = [VerificationInput(SamplingParams(), seed, [1]) for seed in range(40)]
    logits = torch.from_numpy(np.concatenate(rows))
    assert len(logits) > 2 * tries_module._ROWS
    with counted(monkeypatch, device) as made:
        kernel: Any = "torch" if device == "cpu" else None
        found = rejection(drafts, logits.to(device), inputs, kernel=kernel)
    assert made == ["upload", "download"]
    for at, (draft, own, one) in enumerate(zip(drafts, rows, inputs, strict=True)):
        assert found.verdicts[at] == reference.rejection(draft, own, one)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(PARAMS))
def test_log_probabilities_wait_once(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts, logits, inputs = batch(PARAMS[name])
    verified = match(drafts, logits, inputs)
    expected = logprobs_of(verified, drafts, logits, inputs, top=4)
    kernel: Any = "torch" if device == "cpu" else None
    with counted(monkeypatch, device) as made:
        found = logprobs_of(verified, drafts, logits.to(device), inputs, top=4, kernel=kernel)
    assert made == ["upload", "download"]
    for field in ("processed", "raw", "top_raw"):
        np.testing.assert_allclose(getattr(found, field), getattr(expected, field), atol=1e-12)
    np.testing.assert_array_equal(found.top_tokens, expected.top_tokens)


@pytest.mark.parametrize("device", DEVICES)
def test_the_likeliest_wait_once(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, logits, _ = batch({})
    expected = topk_of(logits, 5)
    there = logits.to(device)
    with counted(monkeypatch, device) as made:
        # So that what waits is refused from here on.
        vars(logprobs_module)["upload"](
            {}, there.device
        )  # so that what waits is refused from here on
        found = topk_of(there, 5, kernel="torch")
    assert made == ["upload", "download"] and found is not None and expected is not None
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, rtol=2e-7, atol=1e-6)


def test_a_wait_would_be_found() -> None:
    rows = torch.zeros(3, 4)
    waits: list[Any] = [
        lambda: bool((rows > 0).any()),
        lambda: rows[rows > 0],
        lambda: (rows > 0).nonzero(),
        lambda: rows.sum().item(),
    ]
    for wait in waits:
        with pytest.raises(AssertionError, match="wait"), NoWaits():  # type: ignore[no-untyped-call]
            wait()


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_arrive_as_they_are(device: str) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "none": np.empty(0, np.int64),
        "bytes": np.arange(5, dtype=np.uint8),
        "table": np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::2],
        "floats": np.array([0.5, -np.inf], np.float32),
        "empty table": np.empty((3, 0), np.float64),
        "doubles": np.array([1e300]),
    }
    sent = upload_module.upload(arrays, torch.device(device))
    for name, array in arrays.items():
        back = upload_module.download(sent[name])
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)
