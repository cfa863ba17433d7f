"""The JSON bodies of requests, parsed strictly.

An unknown field is ignored, and logged once by its name: clients send many. A known field, of this
route or of another, that the server cannot honour is refused by name: a wrong answer would be worse
than none. docs/server.md lists all of them.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Literal, TypeVar

import msgspec

from foresay.serve.limits import Refused

__all__ = [
    "Chat",
    "ChatMessage",
    "Completion",
    "Content",
    "Detokenize",
    "Sampling",
    "StreamOptions",
    "Tokenize",
    "parse_body",
]

T = TypeVar("T", bound=msgspec.Struct)
_log = logging.getLogger("foresay.serve")
_seen: set[str] = set()
_MOST_SEEN = 256  # names that are logged: a client must not fill the log
_AT = re.compile(r"^(?P<what>.*) - at `(?P<key>key in )?`?\$(?P<path>.*?)`$")


class StreamOptions(msgspec.Struct, frozen=True):
    """Whether a stream has the usage: at its end, and in every chunk."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Sampling(msgspec.Struct, kw_only=True, frozen=True):
    """The fields that completions and chats have in common. null is the same as absent."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    processor_order: list[str] | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_granularity: Literal["token", "commit"] | None = None
    return_token_ids: bool | None = None
    spec_details: bool | None = None
    user: str | None = None


class Completion(Sampling, kw_only=True, frozen=True):
    """The body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None


class Content(msgspec.Struct, frozen=True):
    """A part of a message; only texts are read, and no URL is ever opened."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a conversation."""

    role: str
    content: str | list[Content] | None = None
    tool_calls: list[Any] | None = None


class Chat(Sampling, kw_only=True, frozen=True):
    """The body of /v1/chat/completions."""

    messages: list[ChatMessage]
    logprobs: bool | None = None
    top_logprobs: int | None = None


class Tokenize(msgspec.Struct, frozen=True):
    """The body of /tokenize: a text, or messages."""

    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    model: str | None = None
    add_special_tokens: bool | None = True
    return_token_strs: bool | None = False


class Detokenize(msgspec.Struct, frozen=True):
    """The body of /detokenize."""

    tokens: list[int]
    model: str | None = None


_NOTHING: tuple[Any, ...] = (None, False, [], {}, "")

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "suffix": _NOTHING,
    "tools": _NOTHING,
    "tool_choice": (*_NOTHING, "none", "auto"),
    "functions": _NOTHING,
    "function_call": (*_NOTHING, "none", "auto"),
    "response_format": (*_NOTHING, {"type": "text"}),
    "modalities": (*_NOTHING, ["text"]),
    "audio": _NOTHING,
    "prediction": _NOTHING,
    "web_search_options": _NOTHING,
    "prompt_embeds": _NOTHING,
    "prompt_logprobs": (None,),
    "use_beam_search": _NOTHING,
    "length_penalty": (*_NOTHING, 1),
    "bad_words": _NOTHING,
    "allowed_token_ids": _NOTHING,
    "truncate_prompt_tokens": _NOTHING,
    "include_stop_str_in_output": _NOTHING,
    "skip_special_tokens": (None, True),
    "chat_template": _NOTHING,
    "chat_template_kwargs": _NOTHING,
    "add_generation_prompt": (None, True),
    "continue_final_message": _NOTHING,
    "documents": _NOTHING,
    "cache_salt": _NOTHING,
    "structured_outputs": _NOTHING,
    "guided_json": _NOTHING,
    "guided_regex": _NOTHING,
    "guided_choice": _NOTHING,
    "guided_grammar": _NOTHING,
    "grammar": _NOTHING,
    "logits_processors": _NOTHING,
    "reasoning_effort": (*_NOTHING, "none"),
    "verbosity": (*_NOTHING, "medium"),
    "kv_transfer_params": _NOTHING,
}
"""Fields of other servers that change the answer, with the values that change nothing. (Log
probabilities of prompts are supported, but not under vLLM's name: see `_INSTEAD`.)
"""

ELSEWHERE: dict[type[msgspec.Struct], dict[str, tuple[Any, ...]]] = {
    Completion: {
        "messages": _NOTHING,
        "top_logprobs": _NOTHING,
        "add_special_tokens": (None, True),
    },
    Chat: {
        "prompt": _NOTHING,
        "echo": _NOTHING,
        "best_of": (None, 1),
        "add_special_tokens": (None, False),  # the template has them
    },
}
"""Likewise, fields that only another route has."""

_INSTEAD = {
    "messages": "they are a field of /v1/chat/completions",
    "prompt": "it is a field of /v1/completions",
    "top_logprobs": "use logprobs, which is their number here",
    "prompt_logprobs": "/v1/completions has them with echo: true and logprobs",
}


def parse_body(body: bytes, kind: type[T]) -> T:
    """Parse a body; refuse known fields that cannot be honoured.

    Raises: Refused.
    """
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        value = msgspec.json.decode(body, type=kind)
        known = {field.encode_name for field in msgspec.structs.fields(kind)}
        harmless = UNSUPPORTED | ELSEWHERE.get(kind, {})
        for name in given.keys() - known:
            if name not in harmless:
                _log_once(name)
            elif msgspec.json.decode(given[name]) not in harmless[name]:
                why = _INSTEAD.get(name, "this server does not support it")
                raise Refused(
                    400,
                    f"{name} is {_short(bytes(given[name]))}; {why}; leave it out",
                    param=name,
                    code="unsupported_parameter",
                )
    except msgspec.ValidationError as error:
        raise _wrong(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body is not valid JSON: {_short(str(error).encode())}") from error
    return value


def _log_once(name: str) -> None:
    if name not in _seen and len(_seen) < _MOST_SEEN:
        _seen.add(name)
        _log.info("a client sent the unknown field %s, which is ignored", ascii(name[:64]))


def _wrong(error: msgspec.ValidationError) -> Refused:
    """msgspec's message with the name of the field before it."""
    said = str(error)
    found = _AT.match(said)
    if found is None:
        missing = re.search(r"missing required field `(\w+)`", said)
        return Refused(
            400,
            f"the body is not valid: {said}",
            param=missing.group(1) if missing else None,
        )
    path = found["path"].lstrip(".") or "the body"
    param = re.split(r"[.\[]", path)[0]
    return Refused(400, f"{path} is not valid: {found['what']}", param=param)


def _short(text: bytes) -> str:
    shown = text.decode("utf-8", "backslashreplace")
    return shown if len(shown) <= 100 else shown[:99] + "…"
