"""A model whose answers are known, made in foresay's own environment.

usage: scripted.py FOLDER TOKENIZER ANSWERS.json, with `tests` in PYTHONPATH
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from serve.scripted import save_agent


def main() -> None:
    folder, tokenizer, answers = map(Path, sys.argv[1:])
    save_agent(folder, json.loads(answers.read_text()), tokenizer=tokenizer, context=1 << 15)


if __name__ == "__main__":
    main()
