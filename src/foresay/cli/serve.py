"""`foresay serve`."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foresay.cli.model import (
    DEFAULT_MODEL,
    Corpus,
    Device,
    Drafter,
    Dtype,
    Policy,
    Quantize,
    check_names,
    device_for,
    load,
    require_engine,
)
from foresay.cli.options import SERVER, require
from foresay.cli.root import app
from foresay.cli.waiting import Lines
from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay.serve.keys import Keys

_log = logging.getLogger("foresay.serve")


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="smollm2-135m, a folder, a .gguf file, or a hub model org/name.", metavar="[MODEL]"
        ),
    ] = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free port.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="An API key, each a tenant of its own; may be given again. Other "
            "users of this machine can read it: FORESAY_API_KEY and --keys are safer."
        ),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="A file with lines TENANT KEY, or TENANT sha256:DIGEST.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="An origin of web pages that may send requests, such as https://chat.example.org, "
            "or '*' for any; may be given again."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without keys.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--served-model-name", help="What clients call the model.")
    ] = None,
    drafter: Drafter = "suffix",
    policy: Policy = "adaptive",
    corpus: Corpus = None,
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    device: Device = "auto",
    max_running: Annotated[int, typer.Option(help="Requests in one step, at most.", min=1)] = 256,
    memory_mb: Annotated[
        int | None,
        typer.Option(
            help="For the KV cache; by default a quarter of the free memory, on a GPU most of it.",
            min=1,
        ),
    ] = None,
    tenant_mb: Annotated[
        int, typer.Option(help="For one tenant's history to draft from.", min=0, max=1 << 20)
    ] = 256,
    queue: Annotated[int, typer.Option(help="Requests that may wait.", min=0)] = 1024,
    body_mb: Annotated[
        int, typer.Option(help="Of a request's body, at most.", min=1, max=1024)
    ] = 4,
    max_n: Annotated[int, typer.Option(help="Answers to one prompt, at most.", min=1)] = 8,
    connections: Annotated[
        int, typer.Option(help="HTTP requests open at a time, at most.", min=1)
    ] = 1024,
    drain: Annotated[
        float, typer.Option(help="Seconds for running answers after SIGTERM.", min=0)
    ] = 30.0,
    pad: Annotated[
        int, typer.Option(help="Bytes of which every write is a multiple; 0: no padding.", min=0)
    ] = 0,
    every: Annotated[
        float, typer.Option(help="Seconds between two writes; 0: at once.", min=0)
    ] = 0.0,
    coalesce: Annotated[
        int, typer.Option(help="Tokens that a write waits for; 0: at once.", min=0)
    ] = 0,
    hide: Annotated[
        bool, typer.Option("--hide-acceptance", help="Hide acceptance statistics from clients.")
    ] = False,
    tool_format: Annotated[
        str,
        typer.Option(
            help="How the model writes calls of tools: hermes, llama3, mistral or json; auto: as "
            "its chat template says."
        ),
    ] = "auto",
    reasoning: Annotated[
        str,
        typer.Option(
            help="What stands around its reasoning: think (<think>…</think>), mistral ([THINK]…) "
            "or none; auto: as its chat template says."
        ),
    ] = "auto",
    ssl_certfile: Annotated[str | None, typer.Option(help="For TLS.")] = None,
    ssl_keyfile: Annotated[str | None, typer.Option(help="For TLS.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log one JSON object per line.")] = False,
) -> None:
    """Serve a model with an OpenAI-compatible API.

    By default it listens on this machine only; with another --host it needs keys. A tenant's
    answers are drafted from its own earlier ones, never from another tenant's. SIGTERM finishes
    running answers and stops; SIGHUP reads the file of --keys again, also while the model loads.

    Until it is ready it logs its progress at least every 10 seconds.

    --pad, --every and --coalesce hide from observers of encrypted traffic how many tokens were
    accepted, at the price of bytes and delay.

    \b
    Examples:
      foresay serve
      foresay serve ./my-model --port 9000 --max-running 64
      FORESAY_API_KEY=… foresay serve --host 0.0.0.0
      foresay serve --keys keys.txt --host 0.0.0.0 --ssl-certfile c.pem --ssl-keyfile k.pem
      curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
           -d '{"prompt": "Once upon a time", "max_tokens": 32}'
    """
    require_engine("serve")
    require("serve", "serve", *SERVER)
    check_names(drafter, policy, corpus, without=("none", "edge"))
    _log_to_stderr(as_json)
    who = _keys(api_key or [], keys)
    stale = threading.Event()
    if keys is not None:
        # SIGHUP while the model loads must not end the process.
        signal.signal(signal.SIGHUP, lambda number, frame: stale.set())
    # All that needs no torch is checked before its import, which takes seconds.
    from foresay.serve.address import Address, check_address, check_origin, is_loopback
    from foresay.serve.chat.formats import format_of
    from foresay.serve.chat.reasoning import markers_of
    from foresay.serve.limits import Limits
    from foresay.serve.shield import Shield

    limits = Limits(
        body=body_mb << 20, n=max_n, connections=connections, queue=queue, drain_seconds=drain
    )
    shield = Shield(pad=pad, every=every, coalesce=coalesce, hide=hide)
    if not (who or insecure or is_loopback(host)):
        raise InputError(
            f"--host {host} can be reached from other machines and there are no keys; expected "
            "--api-key or --keys, or --insecure to serve without keys"
        )
    for origin in cors_origin or []:
        check_origin(origin)
    format_of("", tool_format)
    markers_of("", reasoning)
    if cors_origin and not who:
        _log.warning("pages of %s may send requests without a key", " and ".join(cors_origin))
    address = Address(host, port, ssl_certfile, ssl_keyfile)
    check_address(address)
    device = device_for(device, dtype, quantize)
    with Lines(_log_stage) as wait:
        wait("import", 0, None)
        from foresay.serve.server import serve as run
        from foresay.serve.start import ServeSettings
    made_drafter = _drafter(
        drafter, corpus, len(who.tenants), tenant_mb << 20, model=model, device=device
    )
    # Each thread that runs a model has worker threads as long as it lives; with more workers than
    # processors, they sleep between two layers. The server's own thread will run the model, so the
    # thread that loads and tests it must end.
    with Lines(_log_stage) as wait, ThreadPoolExecutor(1) as aside:
        loading = aside.submit(
            load,
            model,
            dtype,
            wait,
            device=device,
            quantize=quantize,
            drafter=made_drafter,
            policy=policy,
            memory=None if memory_mb is None else memory_mb << 20,
            max_running=max_running,
            with_sources=not hide,
        )
        try:
            llm = loading.result()
        except KeyboardInterrupt:
            wait.end()  # ends the thread at its next report
            raise
    called = name or (Path(model).name if Path(model).exists() else model)
    settings = ServeSettings(
        called,
        address,
        who,
        limits,
        shield,
        reread=None if keys is None else lambda: _keys(api_key or [], keys),
        stale=stale.is_set,
        origins=tuple(cors_origin or ()),
        tool_format=tool_format,
        reasoning=reasoning,
    )
    run(llm, made_drafter, settings, _ready(called, as_json))


def _keys(given: list[str], file: Path | None) -> Keys:
    """All keys, from the command line, the environment and a file."""
    from foresay.serve.keys import Keys, read_keys

    known = os.environ.get("FORESAY_API_KEY")
    listed = [*given, *([known] if known else [])]
    found = Keys.of([(key, None) for key in dict.fromkeys(listed)])
    return found if file is None else found + read_keys(file)


def _drafter(name: str, corpus: Path | None, tenants: int, tenant_bytes: int, **target: Any) -> Any:
    """The drafter of that name; `target`: its model and its device."""
    if name == "none":
        return None
    from foresay.drafters.lineup import make_drafter, with_external_drafts
    from foresay.serve.start import tenant_room

    if name == "edge":
        return with_external_drafts(None)
    room = tenant_room(tenants, tenant_bytes)
    own = make_drafter(name, share="all", corpus=corpus, verify=True, room=room, **target)
    return with_external_drafts(own)


def _ready(name: str, as_json: bool) -> Any:
    def say(url: str) -> None:
        line = f"foresay serves {name} on {url}"
        print(json.dumps({"ready": True, "model": name, "url": url}) if as_json else line)
        sys.stdout.flush()

    return say


def _log_stage(sentence: str, facts: dict[str, Any]) -> None:
    _log.info(sentence, extra={"facts": facts})


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _log_to_stderr(as_json: bool) -> None:
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonLines() if as_json else plain)
    for name, level in (("foresay", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
