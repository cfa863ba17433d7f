"""Every error that foresay raises on purpose.

    ForesayError
    ├── InputError (ValueError)          a value the caller gave is not valid
    │   ├── TokenTypeError (TypeError)   tokens in an array of the wrong dtype or shape
    │   ├── StateError                   a finished state was used again, or another drafter's
    │   └── UnknownGroup (KeyError)      a group that nobody began, or that was dropped
    ├── CorpusError                      a corpus file is missing, damaged or foreign
    │   └── TokenizerMismatch            the corpus was built with another tokenizer
    ├── TraceError                       a trace file cannot be read
    ├── LogitsError                      the target's logits are no law (NaN, +inf, nothing left)
    ├── ModelError                       weights cannot be had, or are damaged
    │   └── UnsupportedModel             a model that cannot be run exactly, or not at all
    ├── ServerError                      another server did not answer as it should
    └── Refused                          a request to our server is not answered

The last is in `foresay.serve.limits`, since it holds what a client reads; all others are here.
Misuse raises. A condition of the data does not: no match is an empty draft, the end of a request
is a call of `finish`. Every message is a sentence that names the value and what would be valid.
This module imports nothing, so that every other one, and the core when it loads, can import it.
"""


class ForesayError(Exception):
    """The root: catch this to catch everything foresay raises on purpose."""


class InputError(ForesayError, ValueError):
    """A value the caller gave is not valid; nothing was changed."""


class TokenTypeError(InputError, TypeError):
    """Tokens (or parents, offsets, paths, scores) of a dtype or shape that is never converted."""


class StateError(InputError):
    """A state was used after `finish`, or is no state of the drafter it was given to; or that
    drafter ran out of memory before, amid a change."""


class UnknownGroup(InputError, KeyError):
    """A group that nobody began, or that was dropped already."""

    def __str__(self) -> str:
        # KeyError would print the message in quotes, as if it were a key.
        return Exception.__str__(self)


class CorpusError(ForesayError):
    """A corpus file is missing, damaged, of another version, or no corpus file at all."""


class TokenizerMismatch(CorpusError):
    """A corpus file was built with another tokenizer than the one it is used with."""


class TraceError(ForesayError):
    """A trace file is missing or damaged; the message names the file and the line."""


class LogitsError(ForesayError):
    """A row of logits holds NaN or +inf, or leaves no token to choose; names the request."""


class ModelError(ForesayError):
    """A model's files are missing, damaged or foreign, or cannot be fetched or kept."""


class UnsupportedModel(ModelError):
    """A model whose answers would differ if it were run here; the message says what differs."""


class ServerError(ForesayError):
    """A server that was asked did not answer, or not as its interface says."""
