"""Every route, and who may use it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Mount, Route, WebSocketRoute

from doubles import Scripted
from foresay import __version__
from foresay.errors import InputError
from foresay.serve.admission import OPEN
from foresay.serve.keys import OPERATOR, Keys, read_keys
from foresay.serve.metrics import measured, memory_of
from serve.running import Running, bearer, numbers, served, wait_for
from tiny import CONTEXT

KEY, OTHER, WATCH = "a-good-key-of-one", "another-good-key", "the-operators-key"


UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[Running]:
    keys = Keys.of([(KEY, "one"), (OTHER, "two"), (WATCH, OPERATOR)])
    with served(folder, 3, keys=keys) as found:
        yield found


def routes_of(server: Running) -> list[tuple[str, str]]:
    """Every method and path that the application has, found in the application itself."""
    found = []
    app: Any = server.server.config.app
    for route in app.app.routes:
        if isinstance(route, Route):
            path = route.path.replace("{model:path}", "tiny")
            found += [(method, path) for method in route.methods or ()]
        elif isinstance(route, WebSocketRoute):
            found.append(("UPGRADE", route.path))
        else:
            assert isinstance(route, Mount)
            found += [("GET", f"{route.path}/"), ("GET", f"{route.path}/index.html")]
    assert ("GET", "/") in found
    return found


def test_nothing_is_answered_without_a_key_but_health(guarded: Running) -> None:
    listed = routes_of(guarded)
    assert {"/v1/completions", "/metrics", "/v1/spec/stats"} <= {path for _, path in listed}
    assert len(listed) >= 20
    for method, path in [*listed, ("GET", "/nowhere"), ("POST", "/v1/edge")]:
        for header in ({}, {"authorization": "Bearer wrong-key-here"}, {"authorization": KEY}):
            asked = "GET" if method == "UPGRADE" else method
            more = UPGRADE if method == "UPGRADE" else {}
            answer = guarded.http.request(asked, path, headers={**header, **more})
            if path in OPEN:
                assert answer.status_code == 200
            else:
                assert answer.status_code == 401, (method, path)
                assert "Bearer" in answer.headers["www-authenticate"]
                assert method == "HEAD" or "missing or wrong" in answer.json()["error"]["message"]


def test_a_key_opens_as_bearer_and_as_a_browsers_password(guarded: Running) -> None:
    basic = base64.b64encode(f"anybody:{KEY}".encode()).decode()
    for header in (f"Bearer {KEY}", f"bearer  {KEY}", f"Basic {basic}"):
        headers = {"authorization": header}
        assert guarded.http.get("/v1/models", headers=headers).status_code == 200
    for header in ("Basic !!!", "Basic YQ==", "Digest x", "Bearer", "Bearer " + KEY[:-1]):
        headers = {"authorization": header}
        assert guarded.http.get("/v1/models", headers=headers).status_code == 401


def test_a_key_opens_as_anthropics_clients_send_it(guarded: Running) -> None:
    def status(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return guarded.http.get("/v1/models", headers=named).status_code

    assert status(x_api_key=KEY) == 200 and status(x_api_key=KEY[:-1]) == 401
    # One header decides: a wrong key is not made good by another.
    assert status(x_api_key=KEY, authorization="Bearer wrong-key-here") == 401
    assert status(x_api_key="wrong-key-here", authorization=f"Bearer {KEY}") == 200
    refused = guarded.http.post("/v1/messages").json()
    assert refused["type"] == "error" and refused["error"]["type"] == "authentication_error"


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        seen.append((a, b))
        return hmac_compare(a, b)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr("foresay.serve.keys.hmac.compare_digest", compare)
    keys = Keys.of([(KEY, "one"), (OTHER, "two")])
    assert keys.tenant_of(f"Bearer {KEY}") == (True, "one")
    assert len(seen) == 2 and all(len(a) == len(b) == 32 for a, b in seen)
    assert KEY.encode() not in b"".join(digest for digest, _ in keys.digests)


def test_a_file_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    digest = hashlib.sha256(OTHER.encode()).hexdigest()
    file.write_text(f"# ours\none {KEY}  # of one\n\ntwo sha256:{digest}\n")
    keys = read_keys(file)
    assert keys.tenants == ["one", "two"]
    assert keys.tenant_of(f"Bearer {OTHER}") == (True, "two")
    assert keys.tenant_of(f"Bearer sha256:{digest}") == (False, None)
    for text, said in (
        ("one", "has 1 words"),
        ("one short", "8 or more ASCII"),
        ("one sha256:12", "64 hexadecimal"),
        (f"a {KEY}\nb {KEY}", "earlier line"),
        ("# nothing", "holds no key"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=said):
            read_keys(file)
    with pytest.raises(InputError, match=r"the file of keys .* cannot be read: No such file"):
        read_keys(tmp_path / "nothing")
    alone = Keys.of([(KEY, None), (OTHER, None)])
    assert alone.tenants == ["key-1", "key-2"]  # nothing of the key, nor of its digest
    file.write_text("key-2 a-third-good-key\n")
    with pytest.raises(InputError, match="expected another name"):
        read_keys(file)


def test_a_key_has_one_tenant(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"acme {KEY}\n")
    assert (Keys.of([(OTHER, None)]) + read_keys(file)).tenants == ["key-1", "acme"]
    with pytest.raises(InputError, match="given to 'key-1' and to 'acme'; expected one tenant"):
        Keys.of([(KEY, None)]) + read_keys(file)
    with pytest.raises(InputError, match="expected one tenant"):
        Keys.of([(KEY, "one"), (KEY, "two")])


def test_models(server: Running) -> None:
    (model,) = server.http.get("/v1/models").json()["data"]
    assert model["id"] == "tiny" and model["max_model_len"] == CONTEXT
    assert server.http.get("/v1/models/tiny").json() == model
    missing = server.http.get("/v1/models/other")
    assert missing.status_code == 404 and "'tiny'" in missing.json()["error"]["message"]
    error = server.refused("/v1/completions", 404, model="other", prompt="a")
    assert error["param"] == "model" and error["code"] == "model_not_found"


def test_tokens(server: Running) -> None:
    found = server.good("/tokenize", prompt="héllo", return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == 6 and found["max_model_len"] == CONTEXT
    assert len(found["token_strs"]) == 6
    assert server.good("/detokenize", tokens=found["tokens"])["prompt"] == "héllo"
    assert server.good("/tokenize", prompt="a", add_special_tokens=False)["count"] == 1
    chat = server.good("/tokenize", messages=[{"role": "user", "content": "a"}])
    assert server.good("/detokenize", tokens=chat["tokens"])["prompt"] == "user: a\nmodel: "
    about = server.http.get("/tokenizer_info").json()
    assert about["eos_token"] == "<|end|>" and "messages" in about["chat_template"]
    end = server.good("/tokenize", prompt="<|end|>", add_special_tokens=False)
    assert about["end_token_ids"] == end["tokens"]
    assert "expected 0 to" in server.refused("/detokenize", 400, tokens=[10**6])["message"]
    assert "expected 0 to" in server.refused("/detokenize", 400, tokens=[-1])["message"]
    assert "expected one" in server.refused("/tokenize", 400)["message"]


def test_health_version_and_the_page(server: Running) -> None:
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/live").status_code == 200
    assert server.http.get("/version").json() == {"version": __version__}
    page = server.http.get("/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    lost = server.http.get("/nowhere")
    assert lost.status_code == 404 and "/nowhere" in lost.json()["error"]["message"]
    wrong = server.http.get("/v1/completions")
    assert wrong.status_code == 405 and "POST" in wrong.json()["error"]["message"]
    named = server.http.get("/live", headers={"x-request-id": "mine-1"})
    assert named.headers["x-request-id"] == "mine-1"


def test_a_request_is_found_in_the_log_by_its_name(
    server: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "foresay.serve")

    def named(record: logging.LogRecord) -> str:
        facts: dict[str, Any] = getattr(record, "facts", {})
        return str(facts.get("request_id"))

    made = set()
    for given in ("mine-2", "", "with a space", "x" * 129):
        answer = server.http.get("/live", headers={"x-request-id": given})
        name = answer.headers["x-request-id"]
        made.add(name)
        wait_for(lambda: len(made & set(map(named, caplog.records))) == len(made))
        assert f" {name}" in caplog.text
    assert len(made) == 4 and "mine-2" in made and not any(" " in name for name in made)
    caplog.clear()
    monkeypatch.setattr(server.llm.engine, "add", lambda *values, **names: 1 / 0)
    answer = server.post("/v1/completions", {"prompt": "a"}, **{"x-request-id": "mine-3"})
    assert answer.status_code == 500 and answer.headers["x-request-id"] == "mine-3"
    assert "the request mine-3 failed: ZeroDivisionError" in caplog.text


def test_a_page_and_its_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<script src='/page/a.js'></script>")
    (tmp_path / "page" / "a.js").write_text("1")
    (tmp_path / "secret").write_text("not for you")
    monkeypatch.setattr("foresay.serve.app.PAGE", tmp_path / "page")
    with served(folder) as server:
        page = server.http.get("/")
        assert page.headers["content-type"].startswith("text/html") and "a.js" in page.text
        assert "script-src 'self'" in page.headers["content-security-policy"]
        script = server.http.get("/page/a.js")
        assert script.text == "1" and "javascript" in script.headers["content-type"]
        for path in ("/page/none", "/page/../secret", "/page/%2e%2e/secret", "/page/..%2fsecret"):
            assert server.http.get(path).status_code == 404
        assert server.http.get("/v1/completions").status_code == 405


def test_metrics(server: Running) -> None:
    server.good("/v1/completions", prompt="ab" * 30, temperature=0, max_tokens=40)
    server.good("/v1/completions", prompt="ab" * 30, temperature=0, max_tokens=40)
    drafts, drafted, accepted = (
        server.number(f"vllm:spec_decode_num_{name}_total", engine="0", model_name="tiny")
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert 0 < drafts <= drafted and 0 < accepted <= drafted
    depths = numbers(server.samples(), "vllm:spec_decode_num_accepted_tokens_per_pos_total")
    assert sum(depths) == accepted and depths == sorted(depths, reverse=True)
    text = server.http.get("/metrics").text
    assert "_created" not in text  # vLLM's own client would add the times up
    assert 'foresay_running{model_name="tiny"} 0.0\n' in text
    assert server.number("foresay_suffix_cache_bytes", model_name="tiny") > 0
    count, tokens = (
        server.number(name)
        for name in ("foresay_accept_length_count", "vllm:generation_tokens_total")
    )
    assert server.number("foresay_accept_length_sum") == tokens == count + accepted


def test_what_a_drafter_cannot_tell_is_not_told(server: Running) -> None:
    engine, memory = server.llm.engine, server.server._routes._memory
    assert memory is not None and measured(engine, memory)["suffix_cache_bytes"] > 0
    assert measured(engine, memory_of(None))["suffix_cache_bytes"] == 0
    assert "suffix_cache_bytes" not in measured(engine, memory_of(Scripted()))


def test_stats(server: Running) -> None:
    before = server.http.get("/v1/spec/stats").json()["totals"]
    found = server.good("/v1/completions", prompt="ab" * 30, temperature=0, max_tokens=40)
    stats = server.http.get("/v1/spec/stats").json()
    totals = stats["totals"]
    tokens = found["usage"]["completion_tokens"]
    assert totals["tokens"] - before["tokens"] == tokens
    assert totals["tokens"] == totals["answers_in_steps"] + totals["accepted"]
    assert totals["tokens_per_step"] > 1
    lengths = totals["accepted_lengths"]
    plain = server.good("/v1/completions", prompt="ab", max_tokens=9, speculative=False)["usage"]
    after = server.http.get("/v1/spec/stats").json()["totals"]
    assert after["accepted_lengths"] == lengths  # of steps in which something was drafted
    assert after["tokens"] == totals["tokens"] + plain["completion_tokens"]
    assert stats["running"] == stats["waiting"] == 0 and stats["drafter_bytes"] > 0
    line = stats["timeline"]
    assert 0 < len(line) <= 200
    assert all(set(step["seconds"]) == set(line[0]["seconds"]) for step in line)
    assert all(0 < sum(step["seconds"].values()) < 5 for step in line)
    starts = [step["start"] for step in line]
    assert starts == sorted(starts)
    assert all(step["rows"] == step["answers"] + step["drafted"] for step in line)


def test_the_description_names_every_route(server: Running) -> None:
    described = server.http.get("/openapi.json").json()["paths"]
    for method, path in routes_of(server):
        if method in ("GET", "POST") and not path.startswith("/page") and path != "/":
            named = path.replace("/tiny", "/{model}")
            assert method.lower() in described[named], path
    (named,) = described["/v1/models/{model}"]["get"]["parameters"]
    assert named["in"] == "path" and named["name"] == "model"


def test_numbers_of_all_tenants_are_for_the_operator(guarded: Running) -> None:
    answers = {key: guarded.http.get("/metrics", headers=bearer(key)) for key in (KEY, WATCH)}
    assert answers[KEY].status_code == 403
    assert "'operator': name one in the file of --keys" in answers[KEY].text
    assert answers[WATCH].status_code == 200


def test_without_keys_only_this_machines_names_are_answered(server: Running) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        answer = server.http.get("/v1/models", headers={"host": host})
        assert answer.status_code in (400, 403), host
    for host in ("localhost:1234", "[::1]:80", "127.0.0.1"):
        assert server.http.get("/v1/models", headers={"host": host}).status_code == 200
