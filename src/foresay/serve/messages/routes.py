"""The routes of /v1/messages."""

from __future__ import annotations

from collections.abc import Callable

from foresay.serve.answer import Shape
from foresay.serve.limits import Refused
from foresay.serve.messages.schema import CountBody, InputTokens, MessageBody
from foresay.serve.messages.shape import MessageShape
from foresay.serve.messages.translate import TERMS, chat_of
from foresay.serve.schema import Chat
from foresay.serve.validate import GenerationRequest

__all__ = ["MessageRoutes"]


class MessageRoutes:
    """What the routes need.

    validated  the generation request of a chat
    shape      the shape of its answer
    name       the model's name for clients
    """

    def __init__(
        self,
        validated: Callable[[Chat], GenerationRequest],
        shape: Callable[[GenerationRequest], Shape],
        name: str,
    ) -> None:
        self._validated = validated
        self._shape = shape
        self._name = name

    def read(self, body: MessageBody) -> MessageShape:
        """The chat that a request asks for, with the shape of its message. It takes time.

        Raises: Refused.
        """
        chat = self._shape(self._chat(body, body.max_tokens))
        return MessageShape(chat, body, self._name)

    def count(self, body: CountBody) -> InputTokens:
        """How many tokens the messages have, in the model's chat template. It takes time.

        Raises: Refused.
        """
        return InputTokens(len(self._chat(body, 1).prompts[0]))

    def _chat(self, body: CountBody, most: int) -> GenerationRequest:
        try:
            return self._validated(chat_of(body, most))
        except Refused as error:
            raise error.in_terms(TERMS) from error
