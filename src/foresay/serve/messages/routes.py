"""The routes of /v1/messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from foresay.serve.answer import Shape
from foresay.serve.limits import Refused
from foresay.serve.messages.schema import CountBody, InputTokens, MessageBody
from foresay.serve.messages.shape import MessageShape
from foresay.serve.messages.translate import TERMS, chat_of
from foresay.serve.schema import Chat
from foresay.serve.validate import GenerationRequest, Validator

__all__ = ["MessageRoutes"]

T = TypeVar("T")


class MessageRoutes:
    """What the routes need.

    validator  makes the generation request of a chat
    shape      the shape of its answer
    name       the model's name for clients
    """

    def __init__(
        self,
        validator: Validator,
        shape: Callable[[GenerationRequest], Shape],
        name: str,
    ) -> None:
        self._validator = validator
        self._shape = shape
        self._name = name

    def read(self, body: MessageBody) -> MessageShape:
        """The chat that a request asks for, with the shape of its message. It takes time.

        Raises: Refused.
        """
        validated = partial(self._validator.chat, fit=True)
        chat = self._shape(_asked(validated, body, body.max_tokens))
        return MessageShape(chat, body, self._name)

    def count(self, body: CountBody) -> InputTokens:
        """How many tokens the messages have, in the model's chat template, also if they are too
        many for an answer. It takes time.

        Raises: Refused.
        """
        return InputTokens(_asked(self._validator.count, body, 1))


def _asked(ask: Callable[[Chat], T], body: CountBody, most: int) -> T:
    try:
        return ask(chat_of(body, most))
    except Refused as error:
        raise error.in_terms(TERMS) from error
