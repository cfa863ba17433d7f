"""The drafters by name, for command lines and for `LLM`."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foresay import drafters
from foresay.arrays import user_path
from foresay.drafter import Drafter
from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay.drafters.decoding.shapes import ShapeLike

__all__ = [
    "NAMES",
    "Room",
    "Share",
    "check_drafter_name",
    "make_drafter",
    "parts_of",
    "sees_target",
    "with_external_drafts",
]

Share = Literal["none", "group", "all"]
"""What requests draft from each other: nothing, their group, or that and all finished answers."""

NAMES = {
    "suffix": "our default: all sources, scored and calibrated",
    "sam": "SAM-Decoding's rule on our automaton",
    "ngram": "prompt lookup in own text only: the longest repeated n-gram up to 3, latest place",
    "corpus": "a frozen corpus alone",
    "merge": "suffix and ngram in one tree",
    "grammar": "nothing but what the form of a structured answer forces, as beside every drafter",
    "recycle": "Token Recycling: what the target found likely before",
    "recycle:FILE": "the same, beginning with a file of RecycleDrafter.save (for no tenant)",
    "model:NAME": "a smaller model of the same tokenizer, named as for --model",
    "self": "some of the target's own layers",
    "eagle:FOLDER": "a head over the model's features, as `foresay train eagle` writes it",
    "mtp": "the multi-token-prediction head that the target's own files have",
    "worker:NAME": "one of these in a process of its own, such as worker:model:NAME",
    "first:NAME+NAME": "the draft of the first that has one; first:sam+recycle: SAM-Decoding's way",
}

_FIRST, _WORKER = "first:", "worker:"
_NAMING = {
    "model": "model; expected model:NAME with a folder, a .gguf file or a hub model org/name",
    "eagle": "folder; expected eagle:FOLDER",
    "recycle": "file; expected recycle:FILE",
    "worker": "drafter; expected worker:model:NAME",
}
"""After their colon a file, folder, model or drafter follows, which may have a + in it."""
_PREFIXES = tuple(f"{kind}:" for kind in _NAMING)
_ALONE = ("suffix", "sam", "ngram", "corpus", "merge", "grammar", "recycle", "self", "mtp")
_WITH_CORPUS = ("suffix", "sam", "corpus", "merge")


@dataclass(frozen=True, slots=True)
class Room:
    """What a drafter may keep of finished requests; the names are those of SuffixDrafter.

    history_bytes  bytes of one tenant
    tenant_bytes   bytes of all tenants together
    max_tenants    tenants whose history is kept
    """

    history_bytes: int
    tenant_bytes: int
    max_tenants: int


@dataclass(frozen=True)
class _Setting:
    """What all drafters are given; `corpus`: the file, the tokenizer's hash, whether to verify."""

    share: Share
    corpus: dict[str, Any]
    chain: bool
    room: Room | None
    shape: dict[str, Any]
    model: Any
    device: str

    @property
    def text(self) -> dict[str, Any]:
        """For a SuffixDrafter."""
        room = {} if self.room is None else asdict(self.room)
        return {"history": self.share == "all", **self.corpus, **room}

    @property
    def head(self) -> dict[str, Any]:
        """For an EagleDrafter or an MtpDrafter."""
        on_gpu = self.device != "cpu"
        return {"device": self.device, "dtype": "bfloat16" if on_gpu else "float32"}

    @property
    def learned(self) -> dict[str, Any]:
        """For a RecycleDrafter."""
        if self.room is None:
            return {}
        return {"memory": self.room.history_bytes, "max_tenants": self.room.max_tenants}


def make_drafter(
    name: str,
    *,
    share: Share = "none",
    corpus: str | Path | None = None,
    tokenizer_hash: bytes | None = None,
    verify: bool = False,
    chain: bool = False,
    room: Room | None = None,
    shape: ShapeLike | None = None,
    model: Any = None,
    device: str = "cpu",
) -> Drafter[Any]:
    """A new drafter by its name; finished requests enter its history only if `share` is "all".

    All drafters take the same settings, so that they can be compared: "ngram" uses the request's
    own text only and "corpus" its file only, whatever `share` is. `room` limits what the others
    keep of finished requests; None: their default.

    With `verify` every byte of the corpus is checked first (see `foresay.corpus.verify`).

    With `chain` a drafter that can grow its tree without branches does so, which makes the chain
    longer than the likeliest path of a tree of the same size; "sam" and "ngram" always draft one.

    "model:NAME" loads that model now, and shares nothing. "self" drafts for the engine that it is
    given to. `shape` is that of their drafts, as for ModelDrafter; None: their default.

    `model` is the target, by its name or as `models.load.find_model` finds it: "eagle:FOLDER" needs
    its embeddings, and "mtp" is in its files. None: the one that the head was trained for; "mtp" is
    refused then.

    `device` is where the target runs: "model:NAME", "eagle:FOLDER" and "mtp" run there as well,
    heads in bfloat16 on a GPU. A drafter with "worker:" before it stays on the CPU.

    Several names with + between, such as "suffix+recycle", draft together, in one tree; with
    "first:" before them all the first that has a draft is taken. Those with "worker:" before them,
    such as "worker:model:a+worker:model:b", work at the same time. A folder may have a + in its
    name, see `parts_of`.

    Raises: InputError for an unknown name, a room out of range, or a corpus that is missing or not
    used, CorpusError for a bad corpus file, TokenizerMismatch for one of another tokenizer,
    ModelError for a model that cannot be loaded, WorkerError for a process that does not start.
    """
    check_drafter_name(name)
    if tokenizer_hash is not None and corpus is None:
        raise InputError("a tokenizer is given without a corpus file; expected one with --corpus")
    parts = parts_of(name)
    _check_folders(name, parts)
    given = {"corpus": corpus, "tokenizer_hash": tokenizer_hash, "verify": verify}
    shaped = {} if shape is None else {"shape": shape}
    setting = others = _Setting(share, given, chain, room, shaped, model, device)
    uses = [part.removeprefix(_WORKER) in _WITH_CORPUS for part in parts]
    if any(uses):  # else the first one refuses it
        none = {"corpus": None, "tokenizer_hash": None, "verify": False}
        others = replace(setting, corpus=none)
    made = [_made(part, setting if own else others) for part, own in zip(parts, uses, strict=True)]
    if len(made) == 1:
        return made[0]
    return drafters.MergeDrafter(*made, rule="first" if name.startswith(_FIRST) else "union")


def with_external_drafts(drafter: Drafter[Any] | None) -> Drafter[Any]:
    """This drafter with drafts from outside in the same tree; None: nothing else is drafted."""
    if drafter is None:
        return drafters.ExternalDrafter()
    own = [drafter]
    if isinstance(drafter, drafters.MergeDrafter) and drafter.rule == "union":
        own = [*drafter.drafters]
    return drafters.MergeDrafter(*own, drafters.ExternalDrafter())


def parts_of(name: str) -> list[str]:
    """The drafters of a name with + between, without a "first:" before them. What follows a + is a
    drafter only if it is named like one: "suffix+model:./a+b" is "suffix" and "model:./a+b".
    """
    parts: list[str] = []
    for piece in name.removeprefix(_FIRST).split("+"):
        begins = piece in _ALONE or piece.startswith(_PREFIXES)
        if parts and not begins and parts[-1].removeprefix(_WORKER).startswith(_PREFIXES):
            parts[-1] += "+" + piece
        else:
            parts.append(piece)
    return parts


def _check_folders(name: str, parts: list[str]) -> None:
    """Refuse what may also be a folder's name with a + in it, where there is such a folder."""
    for at, part in enumerate(parts[:-1]):
        folder = part.removeprefix(_WORKER).partition(":")[2]
        for end in range(at + 2, len(parts) + 1) if folder else ():
            whole = "+".join([folder, *parts[at + 1 : end]])
            if os.path.exists(user_path(whole, "the drafter's folder")):  # False for a long name
                begin = _FIRST if name.startswith(_FIRST) else ""
                others = begin + "+".join([*parts[:at], *parts[at + 1 :], part])
                raise InputError(
                    f"the drafter {name!r} may mean {whole!r}, which is there, or {len(parts)} "
                    f"drafters; expected {others!r} for the drafters, or another name of the folder"
                )


def sees_target(part: str) -> bool:
    """Whether a drafter, one of `parts_of`, needs more of the target than its tokens: it works in
    the target's process only."""
    return part.partition(":")[0] in ("self", "recycle", "mtp", "eagle")


def check_drafter_name(name: str) -> None:
    """Refuse what is no drafter's name, without looking for its files.

    Raises: InputError.
    """
    parts = parts_of(name) if isinstance(name, str) else [str(name)]
    if len(parts) > 1 and "" in parts:
        raise InputError(
            f"the drafter {name!r} has a + too many; expected names with one + between, such as "
            "suffix+recycle"
        )
    if len(parts) == 1 and str(name).startswith(_FIRST):
        raise InputError(f"the drafter {name!r} is one; expected several, as in first:sam+recycle")
    for part in parts:
        own = part.removeprefix(_WORKER)
        if own and own != part and (own.startswith(_WORKER) or sees_target(own)):
            raise InputError(
                f"the drafter {part!r} cannot be a process of its own; expected one that drafts "
                "from the text alone, such as worker:model:NAME"
            )
        if own not in _ALONE and not (own or part).startswith(_PREFIXES):
            raise InputError(f"there is no drafter {own!r}; expected one of {', '.join(NAMES)}")
        kind, _, what = (own or part).partition(":")
        if (kind in _NAMING and own not in _ALONE and not what) or own == "model:NAME":
            raise InputError(f"the drafter {own or part!r} names no {_NAMING[kind]}")


def _made(part: str, setting: _Setting) -> Drafter[Any]:
    if part.removeprefix(_WORKER) not in _WITH_CORPUS and setting.corpus["corpus"] is not None:
        without = "the request's own text only" if part == "ngram" else "no corpus"
        raise InputError(f"the drafter {part!r} uses {without}; leave --corpus out")
    kind, _, what = part.partition(":")
    chained: Any = {"topk": 1} if setting.chain else {}
    match kind:  # each is imported when it is named here: the others need not load
        case "suffix":
            return drafters.SuffixDrafter(chain=setting.chain, **setting.text)
        case "sam":
            return drafters.SuffixDrafter(rule="sam", **setting.text)
        case "ngram":
            return drafters.NgramDrafter()
        case "corpus":
            return _corpus(chain=setting.chain, **setting.corpus)
        case "grammar":
            return drafters.GrammarDrafter()
        case "merge":
            return drafters.MergeDrafter(_made("suffix", setting), drafters.NgramDrafter())
        case "recycle":
            warm = user_path(what, "the drafter's file") if what else None
            return drafters.RecycleDrafter(chain=setting.chain, warm=warm, **setting.learned)
        case "model":
            return drafters.ModelDrafter(what, device=setting.device, **setting.shape)
        case "self":
            return drafters.SelfDrafter(**setting.shape)
        case "eagle":
            return drafters.EagleDrafter(what, setting.model, **setting.head, **chained)
        case "mtp":
            if setting.model is None:
                raise InputError(
                    "the drafter 'mtp' is in the target's own files, but no target is given; "
                    "expected --model, or in Python MtpDrafter(model)"
                )
            return drafters.MtpDrafter(setting.model, **setting.head, **chained)
    given: Any = setting.corpus | (setting.shape if what.startswith("model:") else {})
    return drafters.WorkerDrafter(
        what, share=setting.share, chain=setting.chain, room=setting.room, **given
    )


def _corpus(corpus: Any, **setting: Any) -> Drafter[Any]:
    if corpus is None:
        raise InputError(
            "the drafter 'corpus' has no corpus file; expected --corpus FILE, or in Python "
            "CorpusDrafter(file)"
        )
    return drafters.CorpusDrafter(corpus, **setting)
