"""What one model's chat template knows: roles, tools, reasoning; and prompts written with it."""

from __future__ import annotations

from collections.abc import Sequence

from foresay.errors import InputError
from foresay.models.tokenizer import Tokenizer
from foresay.serve.chat.answers import ChatForm
from foresay.serve.chat.formats import format_of
from foresay.serve.chat.grammar import outputs_of
from foresay.serve.chat.messages import (
    in_turns,
    messages_of,
    roles_of,
    with_text_arguments,
    without_tools,
)
from foresay.serve.chat.reasoning import begin_of, markers_of
from foresay.serve.chat.structure import Structured
from foresay.serve.chat.tools import ToolUse
from foresay.serve.limits import Refused
from foresay.serve.schema import ChatMessage
from foresay.structured.grammars import Grammars

__all__ = ["Templates"]


class Templates:
    """The chat template of a tokenizer.

    grammars     of the same model
    tool_format  the name of a format of calls, or "auto": what the template has
    reasoning    the name of the markers around reasoning, "none", or "auto"

    Raises: InputError for an unknown name.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        grammars: Grammars,
        tool_format: str = "auto",
        reasoning: str = "auto",
    ) -> None:
        self._tokenizer = tokenizer
        self._grammars = grammars
        template = tokenizer.facts()["chat_template"] or ""
        self.format = format_of(template, tool_format)
        self.markers = markers_of(template, reasoning)
        known = any(role in template for role in ("'developer'", '"developer"'))
        self.developer = "developer" if known else "system"
        """The role of developer messages in the template: "system", unless it knows them."""
        self.roles = roles_of(template)
        """The roles that a message may have."""
        self._shows_tools = self.format.name != "json" and "tools" in template
        self._shows_calls = "tool_calls" in template

    def render(
        self, messages: Sequence[ChatMessage], use: ToolUse | None, name: str = "messages"
    ) -> str:
        """The prompt: messages and tools, up to where the model's answer begins. Messages that the
        template refuses are given to it in the forms that some templates want. `name` is what
        refusals call the messages.

        Raises: Refused.
        """
        given = messages_of(messages, self.developer, self.roles, self.format.id_size)
        tools = [] if use is None else list(use.tools)
        if not (self._shows_tools and self._shows_calls):
            told = [] if self._shows_tools else tools
            given = without_tools(given, told, self.format, calls=not self._shows_calls)
        definitions = [tool.definition for tool in tools] if self._shows_tools else []
        forms = [given, in_turns(given), in_turns(given, system=False)]
        if any("tool_calls" in one for one in given):
            forms = [one for form in forms for one in (form, with_text_arguments(form))]
        refusals: list[InputError] = []
        for form in forms:
            try:
                return self._tokenizer.render(form, definitions)
            except InputError as error:
                refusals.append(error)
        # The first one is of the messages as they are, and says more.
        raise Refused(400, str(refusals[0]), param=name) from refusals[0]

    def form_of(
        self, prompt: str, use: ToolUse | None, content: Structured | None
    ) -> tuple[Structured | None, ChatForm]:
        """The form of the answers to a prompt, and what they may hold beside content.

        content  the form that was asked for

        Raises: Refused.
        """
        begin = begin_of(prompt, self.markers)
        markers = None if begin == "none" else self.markers
        marks = "" if markers is None else f"{markers.opening} {markers.closing}"
        if use is not None:
            marks += f" {self.format.opening} {self.format.between} {self.format.end}"
        tokens = {text: token for text, token in self._tokenizer.added.items() if text in marks}
        name = "tools" if content is None else content.name
        asked = None if content is None else content.outputs
        try:
            given = tokens.values() if use or content else ()
            numbered = self._grammars.numbered(given, name) if given else set[int]()
            control = {text: token for text, token in tokens.items() if token in numbered}
            outputs = outputs_of(asked, use, self.format, markers, begin, control)
        except InputError as error:
            raise Refused(400, str(error), param=name) from error
        except ValueError as error:
            raise Refused(400, f"{name} is refused: {error}", param=name) from error
        form = ChatForm(
            None if use is None else self.format,
            frozenset() if use is None else frozenset(tool.name for tool in use.callable),
            use is not None and use.must,
            markers,
            begin,
            self._tokenizer.control.intersection(tokens.values()),
        )
        return (None if outputs is None else Structured(name, outputs)), form
