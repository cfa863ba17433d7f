"""Corpus files: build, open, inspect, verify. Knows nothing of models or drafters.

A corpus file is an index over documents of tokens, built once and mapped by many readers. It is
bound to a tokenizer by the hash of the tokenizer's file, because other tokenizers have other text
for the same ids.
"""

from foresay.corpus.build import build, build_from
from foresay.corpus.read import inspect, open_corpus, verify
from foresay.corpus.tokenizer import UNBOUND, tokenizer_hash_of

__all__ = [
    "UNBOUND",
    "build",
    "build_from",
    "inspect",
    "open_corpus",
    "tokenizer_hash_of",
    "verify",
]
