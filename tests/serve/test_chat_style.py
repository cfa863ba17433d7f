"""How JSON is written in the answers of chats: as everywhere else."""

from __future__ import annotations

from foresay import StructuredOutputs
from foresay.models.tokenizer import Tokenizer
from foresay.serve.chat.formats import FORMATS
from foresay.serve.chat.grammar import outputs_of
from foresay.serve.chat.tools import ToolUse
from serve.test_chat_prompts import TOOLS, control_of, fits, tokenizer

__all__ = ["tokenizer"]


def test_a_schema_that_frees_white_space_keeps_its_separators(tokenizer: Tokenizer) -> None:
    """In a chat with tools as without."""
    free = {"x-guidance": {"lenient": True}, "type": "array", "items": {"enum": [1, 2]}}
    content = StructuredOutputs(json=free)
    use = ToolUse(TOOLS, TOOLS, False, True)
    form = FORMATS["json"]
    made = outputs_of(content, use, form, None, "none", control_of(tokenizer))
    for outputs in (content, made):
        assert fits(tokenizer, outputs, "[1, 2]") and not fits(tokenizer, outputs, "[1,2]")
