"""The JSON bodies of requests, parsed strictly.

An unknown field is ignored, and logged once by its name: clients send many. A known field, of this
route or of another, that the server cannot honour is refused by name: a wrong answer would be worse
than none. docs/server.md lists all of them.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import msgspec

from foresay.serve.limits import Refused
from foresay.serve.messages.schema import MessageBody
from foresay.serve.responses.schema import ResponseBody
from foresay.serve.schema import Chat, Completion
from foresay.serve.wrong import refused, short

__all__ = ["ELSEWHERE", "UNSUPPORTED", "parse_body"]

T = TypeVar("T", bound=msgspec.Struct)
_log = logging.getLogger("foresay.serve")
_seen: set[str] = set()
_MOST_SEEN = 256  # names that are logged: a client must not fill the log

_NOTHING: tuple[Any, ...] = (None, False, [], {}, "")

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            *("allowed_token_ids", "audio", "bad_words", "cache_salt", "chat_template"),
            *("chat_template_kwargs", "continue_final_message", "documents", "functions"),
            *("grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex"),
            *("include_stop_str_in_output", "kv_transfer_params", "logits_processors"),
            *("prediction", "prompt_embeds", "suffix"),
            *("truncate_prompt_tokens", "use_beam_search", "web_search_options"),
        ),
        _NOTHING,
    ),
    "function_call": (*_NOTHING, "none", "auto"),
    "modalities": (*_NOTHING, ["text"]),
    "prompt_logprobs": (None,),
    "length_penalty": (*_NOTHING, 1),
    "skip_special_tokens": (None, True),
    "add_generation_prompt": (None, True),
    "reasoning_effort": (*_NOTHING, "none"),
    "verbosity": (*_NOTHING, "medium"),
}
"""Fields of other servers that change the answer, with the values that change nothing. (Log
probabilities of prompts are supported, but not under vLLM's name: see `_INSTEAD`.)
"""

_SAMPLING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("structured_outputs", "logit_bias", "stop_token_ids"), _NOTHING),
    **dict.fromkeys(("ignore_eos", "logprobs", "processor_order"), _NOTHING),
    "response_format": (*_NOTHING, {"type": "text"}),
    "min_tokens": (None, 0),
    "n": (None, 1),
    "speculative": (None, True),
}

ELSEWHERE: dict[type[msgspec.Struct], dict[str, tuple[Any, ...]]] = {
    Completion: {
        "messages": _NOTHING,
        "top_logprobs": _NOTHING,
        "add_special_tokens": (None, True),
        "tools": _NOTHING,
        "tool_choice": (*_NOTHING, "none", "auto"),
    },
    Chat: {
        "prompt": _NOTHING,
        "echo": _NOTHING,
        "best_of": (None, 1),
        "add_special_tokens": (None, False),  # the template has them
    },
    ResponseBody: {
        **dict.fromkeys(("messages", "prompt", "conversation", "stop"), _NOTHING),
        **dict.fromkeys(("max_tokens", "max_completion_tokens"), (None,)),
        **_SAMPLING,
    },
    MessageBody: {
        **dict.fromkeys(("prompt", "stop", "container", "mcp_servers", "thread"), _NOTHING),
        **dict.fromkeys(("min_p", "presence_penalty", "frequency_penalty"), (None, 0)),
        "max_completion_tokens": (None,),
        "repetition_penalty": (None, 1),
        **_SAMPLING,
    },
}
"""Likewise, fields that only another route has."""

_INSTEAD = {
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar"),
        "use structured_outputs",
    ),
    **dict.fromkeys(("functions", "function_call"), "use tools and tool_choice"),
    **dict.fromkeys(
        ("max_completion_tokens", "response_format", "n", "stop", "structured_outputs"),
        "it is a field of /v1/chat/completions",
    ),
    **dict.fromkeys(
        ("logit_bias", "stop_token_ids", "ignore_eos", "logprobs", "processor_order", "min_tokens"),
        "it is a field of /v1/chat/completions",
    ),
    **dict.fromkeys(
        ("speculative", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        "it is a field of /v1/chat/completions",
    ),
    "max_tokens": "use max_output_tokens",
    **dict.fromkeys(("tools", "tool_choice"), "they are fields of /v1/chat/completions"),
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
                shown = short(bytes(given[name]).decode("utf-8", "backslashreplace"))
                why = _INSTEAD.get(name, "this server does not support it")
                raise Refused(
                    400,
                    f"{name} is {shown}; {why}; leave it out",
                    param=name,
                    code="unsupported_parameter",
                )
    except msgspec.ValidationError as error:
        raise refused(error, body, kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body is not valid JSON: {short(str(error))}") from error
    return value


def _log_once(name: str) -> None:
    if name not in _seen and len(_seen) < _MOST_SEEN:
        _seen.add(name)
        _log.info("a client sent the unknown field %s, which is ignored", ascii(name[:64]))
