"""A tokenizer.json used directly gives what transformers makes of it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2.exceptions import SecurityError, TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from foresay.errors import InputError, ModelError
from foresay.models import weights
from foresay.models.chat_template import ChatTemplate
from foresay.models.tokenizer import Tokenizer
from foresay.models.tokenizer_readers import FileTokenizer, TransformersTokenizer
from models import gguf_files

TEXTS = [
    *("", " ", "Hello world", "  two  spaces\n\n\tand tabs", "a\r\nb\r\n\r\n", "don't I'LL we've"),
    *(
        "naïve café 東京 🙂 عربى 👩‍👩‍👧",
        "def f(x):\n    return x**2  # 12345\n",
        "1e-5, 3.14159; 99%",
    ),
    *("e\u0301 \u200b\u00a0x", "<|im_start|>user\nhi<|im_end|>\n", "<think>x</think> <0x0A>"),
    *("½ ² Ⅷ ٣", "<|im_start|><|im_start|> <|im_end|>x", "<|endoftext|>", "\x00\x07\ufeff\ufffd"),
    *("a" * 3000, " ." * 500, "<|im_", "<repo_name>a<file_sep>b"),
]


PRE = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2", "gemma": "gpt-2"}


def folder_of(root: Path, architecture: str, pre: str) -> Path:
    """The folder of a GGUF file of that architecture, whose texts are split as `pre` says."""
    model, file = gguf_files.tiny(architecture), root / "a.gguf"
    gguf_files.export(model, file, architecture, words=gguf_files.byte_words(pre))
    return weights.find_stored(file, cache=root).folder


@pytest.fixture(scope="module", params=PRE)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("tokenizer"), request.param, PRE[request.param])


def direct(folder: Path) -> FileTokenizer:
    found = FileTokenizer.of(folder)
    assert found is not None
    return found


def compare(folder: Path, vocabulary: int, texts: Sequence[str]) -> None:
    ours, theirs = direct(folder), TransformersTokenizer(folder)
    chosen = random.Random(1)
    letters = "".join(TEXTS)
    made = ["".join(chosen.choices(letters, k=chosen.randrange(60))) for _ in range(300)]
    for text in (*texts, *made):
        for special in (True, False):
            assert ours.encode(text, special=special) == theirs.encode(text, special=special), text
    ids = [chosen.choices(range(vocabulary), k=chosen.randrange(12)) for _ in range(500)]
    alone = [[token] for token in range(min(vocabulary, 3000))]
    for tokens in (*ids, *alone):
        for special in (True, False):
            assert ours.decode(tokens, special=special) == theirs.decode(tokens, special=special)
    for token in (*range(min(vocabulary, 500)), vocabulary - 1, vocabulary, 2**31 - 1):
        assert ours.piece(token) == theirs.piece(token)
    for turns in (1, 2, 3):
        chat = [
            {"role": "assistant" if n % 2 else "user", "content": text}
            for n, text in enumerate(chosen.sample(TEXTS, turns))
        ]
        assert ours.render(chat) == theirs.render(chat)
    assert (ours.end, ours.chats, ours.template) == (theirs.end, theirs.chats, theirs.template)


def test_as_transformers_has_it(folder: Path) -> None:
    compare(folder, gguf_files.VOCABULARY, TEXTS)
    qwen2 = json.loads((folder / "config.json").read_text())["model_type"] == "qwen2"
    ours, theirs = direct(folder), TransformersTokenizer(folder)
    if not qwen2:  # where transformers adds special tokens of its own, which the file has not
        assert (ours.kind, ours.special) == (theirs.kind, theirs.special)


def test_a_gguf_file_says_what_its_tokens_are(tmp_path: Path) -> None:
    """Transformers would split the texts of any qwen2 as Qwen's own models do."""
    found = folder_of(tmp_path, "qwen2", "gpt-2")
    assert TransformersTokenizer(found).kind == "Qwen2Tokenizer"
    pieces = [Tokenizer(found).piece(token) for token in Tokenizer(found).encode("12e\u0301")]
    assert pieces == ["12", "e", "Ì", "ģ"]


@pytest.mark.model
def test_the_default_model_s_tokenizer() -> None:
    found = weights.find_stored(weights.DEFAULT_MODEL).folder
    compare(found, 49152, TEXTS)
    tokenizer, theirs = Tokenizer(found), TransformersTokenizer(found)
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    assert tokenizer.facts() == {
        "tokenizer_class": theirs.kind,
        **{name: theirs.special.get(name) for name in names},
        "chat_template": theirs.template,
    }
    assert [tokenizer.piece(end) for end in tokenizer.ends] == [
        *("<|im_end|>", "<|endoftext|>", "<reponame>"),
    ]
    # A character in two tokens, one after the other.
    ids = tokenizer.encode("é🙂", special=False).tolist()
    for cut in range(len(ids) + 1):
        assert tokenizer.decode(ids[:cut]) == theirs.decode(ids[:cut], special=False)


# --- when it is used -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer_class": "LlamaTokenizer"},
        {"split_special_tokens": True},
        {"bos_token": "<absent>"},
        {"eos_token": {"content": "<|im_end|>"}},
        {"chat_template": [{"name": "default", "template": "x"}]},
        {"extra_special_tokens": ["<more>"]},
        {"add_prefix_space": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_transformers_would_change_is_left_to_it(
    change: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "m")
    path = tmp_path / "m" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert FileTokenizer.of(tmp_path / "m") is None


def test_other_files_and_other_models_are_left_to_it(folder: Path, tmp_path: Path) -> None:
    for name in ("special_tokens_map.json", "added_tokens.json"):
        shutil.copytree(folder, tmp_path / name)
        (tmp_path / name / name).write_text("{}")
        assert FileTokenizer.of(tmp_path / name) is None
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "foresay.json").unlink()
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    found = FileTokenizer.of(tmp_path / "m")
    assert (found is None) is (config["model_type"] == "qwen2")
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "model_type": "phi3"}))
    assert FileTokenizer.of(tmp_path / "m") is None


def test_a_template_in_a_file_of_its_own(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text("{{ messages[0].content }} {{ eos_token }}")
    chat = [{"role": "user", "content": "hello"}]
    ours, theirs = direct(tmp_path / "m"), TransformersTokenizer(tmp_path / "m")
    assert ours.render(chat) == theirs.render(chat) == "hello <|im_end|>"


def test_texts_are_neither_cut_nor_padded_nor_cleaned(folder: Path, tmp_path: Path) -> None:
    """Whatever a file asks for that is meant for batches, or for reading."""
    text = "Hello , world . don 't  two spaces " * 4
    shutil.copytree(folder, tmp_path / "m")
    path, config = tmp_path / "m" / "tokenizer.json", tmp_path / "m" / "tokenizer_config.json"
    whole = json.loads(path.read_text())
    whole["truncation"] = {"direction": "Right", "max_length": 3, "stride": 0}
    whole["truncation"]["strategy"] = "LongestFirst"
    whole["padding"] = {"strategy": {"Fixed": 500}, "direction": "Right", "pad_id": 0}
    whole["padding"] |= {"pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "!"}
    path.write_text(json.dumps(whole))
    cleaned = {**json.loads(config.read_text()), "clean_up_tokenization_spaces": True}
    config.write_text(json.dumps(cleaned))
    wanted = direct(folder).encode(text, special=False)
    for made in (direct(tmp_path / "m"), TransformersTokenizer(tmp_path / "m")):
        ids = made.encode(text, special=False)
        assert ids == wanted and made.decode(ids, special=True).strip() == text.strip()


def test_damaged_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer; expected tokenizer.json"):
        Tokenizer(tmp_path)
    for name, text, match in (
        ("tokenizer.json", '{"version": "1.0"}', r"tokenizer.json' is damaged"),
        ("tokenizer.json", "{", r"tokenizer.json' is damaged"),
        ("tokenizer_config.json", "[]", r"the tokenizer in .* is damaged or foreign"),
        ("tokenizer_config.json", '{"tokenizer_class": 5}', r"the tokenizer in .* is damaged"),
        ("tokenizer_config.json", '{"eos_token": {"content": 5}}', r"the tokenizer in .* damaged"),
        ("chat_template.jinja", "\udcff{{", r"the tokenizer in .* is damaged or foreign"),
        ("generation_config.json", "[]", r"generation_config.json' is no object"),
        ("generation_config.json", "{", r"generation_config.json' is no object"),
        ("generation_config.json", '{"eos_token_id": "2"}', r"eos_token_id is '2'; expected"),
        ("generation_config.json", '{"eos_token_id": [1, true]}', r"eos_token_id is \[1, True\]"),
        ("generation_config.json", '{"eos_token_id": -1}', r"eos_token_id is -1; expected"),
    ):
        made = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder, made)
        (made / name).write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ModelError, match=match):
            Tokenizer(made)


def test_what_ends_an_answer(folder: Path, tmp_path: Path) -> None:
    for number, (given, ends) in enumerate(
        [
            ({"eos_token_id": [5, 2, 5]}, (2, 5, 0)),
            ({}, (2, 0)),
            ({"eos_token_id": None}, (2, 0)),
        ]
    ):
        made = tmp_path / str(number)
        shutil.copytree(folder, made)
        (made / "generation_config.json").write_text(json.dumps(given))
        assert Tokenizer(made).ends == ends
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "generation_config.json").unlink()
    assert Tokenizer(tmp_path / "m").ends == (2, 0)


def test_control_tokens_that_are_kept(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    assert tokenizer.control <= {*tokenizer.added.values()}
    names = {token: text for text, token in tokenizer.added.items()}
    one, *others = sorted(tokenizer.control)
    tokens = tokenizer.encode("ab", special=False).tolist()
    for kept in ({one}, tokenizer.control):
        whole = tokenizer.decode([*tokens, one, *others], keep=kept)
        assert whole == tokenizer.decode([*tokens, *sorted(kept)], special=True)
        assert names[one] in whole
    assert tokenizer.decode([*tokens, one], keep={-1}) == tokenizer.decode(tokens)


def test_wrong_inputs(folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(folder)
    for wrong in (None, 5, b"x", ["x"]):
        with pytest.raises(InputError, match="expected a text, token ids or messages"):
            tokenizer.encode(wrong)  # type: ignore[arg-type]
    for text in ("a\ud800", "\udfff"):
        with pytest.raises(InputError, match="which is no character"):
            tokenizer.encode(text)
        with pytest.raises(InputError, match="which is no character"):
            tokenizer.chat([{"role": "user", "content": text}])
    with pytest.raises(InputError, match="expected a role and a content"):
        tokenizer.chat([{"role": "user"}])
    with pytest.raises(InputError, match="there are no messages; expected at least 1"):
        tokenizer.chat([])
    shutil.copytree(folder, tmp_path / "m")
    path = tmp_path / "m" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    for template, match in (
        ("{% if %}", "the model's chat template refuses the messages"),
        ("{{ raise_exception('no ' + messages[0].role) }}", "refuses the messages: no user"),
    ):
        path.write_text(json.dumps({**config, "chat_template": template}))
        with pytest.raises(InputError, match=match):
            Tokenizer(tmp_path / "m").chat([{"role": "user", "content": "x"}])
    path.write_text(json.dumps({k: v for k, v in config.items() if k != "chat_template"}))
    with pytest.raises(InputError, match="has no chat template"):
        Tokenizer(tmp_path / "m").chat([{"role": "user", "content": "x"}])


# --- templates -------------------------------------------------------------------------------


class Shout(str):
    def secret(self) -> str:
        return "secret"


CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hello <b> & 'quotes' é"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": " x \n"}],
    [{"role": "user", "content": "a", "reasoning": "because"}, {"role": "tool", "content": "1"}],
    [{"role": "user", "content": "a", "calls": [{"f": 1.5, "g": (True, None)}], "n": np.int64(3)}],
    [{"role": Shout("user"), "content": Shout("hi"), "odd": object}],
]
TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}",
    "lstrip": "a\n    {% if true %}\n  b\n    {% endif %}\nc",
    "json": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}",
    "json options": "{{ {'b': 'é', 'a': 1} | tojson(sort_keys=true, separators=(',', ':')) }}",
    "break": "{% for m in messages %}{% if loop.index0 %}{% break %}{% endif %}x{% endfor %}",
    "continue": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}",
    "generation": "a {% generation %}{{ messages[0].content }}\n{% endgeneration %}\n b",
    "time": "{{ strftime_now('%Y') }}",
    "names": "{{ bos_token }} {{ eos_token }} {{ pad_token }} {{ add_generation_prompt }}",
    "absent": "{{ tools is none }} {{ documents is none }} {{ nothing is defined }} {{ nothing }}",
    "tools": "{{ tools | tojson }} {% for t in tools or [] %}{{ t.function.name }}{% endfor %}",
    "namespace": "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}",
    "namespace of self": "{% set ns = namespace(self=1) %}{{ ns.self }}",
    "dict": "{{ dict(a=1).items() | list }} {{ dict.fromkeys(['a'], 2) }}",
    "reasoning": "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}",
    "rest": "{{ messages[0] }} {{ messages[0].odd }} {{ messages[0].n }}",
    "macro": "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[0].role) }}",
}
REFUSED = {
    "raise": "{{ raise_exception('not this') }}",
    "class": "{{ ''.__class__.__mro__ }}",
    "subclass": "{{ messages[0].role.secret() }}",
    "append": "{{ messages.append(1) }}",
    "hidden": "{% set ns = namespace(__a=1) %}",
    "hidden later": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "dict class": "{{ dict.__init__ }}",
    "format": "{{ '{0.__class__}'.format(1) }}",
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def theirs(
    template: str,
    chat: Sequence[Mapping[str, Any]],
    tools: list[dict[str, Any]] | None = None,
) -> str:
    rendering: Any = render_jinja_template
    made = rendering(
        conversations=[chat],
        tools=tools,
        chat_template=template,
        add_generation_prompt=True,
        **SPECIAL,
    )
    return str(made[0][0])


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_as_transformers_renders_them(name: str) -> None:
    template = ChatTemplate(TEMPLATES[name])
    for chat in CHATS:
        assert template.render(chat, SPECIAL) == theirs(TEMPLATES[name], chat)
        assert template.render(chat, SPECIAL, TOOLS) == theirs(TEMPLATES[name], chat, TOOLS)
    assert template.render(CHATS[0], SPECIAL) or name in ("continue",)
    if name == "time":
        assert template.render(CHATS[0], SPECIAL) == str(datetime.now().year)


@pytest.mark.parametrize("name", REFUSED)
def test_templates_stay_in_their_sandbox(name: str) -> None:
    found = []
    for way in (lambda text, chat: ChatTemplate(text).render(chat, SPECIAL), theirs):
        try:
            found.append(way(REFUSED[name], CHATS[4]))
        except (SecurityError, TemplateError) as error:
            found.append(type(error).__name__)
    assert found[0] == found[1] and "secret" not in found[0] and "object" not in found[0]
    assert found[0] in ("", "TemplateError", "SecurityError", "UndefinedError"), found
