"""Training a small model: it learns, goes on after an interrupt, and drafts for its target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from foresay.corpus import tokenizer_hash_of
from foresay.drafters import ModelDrafter
from foresay.errors import InputError, ModelError, TokenizerMismatch, UnsupportedModel
from foresay.models.target import Target
from foresay.models.teacher import Teacher
from foresay.traces import read_traces
from foresay.train.boost import boost
from foresay.train.distil import loss_of, measure
from foresay.train.lesson import padded
from foresay.train.loop import load_checkpoint
from foresay.train.model import train
from models import zoo
from tiny import call, one_thread
from train.accepting import accepted

SMALL: dict[str, Any] = {"hidden": 32, "layers": 2, "heads": 1, "intermediate": 64}
QUICK: dict[str, Any] = {"epochs": 12, "tokens": 1024, "learning_rate": 1e-2, "held_out": 0.1}


@pytest.fixture(scope="module")
def trained(folder: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("small")
    with one_thread():
        done = train(folder, corpus, out, **SMALL, **QUICK)
    assert done.updates > 50 and done.held_out_loss < 4.0
    assert done.agreement > 0.25 and done.overlap > 0.25
    assert done.bytes == (out / "model.safetensors").stat().st_size
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    return out


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_trained_model_drafts(
    target: Target, folder: Path, corpus: Path, trained: Path, tmp_path: Path, temperature: float
) -> None:
    with one_thread():
        train(folder, corpus, tmp_path / "raw", **SMALL, **QUICK | {"epochs": 1, "tokens": 8192})
    own = accepted(target, ModelDrafter(trained, shape=3), temperature)
    assert own > 1.3 * accepted(target, ModelDrafter(tmp_path / "raw", shape=3), temperature)


def test_transformers_reads_it(trained: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(trained)
    assert isinstance(model, LlamaForCausalLM) and model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight
    config = json.loads((trained / "config.json").read_text())
    assert config["vocab_size"] == zoo.VOCABULARY and "target" in config["foresay"]


def read(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


class Stop(Exception):
    """What an interrupt raises here."""


def test_an_interrupted_training_goes_on(
    folder: Path, corpus: Path, trained: Path, tmp_path: Path
) -> None:
    def interrupt(stage: str, done: int, total: int | None) -> None:
        if stage == "train" and done == 20:
            raise Stop

    with one_thread():
        with pytest.raises(Stop):
            train(folder, corpus, tmp_path, **SMALL, **QUICK, progress=interrupt)
        assert [path.name for path in tmp_path.iterdir()] == ["training.safetensors"]
        (tmp_path.parent / "usual").touch()
        usual = (tmp_path.parent / "usual").stat().st_mode
        assert (tmp_path / "training.safetensors").stat().st_mode == usual
        with pytest.raises(InputError, match="was begun with another `layers`"):
            train(folder, corpus, tmp_path, **SMALL | {"layers": 1}, **QUICK)
        train(folder, corpus, tmp_path, **SMALL, **QUICK)
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert weights == (trained / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden": 48}, "hidden is 48 with 1 heads; expected a multiple of 32"),
        ({"hidden": 64}, "hidden is 64; expected at most 32, the target's"),
        ({"layers": 0}, "layers is 0"),
        ({"epochs": 1_000_000}, "epochs is 1000000; expected at most 10000"),
        ({"seed": -1}, "seed is -1; expected a whole number from 0"),
        ({"device": "gpu"}, "expected cpu, cuda or cuda:N"),
        *([] if torch.cuda.is_available() else [({"device": "cuda"}, "torch cannot use here")]),
        ({"target": "no-such-model"}, "is no model"),
    ],
    ids=str,
)
def test_what_does_not_fit(
    folder: Path, corpus: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    asked = {"target": folder, "corpus": corpus, "out": tmp_path / "out", **SMALL, **QUICK}
    with pytest.raises((InputError, ModelError), match=sentence):
        train(**asked | changes)


def test_what_is_there_is_not_overwritten(
    folder: Path, corpus: Path, trained: Path, tmp_path: Path
) -> None:
    from foresay.train.eagle import train as train_head

    with pytest.raises(InputError, match=r"which holds \['LlamaForCausalLM'\]; expected a new fol"):
        train_head(folder, corpus, trained)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="which is a file; expected a folder"):
        train(folder, corpus, tmp_path / "file", **SMALL, **QUICK)


def test_the_loss_is_the_cross_entropy(folder: Path, corpus: Path, trained: Path) -> None:
    """By the definition, text by text; and tokens that an earlier model has count less."""
    teacher, traces = Teacher(folder, device="cpu"), read_traces(corpus)[:5]
    own = read(trained)
    target = read(folder)
    earlier = read(trained)
    with torch.no_grad():
        for weight in earlier.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    losses, hits = [], []
    for trace in traces:
        text = torch.from_numpy(np.concatenate([trace.prompt, trace.output]).astype(np.int64))[None]
        with torch.no_grad():
            law, mine, theirs = (m(text).logits[0] for m in (target, own, earlier))
        losses.append(-(law.softmax(-1) * mine.log_softmax(-1)).sum(-1))
        hits.append(law.argmax(-1) == theirs.argmax(-1))
    every, hit = torch.cat(losses), torch.cat(hits)
    assert hit.any() and not hit.all()
    batch = padded(traces, "cpu")
    assert loss_of(own, teacher, batch).item() == pytest.approx(every.mean().item(), rel=1e-4)
    weights = torch.where(hit, 0.2, 1.0)
    wanted = ((every * weights).sum() / weights.sum()).item()
    assert loss_of(own, teacher, batch, [earlier], 0.2).item() == pytest.approx(wanted, rel=1e-4)


@pytest.fixture(scope="module")
def boosted(folder: Path, corpus: Path, trained: Path, tmp_path_factory: Any) -> Path:
    out: Path = tmp_path_factory.mktemp("boosted")
    options: dict[str, Any] = {"epochs": 6, "tokens": 1024, "learning_rate": 1e-2, "held_out": 0.2}
    with one_thread():
        done = boost(trained, folder, corpus, out, count=2, covered=0.05, control=True, **options)
        assert done.coverage == sorted(done.coverage) and len(done.coverage) == 3
        assert done.coverage[2] > 1.1 * done.coverage[0]  # the union covers more
        assert done.coverage[2] > done.control[2]  # and more than of models that learn all alike
        assert done.agreement[1] < done.coverage[1]
        again = boost(trained, folder, corpus, out, count=2, covered=0.05, control=True, **options)
    assert again.sha256 == done.sha256 and again.coverage == done.coverage
    assert again.seconds < done.seconds  # nothing was tuned again
    assert done.out == [str(out / "1"), str(out / "2")]
    return out


@pytest.mark.slow
def test_boosted_models_draft_together(
    target: Target, folder: Path, trained: Path, boosted: Path
) -> None:
    from foresay.drafters import MergeDrafter

    models = [trained, boosted / "1", boosted / "2"]
    drafters = [ModelDrafter(each, shape=1) for each in models]
    alone = accepted(target, ModelDrafter(trained, shape=1), 0.0)
    together = accepted(target, MergeDrafter(*drafters), 0.0)
    assert together > 1.1 * alone, (together, alone)


def test_a_damaged_boosted_model_is_tuned_again(
    folder: Path, corpus: Path, trained: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"count": 1, "epochs": 1, "tokens": 4096, "held_out": 0.2}
    with one_thread():
        first = boost(trained, folder, corpus, tmp_path, **options)
        path = tmp_path / "1" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\x00\x01"[-1:])
        assert boost(trained, folder, corpus, tmp_path, **options).sha256 == first.sha256


def test_copies_of_another_model_are_tuned_again(
    folder: Path, corpus: Path, trained: Path, tmp_path: Path
) -> None:
    first, options = tmp_path / "first", {"count": 1, "epochs": 1, "tokens": 4096}
    shutil.copytree(trained, first)
    with one_thread():
        before = boost(first, folder, corpus, tmp_path / "out", **options)  # type: ignore[arg-type]
        with torch.no_grad():
            changed = read(first)
            changed.model.norm.weight.mul_(1.5)
            changed.save_pretrained(first)
        after = boost(first, folder, corpus, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert before.sha256 != after.sha256


@pytest.mark.parametrize(
    ("settings", "updates", "losses"),
    [
        *[("[]", "0", "[]"), ("3", "0", "[]"), ("{}", "-1", "[]"), ("{}", "9" * 400, "[]")],
        *[("{}", "5", "[]"), ("[" * 9999, "0", "[]"), ("{}", "1", "[1" + "0" * 400 + "]")],
    ],
)
def test_checkpoints_that_lie(
    trained: Path, tmp_path: Path, settings: str, updates: str, losses: str
) -> None:
    model = read(trained)
    path = tmp_path / "training.safetensors"
    noted = {"settings": settings, "updates": updates, "losses": losses}
    save_file({"weight": torch.zeros(1)}, path, metadata=noted)
    with pytest.raises(ModelError, match="is no checkpoint of a training"):
        load_checkpoint(path, model, torch.optim.AdamW(model.parameters()), {})


def test_measures(folder: Path, corpus: Path, trained: Path) -> None:
    """The target itself agrees always; a model that is there twice adds nothing."""
    teacher, batch = Teacher(folder, device="cpu"), padded(read_traces(corpus)[:5], "cpu")
    own = read(trained)
    target = read(folder)
    found = measure([own, own, target], teacher, [batch])
    assert found.agreement[2] == found.coverage[2] == 1.0
    assert found.coverage[1] == found.coverage[0] == found.agreement[0] < 1
    assert found.overlap == pytest.approx(1.0, abs=1e-4)


def test_models_that_cannot_be_boosted(
    folder: Path, corpus: Path, trained: Path, tmp_path: Path
) -> None:
    head = Path(__file__).parent.parent.parent / "weights" / "smollm2-135m-eagle"
    with pytest.raises(ModelError, match="so it is no whole model; expected one as"):
        boost(head, folder, corpus, tmp_path / "out")
    zoo.make("gpt2").save_pretrained(tmp_path / "other")
    with pytest.raises(UnsupportedModel, match="is a gpt2; expected a llama"):
        boost(tmp_path / "other", folder, corpus, tmp_path / "out")
    config = json.loads((trained / "config.json").read_text())
    config["vocab_size"] += 1
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide" / "config.json").write_text(json.dumps(config))
    (tmp_path / "wide" / "model.safetensors").write_bytes(
        (trained / "model.safetensors").read_bytes()
    )
    with pytest.raises((InputError, ModelError)):
        boost(tmp_path / "wide", folder, corpus, tmp_path / "out")
    with pytest.raises(InputError, match="covered is 2"):
        boost(trained, folder, corpus, tmp_path / "out", covered=2)


def test_the_tokenizer_is_compared(target: Target, trained: Path, tmp_path: Path) -> None:
    """Its hash is noted, since the file is not there."""
    config = json.loads((trained / "config.json").read_text())
    config["foresay"]["target"]["tokenizer_sha256"] = tokenizer_hash_of(b"one").hex()
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((trained / "model.safetensors").read_bytes())
    drafter = ModelDrafter(tmp_path)
    drafter.fit(target, tokenizer_hash_of(b"one"))
    with pytest.raises(TokenizerMismatch, match="expected models of one tokenizer"):
        drafter.fit(target, tokenizer_hash_of(b"two"))
    for noted in (None, 7, "xyz", "00"):
        config["foresay"]["target"]["tokenizer_sha256"] = noted
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert ModelDrafter(tmp_path).tokenizer_hash is None


def test_the_commands(folder: Path, corpus: Path, tmp_path: Path) -> None:
    shared = ["--target", str(folder), "--corpus", str(corpus), "--tokens", "8192", "--epochs", "1"]
    sizes = ["--hidden", "32", "--heads", "1", "--layers", "1", "--intermediate", "32"]
    done = call("train", "model", *shared, *sizes, "-o", str(tmp_path / "m"), "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["out"] == str(tmp_path / "m")
    made = call(
        "train", "boost", *shared, "--model", str(tmp_path / "m"), "-o", str(tmp_path / "b")
    )
    assert made.status == 0 and "coverage" in made.out, made.err
    assert "control" not in made.out  # which was not asked for
