"""The prompts of gpu.py: edits of real functions of Python's own library, and open questions.

A function is taken as its source has it, without comments before it. Which ones is chosen by a
seed, so a Python version always gives the same ones.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from gpu_bench import Prompt

INSTRUCTIONS = (
    "Add type hints to this function.",
    "Rename every local variable of this function to a longer, descriptive name.",
    "Add a docstring to this function and change nothing else.",
    "Add a comment above every branch of this function.",
    "Replace every string in single quotes by one in double quotes.",
    "Add logging of the arguments at the beginning of this function.",
    "Make this function raise ValueError with a sentence where it returns None.",
    "Add a keyword argument `verbose=False` that prints what the function does.",
)
MODULES = (
    *("argparse", "ast", "bdb", "calendar", "cgitb", "cmd", "codecs", "configparser", "csv"),
    *("dataclasses", "difflib", "dis", "doctest", "fileinput", "filecmp", "fractions", "ftplib"),
    *("functools", "gettext", "glob", "gzip", "heapq", "imaplib", "inspect", "ipaddress"),
    *("locale", "mailbox", "mimetypes", "netrc", "ntpath", "optparse", "pathlib", "pdb"),
    *("pickle", "pickletools", "platform", "plistlib", "poplib", "posixpath", "pprint"),
    *("pyclbr", "pydoc", "random", "selectors", "shelve", "shlex", "shutil", "smtplib"),
    *("socketserver", "sre_compile", "ssl", "statistics", "string", "subprocess", "tarfile"),
    *("tempfile", "textwrap", "tokenize", "trace", "traceback", "turtle", "typing", "unittest"),
    *("urllib/parse", "urllib/request", "uuid", "warnings", "wave", "weakref", "zipfile"),
    *("email/message", "http/client", "http/server", "json/decoder", "xml/dom/minidom"),
    *("logging/__init__", "logging/handlers", "unittest/mock", "unittest/case", "zipfile/__init__"),
    *("asyncio/base_events", "asyncio/events", "asyncio/streams", "asyncio/tasks"),
)
TOPICS = (
    *("the sea", "old bridges", "bread", "how birds migrate", "night trains", "glass"),
    *("small libraries", "chess", "rain in cities", "volcanoes", "paper money", "bees"),
    *("a lighthouse", "medieval maps", "the colour blue", "mountain villages", "clocks"),
    *("coral reefs", "printing", "handwriting", "tea", "the moon's craters", "violins", "deserts"),
    *("cooking for friends", "learning to swim", "long walks", "telescopes", "winter", "salt"),
    *("public parks", "sleep"),
)
QUESTIONS = (
    "What should everybody know about {}?",
    "Write a short story in which {} matter.",
    "Explain {} to a child of eight.",
    "Which misunderstandings about {} are common, and why?",
    "Write a letter to a friend about {}.",
    "How has the way people see {} changed over the last hundred years?",
    "Give an honest argument against caring about {}.",
    "Invent a conversation between two strangers about {}.",
)


@cache
def functions(least: int = 18, most: int = 60) -> tuple[str, ...]:
    """The sources of functions of so many lines, from the library's modules in their order."""
    library, found = Path(sysconfig.get_paths()["stdlib"]), []
    for module in MODULES:
        path = library / f"{module}.py"
        try:
            text = path.read_text()
            tree, lines = ast.parse(text), text.split("\n")
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue  # not in this version
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                end = node.end_lineno or node.lineno
                own, deep = lines[node.lineno - 1 : end], " " * node.col_offset
                source = "\n".join(line.removeprefix(deep) for line in own)
                if least <= len(own) <= most and len(source) < 3000:
                    found.append(source)
    return tuple(dict.fromkeys(found))


def edit_texts(count: int, seed: int = 28) -> list[str]:
    """So many different requests to change a function."""
    sources = list(functions())
    random.Random(seed).shuffle(sources)
    texts = []
    for at in range(count):
        order = INSTRUCTIONS[(at + at // len(sources)) % len(INSTRUCTIONS)]
        source = sources[at % len(sources)]
        texts.append(f"{order} Answer with the code only.\n\n```python\n{source}\n```")
    return texts


def chat_texts(count: int, seed: int = 28) -> list[str]:
    """So many different open questions, of all kinds and topics alike."""
    pairs = [(topic, question) for question in QUESTIONS for topic in TOPICS]
    random.Random(seed).shuffle(pairs)
    return [
        question.format(topic) for topic, question in (pairs * (count // len(pairs) + 1))[:count]
    ]


def prompts_of(
    encode: Callable[[str], Iterable[int]], count: int, most: int
) -> dict[str, list[Prompt]]:
    """Prompts of both kinds, of at most `most` tokens."""
    found: dict[str, list[Prompt]] = {"edit": [], "chat": []}
    for kind, texts in (("edit", edit_texts(2 * count)), ("chat", chat_texts(count))):
        for at, text in enumerate(texts):
            tokens = [int(token) for token in encode(text)]
            if len(tokens) <= most and len(found[kind]) < count:
                found[kind].append(Prompt(f"{kind} {at}", kind, tokens))
        if not found[kind]:
            raise ValueError(f"no prompt of kind {kind!r} has at most {most} tokens")
    return found
