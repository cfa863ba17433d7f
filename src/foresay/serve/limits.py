"""The limits of a server, and the errors of requests that are refused."""

from __future__ import annotations

from dataclasses import dataclass, fields

from foresay.errors import ForesayError, InputError

__all__ = ["Limits", "Refused"]


class Refused(ForesayError):
    """A request that is refused: the HTTP status, and the error that the client gets."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def kind(self) -> str:
        """OpenAI's name for this kind of error."""
        return _KINDS.get(
            self.status, "invalid_request_error" if self.status < 500 else "api_error"
        )


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits of a server.

    Raises: InputError when constructed.
    """

    head: int = 64 << 10  # bytes of the request line and the headers
    head_seconds: float = 10.0  # for the head to arrive, from its first byte
    body: int = 4 << 20  # bytes of a request's body
    body_seconds: float = 30.0  # for the body to arrive
    prompts: int = 256  # prompts in one request
    n: int = 8  # answers to one prompt
    stops: int = 16  # stop strings and stop tokens
    stop_bytes: int = 256  # of one stop string
    logprobs: int = 20  # likeliest tokens per token
    prompt_logprobs: int = 1 << 20  # in one request, those of the likeliest tokens included
    biases: int = 1024  # entries of logit_bias
    messages: int = 1024  # of one conversation
    tools: int = 128  # of one chat
    responses: int = 1024  # of /v1/responses that are kept for each tenant
    response_bytes: int = 32 << 20  # that those of a tenant take, with their input
    connections: int = 1024  # HTTP requests that may be open at a time, of all routes
    queue: int = 1024  # answers that may wait, beyond those that the engine runs
    tenant_answers: int | None = None  # under way, of one tenant; None: no own limit
    stream_pieces: int = 1024  # that wait for a slow reader before it is cut off
    ping_seconds: float = 15.0  # of silence on a stream until a comment is sent
    drain_seconds: float = 30.0  # that running answers have after the signal to stop
    retry_seconds: int = 1  # in the Retry-After header of refused requests
    draft_seconds: float = 0.5  # that an answer waits for an edge client's draft, at most
    edge_seconds: float = 60.0  # that an edge stream survives without a connection
    edge_streams: int = 1024  # edge streams that have ended and can still be resumed
    edge_window: int = 256  # drafted tokens of an edge stream that may be in flight
    stuck_seconds: float = 120.0  # without a step, while answers are under way, until /health fails

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "tenant_answers":
                continue
            whole = not field.name.endswith("_seconds") or field.name == "retry_seconds"
            least = (
                0 if field.name in ("queue", "drain_seconds", "biases") else 1 if whole else 1e-3
            )
            kinds = (int,) if whole else (int, float)
            if type(value) not in kinds or not least <= value <= 1 << 50:
                kind = "a whole number" if whole else "a number"
                raise InputError(
                    f"the limit {field.name} is {value!r}; expected {kind} from {least}"
                )

    def check_most(self, param: str, value: int, most: int, what: str = "") -> None:
        """Refuse a value beyond a limit, naming both.

        Raises: Refused.
        """
        if value > most:
            shown = f"{param} has {value} {what}" if what else f"{param} is {value}"
            raise Refused(400, f"{shown}; expected at most {most}", param=param)

    def check_prompt_logprobs(self, tokens: int, top: int) -> None:
        """Refuse too many log probabilities of prompts: `tokens` tokens, `top` beside each.

        Raises: Refused.
        """
        if tokens * (top + 1) > self.prompt_logprobs:
            raise Refused(
                400,
                f"echo with logprobs {top} asks for {tokens * (top + 1)} log probabilities of "
                f"{tokens} tokens of prompts; expected at most {self.prompt_logprobs} in one "
                "request",
                param="logprobs",
            )

    def body_refused(self) -> Refused:
        """The error for a body that is too large."""
        return Refused(413, f"the body is too large; expected at most {self.body} bytes")

    def full(self, asked: int, most: int, whose: str) -> Refused:
        """The error for a full queue: `most` answers of `whose` may be under way."""
        wait = f"try again in {self.retry_seconds} s"
        if asked > most:
            wait = "ask for fewer at once"
        return Refused(
            429,
            f"{asked} answers are requested and the queue is full: {whose} may have {most} under "
            f"way; {wait}",
            code="queue_full",
            retry_after=self.retry_seconds,
        )

    def crowded(self, most: int, whose: str | None = None) -> Refused:
        """The error for too many open requests, of all clients or of `whose`."""
        return Refused(
            503 if whose is None else 429,
            f"{most} requests{'' if whose is None else f' of {whose}'} are open, the most this "
            f"server allows; try again in {self.retry_seconds} s",
            code="too_many_connections",
            retry_after=self.retry_seconds,
        )

    def draining(self) -> Refused:
        """The error while the server is draining."""
        return Refused(
            503,
            f"the server is stopping: it finishes running answers within {self.drain_seconds:g} s "
            "and refuses new requests",
            code="draining",
            retry_after=max(int(self.drain_seconds), 1),
        )
