"""The routes of /v1/messages."""

from __future__ import annotations

from collections.abc import Callable

from foresay.serve.answer import Shape
from foresay.serve.limits import Limits
from foresay.serve.messages.schema import CountBody, InputTokens, MessageBody
from foresay.serve.messages.shape import MessageShape
from foresay.serve.messages.translate import NAMES, chat_of, tools_of
from foresay.serve.validate import GenerationRequest, Validator

__all__ = ["MessageRoutes"]


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
        limits: Limits,
        name: str,
    ) -> None:
        self._validator = validator
        self._shape = shape
        self._limits = limits
        self._name = name

    def read(self, body: MessageBody) -> MessageShape:
        """The chat that a request asks for, with the shape of its message. It takes time.

        Raises: Refused.
        """
        use = tools_of(body, self._limits)
        chat = self._shape(
            self._validator.chat(chat_of(body, body.max_tokens), use, NAMES, fit=True)
        )
        return MessageShape(chat, body, self._name)

    def count(self, body: CountBody) -> InputTokens:
        """How many tokens the messages have, in the model's chat template, also if they are too
        many for an answer. It takes time.

        Raises: Refused.
        """
        use = tools_of(body, self._limits)
        return InputTokens(self._validator.count(chat_of(body, 1), use, NAMES))
