"""`foresay edge`."""

from __future__ import annotations

import asyncio
import json
import os
import re
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from foresay.cli import asking
from foresay.cli.edge_shown import Shown
from foresay.cli.generate import read_prompts
from foresay.cli.model import DEFAULT_MODEL, Corpus, require_engine
from foresay.cli.options import given, naming_options, require
from foresay.cli.root import app
from foresay.cli.show import print_heading, tolerate_encoding
from foresay.cli.waiting import waiting
from foresay.errors import InputError, StreamError

if TYPE_CHECKING:
    from foresay.edge.client import EdgeClient
    from foresay.models.tokenizer import Tokenizer
    from foresay.sampling.params import SamplingParams


PresetName: TypeAlias = Literal["published"]
_SEED = re.compile(r"\bwith seed (\d+)\b")


@app.command()
@naming_options({"url": "--cloud"})
def edge(
    context: typer.Context,
    cloud: Annotated[str, typer.Option(help="The server: http(s):// or ws(s)://.")],
    prompts: asking.Prompts = None,
    model: Annotated[
        str, typer.Option(help="The cloud's model, for its tokenizer: a name as for generate.")
    ] = DEFAULT_MODEL,
    drafter: Annotated[
        str,
        typer.Option(help="suffix, sam, ngram, corpus, merge, model:NAME, joined with +; or none."),
    ] = "suffix",
    draft_model: Annotated[
        str | None, typer.Option(help="A smaller model that drafts too, as +model:NAME.")
    ] = None,
    corpus: Corpus = None,
    max_tokens: asking.MaxTokens = 256,
    temperature: asking.Temperature = 0.0,
    top_k: asking.TopK = 0,
    top_p: asking.TopP = 1.0,
    min_p: asking.MinP = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Divides the logits of tokens in the text so far; 1: none.")
    ] = 1.0,
    seed: asking.Seed = None,
    stop: asking.Stop = None,
    raw: asking.Raw = False,
    preset: Annotated[
        PresetName | None,
        typer.Option(
            help="Other defaults: published, a configuration from the literature. Options that are "
            "given count."
        ),
    ] = None,
    wait: Annotated[
        Literal["block", "free-run", "adaptive"] | None,
        typer.Option(help="How long the cloud waits for drafts; default: it chooses."),
    ] = None,
    no_ahead: Annotated[
        bool, typer.Option("--no-ahead", help="Wait for each verdict before the next draft.")
    ] = False,
    k: Annotated[
        Literal["acceptance", "link"],
        typer.Option("--k", help="Tokens per message: by acceptance, or by the link too."),
    ] = "link",
    gate: Annotated[
        bool, typer.Option("--gate", help="Send early, and draft less far, at hard tokens.")
    ] = False,
    dropout: Annotated[
        int,
        typer.Option(
            help="With --gate and --drafter model:NAME, 2 to 256 passes with dropout: tokens "
            "whose chance varies are hard too. 0: none."
        ),
    ] = 0,
    tree: Annotated[
        bool, typer.Option("--tree", help="Send whole trees where nothing is in flight.")
    ] = False,
    pad: Annotated[
        int, typer.Option(help="Pad messages to a multiple of this number of bytes.")
    ] = 0,
    json_frames: Annotated[
        bool, typer.Option("--json-frames", help="JSON on the wire, to debug with.")
    ] = False,
    retry_seconds: Annotated[
        float, typer.Option(help="How long to try again after a lost connection.")
    ] = 30.0,
    edge_only: Annotated[
        bool,
        typer.Option(
            "--edge-only",
            help="Offline, go on with the draft model alone: this is not the target model.",
        ),
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="The server's key. Other users of this machine can read it: FORESAY_API_KEY is "
            "safer."
        ),
    ] = None,
    as_json: asking.AsJson = False,
) -> None:
    """Draft here, and let a server verify: the answer is the server's model's, to the token.

    The server is one of `foresay serve`. Only token ids travel. A lost connection is made again,
    and the answer goes on where it was. On a terminal with colours, tokens that were drafted here
    are coloured by their source as they are committed, and a legend follows; the last line says
    what the link cost.

    \b
    Examples:
      foresay edge --cloud http://127.0.0.1:8000 "Why is the sky blue?"
      foresay edge --cloud https://example.org "Write a haiku." --temperature 0.8 --seed 1
      foresay edge --cloud http://gpu:8000 - --corpus answers.foresay --wait free-run < question.txt
      foresay edge --cloud http://gpu:8000 "Hello" --draft-model ./small --edge-only --json
      foresay edge --cloud http://gpu:8000 "Hello" --preset published --temperature 0.7

    The JSON objects have prompt, text, token_ids, sources, finish_reason, edge_only and stats.
    Of sources there is one per token; "" is a token of the server's model itself.
    """
    require("edge", "edge", "msgspec", "websockets", "tokenizers", "jinja2")
    from foresay.edge.preset import preset_of
    from foresay.sampling.params import SamplingParams

    tolerate_encoding()
    texts = read_prompts(prompts or [], None)
    sampling: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
    }
    chosen = None if preset is None else preset_of(preset)
    if chosen is not None:
        sampling |= {name: getattr(chosen, name) for name in sampling if not given(context, name)}
    params = SamplingParams(
        max_tokens=max_tokens,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        **sampling,
    )
    from foresay.edge.client import EdgeClient
    from foresay.edge.connection import edge_url
    from foresay.edge.drafting import check_edge_name
    from foresay.edge.gating import usual_gate
    from foresay.edge.link import AcceptanceRule, LinkRule
    from foresay.edge.text_rules import CorpusWords

    edge_url(cloud)
    name = _drafter(drafter, draft_model)
    if name is not None:
        check_edge_name(name)
        if "model:" in name:
            require_engine("edge with a model that drafts")
    if edge_only and (name is None or "model:" not in name):
        raise InputError("--edge-only needs a model that drafts; expected --draft-model NAME")
    with waiting(as_json) as progress:
        tokenizer, vocabulary, known = _tokenizer(model, progress)
    words = None if corpus is None or not gate else CorpusWords.of(corpus, tokenizer)
    sending: dict[str, Any] = {
        "wait": wait or "",
        "ahead": not no_ahead,
        "rule": AcceptanceRule() if k == "acceptance" else LinkRule(),
        "gate": usual_gate(words) if gate else None,
    }
    if chosen is not None:
        told = {
            "wait": wait is not None,
            "ahead": no_ahead,
            "rule": given(context, "k"),
            "gate": gate,
        }
        options = chosen.client_options()
        sending |= {name: options[name] for name in sending if not told[name]}
        if gate:
            sending["gate"] = chosen.new_gate(words)
    client = EdgeClient(
        cloud,
        vocabulary=vocabulary,
        tokenizer_hash=known or b"",
        api_key=api_key or os.environ.get("FORESAY_API_KEY") or None,
        drafter=name,
        corpus=corpus,
        **sending,
        dropout=dropout,
        decode=tokenizer.decode,
        tree=tree,
        pad=pad,
        json=json_frames,
        retry_seconds=retry_seconds,
        edge_only=edge_only,
        ends=tokenizer.ends,
    )
    try:
        asyncio.run(_all(client, tokenizer, texts, params, raw, as_json))
    except StreamError as error:
        raise StreamError(_SEED.sub(r"with --seed \1", str(error)), error.code) from error
    finally:
        client.close()


def _drafter(name: str, draft_model: str | None) -> str | None:
    """The drafter's whole name; None: nothing is drafted."""
    if draft_model is None:
        return None if name == "none" else name
    return f"model:{draft_model}" if name == "none" else f"{name}+model:{draft_model}"


def _tokenizer(model: str, progress: Any) -> tuple[Tokenizer, int, bytes | None]:
    """A model's tokenizer, vocabulary and hash, without torch. A folder needs no weights."""
    from foresay.corpus import tokenizer_hash_of
    from foresay.models import weights
    from foresay.models.tokenizer import Tokenizer
    from foresay.models.weights.folder import config_of

    folder = Path(model)
    if not (folder / "config.json").is_file():
        folder = Path(weights.find_stored(model, progress=progress).folder)
    vocabulary = config_of(folder).get("vocab_size")
    if type(vocabulary) is not int:
        raise InputError(
            f"'{folder}/config.json' has the vocab_size {vocabulary!r}; expected a whole number"
        )
    file = folder / "tokenizer.json"
    return Tokenizer(folder), vocabulary, tokenizer_hash_of(file) if file.is_file() else None


async def _all(
    client: EdgeClient,
    tokenizer: Tokenizer,
    texts: list[str],
    params: SamplingParams,
    raw: bool,
    as_json: bool,
) -> None:
    """Answer the prompts one after the other. Raises: StreamError."""
    for text in texts:
        if tokenizer.chats and not raw:
            prompt = tokenizer.chat([{"role": "user", "content": text}])
        else:
            prompt = tokenizer.encode(text)
        if len(texts) > 1 and not as_json:
            print_heading(" ".join(text.split())[:70])
        shown = Shown(tokenizer, params, quiet=as_json)
        try:
            async with aclosing(client.stream(prompt, params)) as pieces:
                async for piece in pieces:
                    shown.add(piece)
        finally:  # also when it fails or is interrupted
            shown.end_line()
        if as_json:
            print(json.dumps({"prompt": text, **shown.as_dict()}), flush=True)
