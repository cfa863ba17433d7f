"""The events of a stream of /v1/responses."""

from __future__ import annotations

from foresay.serve.answer_schema import Answer, ChatLogprob, Count
from foresay.serve.responses.schema import OutputItem, OutputText, ReasoningText, Response

__all__ = [
    *("CompletedEvent", "CreatedEvent", "Event", "FailedEvent", "FunctionArgumentsDelta"),
    *("FunctionArgumentsDone", "InProgressEvent", "IncompleteEvent", "ItemAdded"),
    *("ItemDone", "OutputTextDelta", "OutputTextDone", "PartAdded", "PartDone"),
    *("ReasoningDelta", "ReasoningDone"),
]


class _Event(Answer, kw_only=True):
    sequence_number: Count


class CreatedEvent(_Event, tag_field="type", tag="response.created"):
    """The first event."""

    response: Response


class InProgressEvent(_Event, tag_field="type", tag="response.in_progress"):
    """The second."""

    response: Response


class CompletedEvent(_Event, tag_field="type", tag="response.completed"):
    """The last event of a response that came to its end."""

    response: Response


class IncompleteEvent(_Event, tag_field="type", tag="response.incomplete"):
    """The last event of one that had all the tokens that it may have."""

    response: Response


class FailedEvent(_Event, tag_field="type", tag="response.failed"):
    """The last event of one that failed."""

    response: Response


class ItemAdded(_Event, tag_field="type", tag="response.output_item.added"):
    """An item begins."""

    output_index: Count
    item: OutputItem


class ItemDone(_Event, tag_field="type", tag="response.output_item.done"):
    """An item, whole."""

    output_index: Count
    item: OutputItem


class _ItemEvent(_Event, kw_only=True):
    item_id: str
    output_index: Count


class _PartEvent(_ItemEvent, kw_only=True):
    content_index: Count


class PartAdded(_PartEvent, tag_field="type", tag="response.content_part.added"):
    """A part of an item begins."""

    part: OutputText | ReasoningText


class PartDone(_PartEvent, tag_field="type", tag="response.content_part.done"):
    """A part, whole."""

    part: OutputText | ReasoningText


class OutputTextDelta(_PartEvent, tag_field="type", tag="response.output_text.delta"):
    """More of the answer's text."""

    delta: str
    logprobs: list[ChatLogprob]


class OutputTextDone(_PartEvent, tag_field="type", tag="response.output_text.done"):
    """The answer's text, whole."""

    text: str
    logprobs: list[ChatLogprob]


class ReasoningDelta(_PartEvent, tag_field="type", tag="response.reasoning_text.delta"):
    """More of the reasoning."""

    delta: str


class ReasoningDone(_PartEvent, tag_field="type", tag="response.reasoning_text.done"):
    """The reasoning, whole."""

    text: str


class FunctionArgumentsDelta(
    _ItemEvent, tag_field="type", tag="response.function_call_arguments.delta"
):
    """More of the arguments of a call."""

    delta: str


class FunctionArgumentsDone(
    _ItemEvent, tag_field="type", tag="response.function_call_arguments.done"
):
    """The arguments, whole."""

    arguments: str


Event = (
    CreatedEvent
    | InProgressEvent
    | ItemAdded
    | PartAdded
    | ReasoningDelta
    | ReasoningDone
    | OutputTextDelta
    | OutputTextDone
    | FunctionArgumentsDelta
    | FunctionArgumentsDone
    | PartDone
    | ItemDone
    | CompletedEvent
    | IncompleteEvent
    | FailedEvent
)
