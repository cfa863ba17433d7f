"""From a `StructuredOutputs` to a grammar over the tokens of a model.

llguidance does the work: an Earley parser over derivatives of regular expressions, which walks a
trie of the vocabulary. A grammar is compiled when it is first asked for, within fixed limits, and
in a process of its own first: no limit of the library keeps it from working for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakValueDictionary

from foresay.arrays import check_positive
from foresay.errors import InputError, ModelError
from foresay.sampling.structured_outputs import StructuredOutputs
from foresay.structured.lead import Lead
from foresay.structured.library import begin, read_tokenizer, short
from foresay.structured.matcher import Grammar, bytes_of
from foresay.structured.rules import rule_of
from foresay.structured.trial import Trial

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["GrammarTokenizer", "Grammars"]

MOST_CHARACTERS = 1 << 18
"""Of a schema, an expression, a grammar, or all choices together."""
MOST_BEFORE = 256
"""Characters of `StructuredOutputs.after`."""
_REMEMBERED = 64  # grammars; those that were asked for least recently are forgotten
_REMEMBERED_LEADS = 8
_K = TypeVar("_K")
_V = TypeVar("_V")


class GrammarTokenizer(Protocol):
    """What a grammar needs of a tokenizer; `foresay.models.tokenizer.Tokenizer` is one."""

    ends: tuple[int, ...]

    def serialized(self) -> str:
        """It as the text of a tokenizer.json. Raises: ModelError if it cannot be written so."""

    def piece(self, token: int, /) -> str | None:
        """None for an id that it does not know."""


class Grammars:
    """The grammars of one model: `compile` gives the same one for equal forms.

    tokenizer   the model's; it is read when the first grammar is compiled
    vocabulary  columns of the model's logits; a tokenizer may have fewer tokens

    A grammar that an answer still follows is never compiled again: an engine asks for it twice,
    when a request is added and when it begins, and in between there may be many others.

    Any number of threads may use it. Raises: InputError when constructed.
    """

    def __init__(self, tokenizer: GrammarTokenizer, vocabulary: int) -> None:
        check_positive(vocabulary, "vocabulary")
        self._given, self._vocabulary = tokenizer, vocabulary
        self._lock, self._reading = Lock(), Lock()  # reading the tokenizer takes seconds
        self._read: LLTokenizer | None = None
        self._trial: Trial | None = None  # from then on
        self._known: OrderedDict[StructuredOutputs, Grammar] = OrderedDict()
        self._leads: OrderedDict[str, Lead] = OrderedDict()
        self._followed: WeakValueDictionary[StructuredOutputs, Grammar] = WeakValueDictionary()

    def compile(self, outputs: StructuredOutputs, name: str = "structured_outputs") -> Grammar:
        """The grammar of a form, bounded in time and memory. `name` is what errors call it.

        Raises: InputError with the reason, for a form that cannot be understood, takes too much, or
        that nothing matches; also where the package is missing, or the tokenizer cannot be used.
        """
        if not isinstance(outputs, StructuredOutputs):
            raise InputError(f"outputs is {outputs!r}; expected StructuredOutputs")
        with self._lock:
            known = self._followed.get(outputs)
            if known is not None:
                return self._remembered(outputs, known)
        made = self._compiled(outputs, self._tokenizer(name), name)
        with self._lock:
            return self._remembered(outputs, self._followed.setdefault(outputs, made))

    def known(self, outputs: StructuredOutputs) -> Grammar | None:
        """The grammar of a form, if it has been compiled and is still there: takes no time."""
        with self._lock:
            return self._followed.get(outputs)

    def _remembered(self, outputs: StructuredOutputs, grammar: Grammar) -> Grammar:
        return _kept(self._known, outputs, grammar, _REMEMBERED)

    def numbered(self, tokens: Iterable[int], name: str = "structured_outputs") -> set[int]:
        """Those of the tokens that a Lark grammar has to name by number, `<[7]>`, since no text
        matches them: control tokens, and others that are written `<…>`.

        Raises: InputError as `compile` does.
        """
        tokenizer = self._tokenizer(name)
        return {one for one in tokens if tokenizer.is_special_token(one)}

    def _compiled(self, outputs: StructuredOutputs, tokenizer: LLTokenizer, name: str) -> Grammar:
        _check_text(outputs, name)
        assert self._trial is not None
        try:
            source = _source(outputs)
            self._trial.check(source)
            lead = None if outputs.after is None else self._lead(outputs.after, tokenizer)
            ends = self._given.ends
            made = partial(begin, tokenizer, source)
            return Grammar(tokenizer, made, self._vocabulary, ends, lead)
        except ValueError as error:
            raise InputError(f"{name} is refused: {short(error)}") from None
        except OSError as error:
            raise InputError(f"{name} cannot be tried: {error}") from None

    def _lead(self, after: str, tokenizer: LLTokenizer) -> Lead:
        """The lead of that text: made once for all forms that begin behind it, as it looks at
        every token."""
        with self._lock:
            lead = self._leads.get(after)
        if lead is None:
            tokens = (bytes_of(tokenizer, token) for token in range(self._vocabulary))
            lead = Lead(after.encode(), tokens)
        with self._lock:
            return _kept(self._leads, after, lead, _REMEMBERED_LEADS)

    def _tokenizer(self, name: str) -> LLTokenizer:
        with self._reading:
            self._read = self._read or self._read_tokenizer(name)
            return self._read

    def _read_tokenizer(self, name: str) -> LLTokenizer:
        if find_spec("llguidance") is None:
            raise InputError(
                f"{name} needs the package 'llguidance', which is not installed; "
                "install it with: pip install '.[engine]' in foresay's checkout"
            )
        try:
            ends = [token for token in self._given.ends if self._given.piece(token) is not None]
            if not ends:
                raise ModelError("it names no token that ends an answer")
            text = self._given.serialized()
            read = read_tokenizer(text, ends)
            self._trial = Trial(text, ends)
            return read
        except (ModelError, ValueError) as error:
            raise InputError(
                f"{name} cannot be used with this model's tokenizer: {short(error)}"
            ) from None
        except OSError as error:
            raise InputError(f"{name} cannot be tried: {error}") from None


def _kept(known: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> _V:
    """The value, which is kept as the latest of so many."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > most:
        known.popitem(last=False)
    return value


def _check_text(outputs: StructuredOutputs, name: str) -> None:
    """Raises: InputError for a text that is too long, or that UTF-8 cannot encode."""
    texts = [outputs.json, outputs.regex, *(outputs.choice or ()), outputs.grammar]
    whole = "".join(text for text in texts if isinstance(text, str))
    for what, text, most in (
        (name, whole, MOST_CHARACTERS),
        (f"after of {name}", outputs.after or "", MOST_BEFORE),
    ):
        if len(text) > most:
            raise InputError(f"{what} has {len(text)} characters; expected at most {most}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{what} holds {text[error.start]!r}, which is no character") from None


def _source(outputs: StructuredOutputs) -> str:
    """What the library compiles. Raises: ValueError with the reason, if it is refused."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(outputs.grammar or f"start: {rule_of(outputs)}")
