"""The slow twin of the frozen index: what it must answer, by looking at every position."""

from collections import Counter

Documents = list[list[int]]
Context = tuple[int, int, int, int, list[tuple[int, int]]]


def occurrences(documents: Documents, context: list[int]) -> list[int | None]:
    """What follows each occurrence of a context, in corpus order; None at a document's end."""
    size = len(context)
    return [
        document[end] if end < len(document) else None
        for document in documents
        for end in range(size, len(document) + 1)
        if document[end - size : end] == context
    ]


def longest_match(documents: Documents, text: list[int], max_context: int) -> int:
    lengths = range(min(max_context, len(text)), 0, -1)
    return next((n for n in lengths if occurrences(documents, text[-n:])), 0)


def contexts(documents: Documents, text: list[int], max_context: int, width: int) -> list[Context]:
    """(length, total, latest, first, top) of the longest match and each more frequent suffix."""
    found: list[Context] = []
    frequency = 0
    for length in range(longest_match(documents, text, max_context), 0, -1):
        following = occurrences(documents, text[-length:])
        if len(following) == frequency:
            continue
        frequency = len(following)
        tokens = [token for token in following if token is not None]
        top = sorted(Counter(tokens).items(), key=lambda pair: (-pair[1], pair[0]))[:width]
        latest, first = (tokens[-1], tokens[0]) if tokens else (-1, -1)
        found.append((length, len(tokens), latest, first, top))
    return found
