"""Small GGUF files as lists of fields, and what can be wrong with them.

A file is written field by field, so that each of its numbers and names can be replaced by another
one: what is damaged at random rarely gets past the magic. No torch: the sanitizers run these too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind

from core.block_twin import BY_NAME, weights

WORDS = ["<|endoftext|>", *(chr(code) for code in range(97, 123)), "ab", "abc"]
WIDTH, INNER, HEADS, SHARED, HEAD, ROWS, ALIGNMENT = 256, 64, 4, 2, 16, 33, 32
_CODES = {"I": 4, "Q": 10, "f": 6, "?": 7}  # of the type of a value


@dataclass(frozen=True)
class Field:
    """Some bytes of a file.

    code    how a number is packed ("<" + code); "": text or the bytes of a tensor
    header  whether it stands in the header
    """

    raw: bytes
    code: str = ""
    header: bool = True


def number(code: str, value: float) -> Field:
    return Field(struct.pack(f"<{code}", value), code)


def text(value: str) -> list[Field]:
    return [number("Q", len(value.encode())), Field(value.encode())]


def key(name: str, value: Any) -> list[Field]:
    """A key and its value: (code, number), a string, or a list of either."""
    if isinstance(value, str):
        return [*text(name), number("I", 8), *text(value)]
    if isinstance(value, tuple):
        return [*text(name), number("I", _CODES[value[0]]), number(*value)]
    fields = [*text(name), number("I", 9)]
    if isinstance(value[0], str):
        fields += [number("I", 8), number("Q", len(value))]
        return [*fields, *(field for one in value for field in text(one))]
    fields += [number("I", _CODES[value[0][0]]), number("Q", len(value))]
    return [*fields, *(number(*one) for one in value)]


def sound(architecture: str) -> list[Field]:
    """A file of one layer that runs: "llama" with RoPE scaled as in YaRN, "gemma3", or "qwen2"."""
    rng = np.random.default_rng(1)
    keys: dict[str, Any] = {
        "block_count": ("I", 1),
        "context_length": ("I", 128),
        "embedding_length": ("I", WIDTH),
        "feed_forward_length": ("I", INNER),
        "attention.head_count": ("I", HEADS),
        "attention.head_count_kv": [("I", SHARED)],
        "attention.key_length": ("I", HEAD),
        "attention.value_length": ("I", HEAD),
        "attention.layer_norm_rms_epsilon": ("f", 1e-5),
        "rope.freq_base": ("f", 5000.0),
    }
    if architecture == "llama":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": ("f", 4.0),
            "rope.scaling.original_context_length": ("I", 64),
        }
    if architecture == "gemma3":
        keys |= {
            "attention.sliding_window": ("I", 2),
            "rope.freq_base_swa": ("f", 1000.0),
            "final_logit_softcapping": ("f", 20.0),
        }
    fields = key("general.architecture", architecture)
    for name, value in keys.items():
        fields += key(f"{architecture}.{name}", value)
    for name, value in {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": WORDS,
        "token_type": [("I", 3 if word == WORDS[0] else 1) for word in WORDS],
        "merges": ["a b", "ab c"],
        "bos_token_id": ("I", 0),
        "add_bos_token": ("?", False),
    }.items():
        fields += key(f"tokenizer.ggml.{name}", value)
    tensors = _tensors(architecture)
    parts: list[bytes] = []
    place = 0
    infos: list[Field] = []
    for name, (shape, kind) in tensors.items():
        raw = _bytes(rng, shape, kind)
        infos += [*text(name), number("I", len(shape))]
        infos += [number("Q", size) for size in reversed(shape)]
        infos += [number("I", Kind[kind]), number("Q", place)]
        parts.append(raw + b"\0" * (-len(raw) % ALIGNMENT))
        place += len(parts[-1])
    count = 7 + 1 + len(keys)
    head = [Field(b"GGUF"), number("I", 3), number("Q", len(tensors)), number("Q", count)]
    header = [*head, *fields, *infos]
    size = sum(len(field.raw) for field in header)
    padding = Field(b"\0" * (-size % ALIGNMENT), header=False)
    return [*header, padding, *(Field(raw, header=False) for raw in parts)]


def _tensors(architecture: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Between them the files have every format."""
    names = {
        "llama": ("Q6_K", "Q4_K", "Q5_K", "Q4_1", "Q5_0", "Q4_0", "Q5_1", "Q8_0"),
        "gemma3": ("F16", "F32", "BF16", "F16", "Q8_0", "BF16", "F16", "F32"),
        "qwen2": ("Q4_1", "Q8_0", "Q4_0", "Q6_K", "Q5_1", "Q4_K", "Q4_1", "Q5_K"),
    }[architecture]
    queries, keys = HEADS * HEAD, SHARED * HEAD
    here = "blk.0"
    found: dict[str, tuple[tuple[int, ...], str]] = {
        "token_embd.weight": ((ROWS, WIDTH), names[0]),
        f"{here}.attn_q.weight": ((queries, WIDTH), names[1]),
        f"{here}.attn_k.weight": ((keys, WIDTH), names[2]),
        f"{here}.attn_v.weight": ((keys, WIDTH), names[3]),
        f"{here}.attn_output.weight": ((WIDTH, queries), names[4]),
        f"{here}.ffn_gate.weight": ((INNER, WIDTH), names[5]),
        f"{here}.ffn_up.weight": ((INNER, WIDTH), names[5]),
        f"{here}.ffn_down.weight": ((WIDTH, INNER), names[6]),
        "output.weight": ((ROWS, WIDTH), names[7]),
        "output_norm.weight": ((WIDTH,), "F32"),
        f"{here}.attn_norm.weight": ((WIDTH,), "F32"),
        f"{here}.ffn_norm.weight": ((WIDTH,), "F16"),
    }
    if architecture == "gemma3":
        for name in ("post_attention_norm", "post_ffw_norm"):
            found[f"{here}.{name}.weight"] = ((WIDTH,), "F32")
        for part in "qk":
            found[f"{here}.attn_{part}_norm.weight"] = ((HEAD,), "F32")
    if architecture == "qwen2":
        for part, size in (("q", queries), ("k", keys), ("v", keys)):
            found[f"{here}.attn_{part}.bias"] = ((size,), "F32")
    return found


def _bytes(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> bytes:
    if len(shape) == 1:
        return rng.standard_normal(shape).astype({"F32": "<f4", "F16": "<f2"}[kind]).tobytes()
    return weights(rng, BY_NAME[kind], *shape).tobytes()


# --- what can be wrong -----------------------------------------------------------------------

_WHOLE = (0, 1, 2, 3, 7, 8, 31, 32, 63, 255, 256, 4095, 4096, 4097, 65536, 2**24, 2**31 - 1, 2**31)
_WIDE = (2**32 - 1, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)
_REAL = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 1e-6, 0.5, 1e29, 3e38, float("inf"), float("nan"))
_TEXTS = ("", "x", "a", "gpt2", "llama", "linear", "none", "longrope", "\0", "é", "x" * 300)


def other_number(field: Field, chosen: Random) -> Field:
    if field.code == "f":
        return number("f", chosen.choice(_REAL))
    if field.code == "?":
        return replace(field, raw=bytes([chosen.randrange(256)]))
    (value,) = struct.unpack(f"<{field.code}", field.raw)
    near = (value + 1, value - 1, value * 2, value // 2, value ^ 1 << chosen.randrange(8))
    most = 2 ** (8 * len(field.raw)) - 1
    few = chosen.random() < 0.5
    return number(field.code, min(max(chosen.choice(near if few else _WHOLE + _WIDE), 0), most))


def other_bytes(field: Field, chosen: Random) -> Field:
    """A few bytes, or a run of them, as scales that are no numbers need it."""
    raw, size = bytearray(field.raw), len(field.raw)
    for _ in range(chosen.randrange(1, 5)):
        at, run = chosen.randrange(size), chosen.choice((1, 1, 2, 8, 64))
        raw[at : at + run] = bytes([chosen.choice((0, 0x7C, 0x7F, 0x80, 0xFF))]) * run
    return replace(field, raw=bytes(raw[:size]))


def mutated(fields: list[Field], chosen: Random) -> bytes:
    """The file with one to three things wrong."""
    fields = list(fields)
    numbers = [i for i, field in enumerate(fields) if field.code]
    names = [i for i, field in enumerate(fields) if field.header and not field.code]
    data = [i for i, field in enumerate(fields) if not field.header and len(field.raw) > ALIGNMENT]
    changes: list[Callable[[], None]] = []

    def number_of_field() -> None:
        at = chosen.choice(numbers)
        fields[at] = other_number(fields[at], chosen)

    def one_type() -> None:  # of a key or a tensor, or a small count
        at = chosen.choice([i for i in numbers if fields[i].code == "I"])
        fields[at] = number("I", chosen.randrange(40))

    def name_of_field() -> None:
        at = chosen.choice(names)
        fields[at] = replace(fields[at], raw=chosen.choice(_TEXTS).encode())
        if at and fields[at - 1].code == "Q" and chosen.random() < 0.8:
            fields[at - 1] = number("Q", len(fields[at].raw))

    def values() -> None:
        at = chosen.choice(data)
        fields[at] = other_bytes(fields[at], chosen)

    def exchange() -> None:
        first, second = chosen.choice(numbers), chosen.choice(numbers)
        fields[first], fields[second] = fields[second], fields[first]

    def loss() -> None:
        del fields[chosen.randrange(len(fields))]

    changes += [number_of_field] * 4 + [one_type] * 2 + [name_of_field, values, values, exchange]
    for _ in range(chosen.choice((1, 1, 1, 2, 3))):
        chosen.choice([*changes, loss] if len(fields) > 50 else changes)()
        numbers = [i for i, field in enumerate(fields) if field.code]
        names = [i for i, field in enumerate(fields) if field.header and not field.code]
        data = [i for i, f in enumerate(fields) if not f.header and len(f.raw) > ALIGNMENT]
    raw = bytearray(b"".join(field.raw for field in fields))
    if chosen.random() < 0.1:  # anywhere, whatever it means
        for _ in range(chosen.randrange(1, 4)):
            raw[chosen.randrange(len(raw))] = chosen.randrange(256)
    if chosen.random() < 0.1:
        del raw[chosen.randrange(len(raw)) :]
    return bytes(raw)
