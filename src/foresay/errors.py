"""Every error that foresay raises on purpose.

    ForesayError
    ├── InputError (ValueError)          a value the caller gave is not valid
    │   ├── TokenTypeError (TypeError)   tokens in an array of the wrong dtype or shape
    │   ├── StateError                   a finished state was used again, or another drafter's
    │   └── UnknownGroup (KeyError)      a group that was never begun, or was dropped
    ├── CorpusError                      a corpus file is missing, damaged or foreign
    │   └── TokenizerMismatch            a corpus, draft model or saved file has another tokenizer
    ├── TraceError                       a trace file cannot be read
    ├── LogitsError                      invalid logits (NaN, +inf, no token left)
    ├── ModelError                       weights are missing or damaged
    │   └── UnsupportedModel             a model that cannot be run exactly, or not at all
    ├── ServerError                      another server did not answer as it should
    │   └── StreamError                  an edge stream cannot go on
    │       └── GapError                 committed tokens are missing, and have to be asked for
    ├── WorkerError                      a drafter's process did not start, or not answer
    └── Refused                          our server refuses a request

The last is in `foresay.serve.limits`, since it holds the HTTP answer; all others are here.
Misuse raises. A condition of the data does not: no match is an empty draft, the end of a request
is a call of `finish`. Every message is a sentence that names the value and what was expected.
This module imports nothing, so every other module, and the core when it loads, can import it.
"""


class ForesayError(Exception):
    """The root: catch this to catch everything foresay raises on purpose."""


class InputError(ForesayError, ValueError):
    """A value of the caller is not valid; nothing was changed."""


class TokenTypeError(InputError, TypeError):
    """Tokens (or parents, offsets, paths, scores) of a dtype or shape that is never converted."""


class StateError(InputError):
    """A state was used after `finish`, or belongs to another drafter; or the drafter ran out of
    memory before, in the middle of a change."""


class UnknownGroup(InputError, KeyError):
    """A group that was never begun, or was dropped already."""

    def __str__(self) -> str:
        # KeyError would print the message in quotes, as if it were a key.
        return Exception.__str__(self)


class CorpusError(ForesayError):
    """A corpus file is missing, damaged, of another version, or not a corpus file."""


class TokenizerMismatch(CorpusError):
    """A corpus file was built with another tokenizer than the one it is used with, or a draft model
    or what a drafter saved has another than its target."""


class TraceError(ForesayError):
    """A trace file is missing or damaged; the message names the file and the line."""


class LogitsError(ForesayError):
    """A row of logits holds NaN or +inf, or leaves no token to sample; names the request."""


class ModelError(ForesayError):
    """A model's files are missing, damaged or foreign, or cannot be downloaded or stored."""


class UnsupportedModel(ModelError):
    """A model whose answers would differ if it were run here; the message says what differs."""


class ServerError(ForesayError):
    """Another server did not answer, or not as its interface says."""


class StreamError(ServerError):
    """An edge stream cannot go on. `code` is the cloud's short word for it, or one of the edge's:
    "unreachable", "cancelled", "contradiction", "gap", "bad_answer"; what was committed
    before stays true."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class GapError(StreamError):
    """A commit does not start within the text: its tokens have to be asked for again."""


class WorkerError(ForesayError):
    """The process of a drafter did not start, did not answer, or not as it should."""
