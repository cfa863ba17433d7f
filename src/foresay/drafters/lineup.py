"""The drafters by name, for command lines and for `LLM`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foresay.arrays import user_path
from foresay.drafter import Drafter
from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay.drafters.decoding.shapes import ShapeLike

__all__ = [
    "NAMES",
    "Room",
    "Share",
    "check_name",
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
    "recycle": "Token Recycling: what the target found likely before",
    "recycle:FILE": "the same, beginning with a file of RecycleDrafter.save (for no tenant)",
    "model:NAME": "a smaller model of the same tokenizer, named as for --model",
    "self": "some of the target's own layers",
    "eagle:FOLDER": "a head over the model's features, as `foresay train eagle` writes it",
    "mtp": "the multi-token-prediction head that the target's own files have",
    "worker:NAME": "one of these in a process of its own, such as worker:model:NAME",
    "first:NAME+NAME": "the draft of the first that has one; first:sam+recycle: SAM-Decoding's way",
}

_MODEL, _EAGLE, _RECYCLE, _WORKER, _MTP = "model:", "eagle:", "recycle:", "worker:", "mtp"
_FIRST = "first:"
_NAMING = (_MODEL, _EAGLE, _RECYCLE)  # a file, folder or model follows, which may have a + in it
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
    share: Share
    corpus: str | Path | None
    tokenizer_hash: bytes | None
    verify: bool
    chain: bool
    room: dict[str, Any]
    shape: dict[str, Any]


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

    Several names with + between, such as "suffix+recycle", draft together, in one tree; with
    "first:" before them all the first that has a draft is taken. Those with "worker:" before them,
    such as "worker:model:a+worker:model:b", work at the same time. A folder may have a + in its
    name, see `parts_of`.

    Raises: InputError for an unknown name, a room out of range, or a corpus that is missing or not
    used, CorpusError for a bad corpus file, TokenizerMismatch for one of another tokenizer,
    ModelError for a model that cannot be loaded, WorkerError for a process that does not start.
    """
    check_name(name)
    if tokenizer_hash is not None and corpus is None:
        raise InputError("a tokenizer is given without a corpus file; expected one with --corpus")
    kept = {} if room is None else asdict(room)
    shaped = {} if shape is None else {"shape": shape}
    setting = _Setting(share, corpus, tokenizer_hash, verify, chain, kept, shaped)
    parts = parts_of(name)
    _check_folders(name, parts)
    with_corpus = [part.removeprefix(_WORKER) in _WITH_CORPUS for part in parts]
    if len(parts) == 1 or not any(with_corpus):
        made = [_made(part, setting, model) for part in parts]
    else:
        without = replace(setting, corpus=None, tokenizer_hash=None, verify=False)
        made = [
            _made(part, setting if uses else without, model)
            for part, uses in zip(parts, with_corpus, strict=True)
        ]
    if len(made) == 1:
        return made[0]
    from foresay.drafters.merge import MergeDrafter

    return MergeDrafter(*made, rule="first" if name.startswith(_FIRST) else "union")


def with_external_drafts(drafter: Drafter[Any] | None) -> Drafter[Any]:
    """This drafter with drafts from outside in the same tree; None: nothing else is drafted."""
    from foresay.drafters.external import ExternalDrafter
    from foresay.drafters.merge import MergeDrafter

    if drafter is None:
        return ExternalDrafter()
    if isinstance(drafter, MergeDrafter) and drafter.rule == "union":
        return MergeDrafter(*drafter.drafters, ExternalDrafter())
    return MergeDrafter(drafter, ExternalDrafter())


def _made(name: str, setting: _Setting, model: Any) -> Drafter[Any]:
    if name.startswith(_MODEL):
        return _model(name.removeprefix(_MODEL), setting)
    if name.startswith(_WORKER):
        return _worker(name.removeprefix(_WORKER), setting)
    if name.startswith(_RECYCLE):
        return _recycle(setting, name.removeprefix(_RECYCLE))
    if name.startswith(_EAGLE):
        return _eagle(name.removeprefix(_EAGLE), setting, model)
    if name == _MTP:
        return _mtp(setting, model)
    return _MAKERS[name](setting)


def parts_of(name: str) -> list[str]:
    """The drafters of a name with + between, without a "first:" before them. What follows a + is a
    drafter only if it is named like one: "suffix+model:./a+b" is "suffix" and "model:./a+b".
    """
    parts: list[str] = []
    for piece in name.removeprefix(_FIRST).split("+"):
        begins = piece in (*_MAKERS, _MTP) or piece.startswith((*_NAMING, _WORKER))
        if parts and not begins and parts[-1].removeprefix(_WORKER).startswith(_NAMING):
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
    return part in ("self", "recycle", _MTP) or part.startswith((_EAGLE, _RECYCLE))


def check_name(name: str) -> None:
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
        if part == _WORKER:
            raise InputError(f"the drafter {part!r} names no drafter; expected worker:model:NAME")
        if part.startswith(_WORKER):
            part = part.removeprefix(_WORKER)
            if not part or part.startswith(_WORKER) or sees_target(part):
                raise InputError(
                    f"the drafter {_WORKER + part!r} cannot be a process of its own; expected one "
                    "that drafts from the text alone, such as worker:model:NAME"
                )
        if part not in (*_MAKERS, _MTP) and not part.startswith(_NAMING):
            raise InputError(f"there is no drafter {part!r}; expected one of {', '.join(NAMES)}")
        if part in (_MODEL, "model:NAME"):
            raise InputError(
                f"the drafter {part!r} names no model; expected model:NAME with a folder, a .gguf "
                "file or a hub model org/name"
            )
        if part == _EAGLE:
            raise InputError(f"the drafter {part!r} names no folder; expected eagle:FOLDER")
        if part == _RECYCLE:
            raise InputError(f"the drafter {part!r} names no file; expected recycle:FILE")


# Each imports its own drafter, so the others need not load.


def _suffix(setting: _Setting) -> Drafter[Any]:
    from foresay.drafters.suffix import SuffixDrafter

    return SuffixDrafter(
        history=setting.share == "all",
        corpus=setting.corpus,
        tokenizer_hash=setting.tokenizer_hash,
        verify=setting.verify,
        chain=setting.chain,
        **setting.room,
    )


def _sam(setting: _Setting) -> Drafter[Any]:
    from foresay.drafters.suffix import SuffixDrafter

    return SuffixDrafter(
        history=setting.share == "all",
        corpus=setting.corpus,
        tokenizer_hash=setting.tokenizer_hash,
        verify=setting.verify,
        rule="sam",
        **setting.room,
    )


def _ngram(setting: _Setting) -> Drafter[Any]:
    if setting.corpus is not None:
        raise InputError("the drafter 'ngram' uses the request's own text only; leave --corpus out")
    from foresay.drafters.ngram import NgramDrafter

    return NgramDrafter()


def _corpus(setting: _Setting) -> Drafter[Any]:
    if setting.corpus is None:
        raise InputError(
            "the drafter 'corpus' has no corpus file; expected --corpus FILE, or in Python "
            "CorpusDrafter(file)"
        )
    from foresay.drafters.corpus import CorpusDrafter

    return CorpusDrafter(
        setting.corpus,
        tokenizer_hash=setting.tokenizer_hash,
        verify=setting.verify,
        chain=setting.chain,
    )


def _merge(setting: _Setting) -> Drafter[Any]:
    from foresay.drafters.merge import MergeDrafter
    from foresay.drafters.ngram import NgramDrafter

    return MergeDrafter(_suffix(setting), NgramDrafter())


def _recycle(setting: _Setting, warm: str | None = None) -> Drafter[Any]:
    if setting.corpus is not None:
        raise InputError("the drafter 'recycle' uses no corpus; leave --corpus out")
    from foresay.drafters.recycle import RecycleDrafter

    file = None if warm is None else user_path(warm, "the drafter's file")
    room = setting.room
    if not room:
        return RecycleDrafter(chain=setting.chain, warm=file)
    return RecycleDrafter(
        memory=room["history_bytes"],
        max_tenants=room["max_tenants"],
        chain=setting.chain,
        warm=file,
    )


def _model(name: str, setting: _Setting) -> Drafter[Any]:
    if setting.corpus is not None:
        raise InputError(f"the drafter 'model:{name}' uses no corpus; leave --corpus out")
    from foresay.drafters.model import ModelDrafter

    return ModelDrafter(name, **setting.shape)


def _worker(name: str, setting: _Setting) -> Drafter[Any]:
    from foresay.drafters.worker import WorkerDrafter

    return WorkerDrafter(
        name,
        share=setting.share,
        corpus=setting.corpus,
        tokenizer_hash=setting.tokenizer_hash,
        verify=setting.verify,
        chain=setting.chain,
        room=Room(**setting.room) if setting.room else None,
        **(setting.shape if name.startswith(_MODEL) else {}),
    )


def _self(setting: _Setting) -> Drafter[Any]:
    if setting.corpus is not None:
        raise InputError("the drafter 'self' uses no corpus; leave --corpus out")
    from foresay.drafters.self_draft import SelfDrafter

    return SelfDrafter(**setting.shape)


def _eagle(folder: str, setting: _Setting, model: Any) -> Drafter[Any]:
    if setting.corpus is not None:
        raise InputError(f"the drafter 'eagle:{folder}' uses no corpus; leave --corpus out")
    from foresay.drafters.eagle import EagleDrafter

    return EagleDrafter(folder, model, topk=1) if setting.chain else EagleDrafter(folder, model)


def _mtp(setting: _Setting, model: Any) -> Drafter[Any]:
    if setting.corpus is not None:
        raise InputError("the drafter 'mtp' uses no corpus; leave --corpus out")
    if model is None:
        raise InputError(
            "the drafter 'mtp' is in the target's own files, but no target is given; expected "
            "--model, or in Python MtpDrafter(model)"
        )
    from foresay.drafters.mtp import MtpDrafter

    return MtpDrafter(model, topk=1) if setting.chain else MtpDrafter(model)


_MAKERS: dict[str, Callable[[_Setting], Drafter[Any]]] = {
    "suffix": _suffix,
    "sam": _sam,
    "ngram": _ngram,
    "corpus": _corpus,
    "merge": _merge,
    "recycle": _recycle,
    "self": _self,
}
