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
        if document[end - 1] == context[-1] and document[end - size : end] == context
    ]


def matches(documents: Documents, text: list[int], max_context: int) -> list[list[int | None]]:
    """What follows each suffix of a text that occurs, the shortest first. A suffix of what occurs
    occurs too: so the first that does not ends the search."""
    found: list[list[int | None]] = []
    for length in range(1, min(max_context, len(text)) + 1):
        following = occurrences(documents, text[-length:])
        if not following:
            break
        found.append(following)
    return found


def contexts(documents: Documents, text: list[int], max_context: int, width: int) -> list[Context]:
    """(length, total, latest, first, top) of the longest match and each more frequent suffix."""
    found: list[Context] = []
    frequency, known = 0, matches(documents, text, max_context)
    for length in range(len(known), 0, -1):
        following = known[length - 1]
        if len(following) == frequency:
            continue
        frequency = len(following)
        tokens = [token for token in following if token is not None]
        top = sorted(Counter(tokens).items(), key=lambda pair: (-pair[1], pair[0]))[:width]
        latest, first = (tokens[-1], tokens[0]) if tokens else (-1, -1)
        found.append((length, len(tokens), latest, first, top))
    return found
