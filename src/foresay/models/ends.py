"""Which tokens end an answer, by their text: what llama.cpp takes as ends of generation.

A file may name one token that ends a text, and its model end an answer with another: with the end
of a turn after a chat, with padding after what was filled in between two parts of a program.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ends_by_text"]

_TEXTS = frozenset(
    {
        # the end of a text
        *("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]"),
        # the end of a turn, or of a message
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>"),
        *("<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>", "<|return|>"),
        # somebody else's turn: a tool is called
        *("<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>"),
        # fill-in-the-middle: nothing more, another repository, another file
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    }
)
# Where these are, `<|end|>` is the end of one message of several.
_SEVERAL = (("<|return|>", "<|call|>"), ("<|flush|>", "<|calls|>"))


def ends_by_text(added: Iterable[tuple[int, str, bool]]) -> list[int]:
    """The ids of tokens that end an answer, in their order.

    added  tokens that are found in a text before it is split: id, text, and whether it is a control
           token. One that is none is taken only if its text is written `<|…|>`, which nobody writes
           for itself; `</s>` may be a tag of a page.
    """
    found = {
        text: token
        for token, text, control in added
        if text in _TEXTS and (control or (text.startswith("<|") and text.endswith("|>")))
    }
    if any(found.keys() >= {*both} for both in _SEVERAL):
        found.pop("<|end|>", None)
    return sorted(found.values())
