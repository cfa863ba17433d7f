"""Errors in the shape of /v1/messages."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from foresay.serve.answer import error_body
from foresay.serve.answer_schema import Answer
from foresay.serve.limits import Refused

__all__ = ["PATH", "MessageError", "MessageErrorFacts", "Unthreaded", "message_error"]

PATH = "/v1/messages"
"""Requests whose paths begin like this get their errors in this shape."""

_KINDS = {404: "not_found_error", 413: "request_too_large"}


class Unthreaded(Answer):
    """That the server keeps no conversations: clients send all messages again."""

    error_code: Literal["thread_unsupported_request"]
    unsupported: list[str]


class MessageErrorFacts(Answer):
    """What is wrong."""

    type: str
    message: str
    details: Unthreaded | UnsetType = UNSET


class MessageError(Answer, tag_field="type", tag="error"):
    """The body of a refusal, and the event of a stream that fails."""

    error: MessageErrorFacts


def message_error(refused: Refused) -> MessageError:
    """The body of an error."""
    kind = _KINDS.get(refused.status, refused.kind)
    message = error_body(refused).error.message
    if refused.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # by which Anthropic's clients know it
    facts = MessageErrorFacts(kind, message)
    if refused.param == "thread":
        facts.details = Unthreaded("thread_unsupported_request", ["thread"])
    return MessageError(facts)
