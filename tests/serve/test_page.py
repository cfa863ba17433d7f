"""The page, as a real browser shows it: Chromium, driven by playwright."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from playwright.sync_api import Browser, Error, Page, expect
from transformers import AutoTokenizer, LlamaForCausalLM

from foresay.drafter import SOURCE_NAMES, Source
from foresay.serve.app import PAGE
from foresay.serve.keys import Keys
from foresay.serve.shield import Shield
from foresay.serve.start import tenant_drafter
from real import default_llm
from serve.running import Running, running, served
from tiny import save_model

QUESTION = "one two three one two three one"
SOURCES = {"model", "own", "group", "history", "corpus", "usual"}
PHASES = ["schedule", "draft", "forward", "verify", "commit"]
MARKUP = "<script>document.title='hurt'</script><img src=x onerror=\"document.title='hurt'\">"
LISTEN = """() => {
  const real = fetch;
  window.fetch = async (path, ...rest) => {
    const response = await real(path, ...rest);
    if (path === "/v1/chat/completions") window.told = response.clone().text();
    return response;
  };
}"""  # The browser's own tools forget what came as a stream.
REFUSED = "Failed to load resource: the server responded with a status of"


class Seen:
    """A page, all that it has asked for, and all that it has complained about."""

    def __init__(self, page: Page) -> None:
        self.page, self.urls = page, list[str]()
        self.complaints: list[str] = []
        page.on("request", lambda request: self.urls.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error('CSP ' + e.blockedURI))"
        )

    def ask(self, question: str, *, most: int = 60, temperature: str = "0") -> None:
        self.page.fill("#temperature", temperature)
        self.page.fill("#most", str(most))
        self.page.fill("#question", question)
        self.page.keyboard.press("Enter")

    def answered(self, count: int = 1) -> str:
        """The text of the last answer, of so many."""
        answers = self.page.locator("article.answer")
        expect(answers).to_have_count(count)
        expect(self.page.locator("#send")).to_be_enabled(timeout=60_000)
        return self.page.locator("article.answer .text").nth(count - 1).text_content() or ""

    def check(self, server: Running, *complaints: str) -> None:
        """It has asked this server only, and complained of nothing else."""
        own = urlsplit(server.url).netloc
        assert {urlsplit(url).netloc for url in self.urls if not url.startswith("data:")} == {own}
        left = [c for c in self.complaints if not c.startswith(complaints or ("\0",))]
        assert left == []
        if complaints:
            assert self.complaints


@contextmanager
def opened(browser: Browser, server: Running, **options: Any) -> Iterator[Seen]:
    with browser.new_context(**options) as context:
        context.set_default_timeout(20_000)
        seen = Seen(context.new_page())
        response = seen.page.goto(server.url)
        assert response is not None and response.status == 200
        expect(seen.page.locator("#model")).to_have_text("tiny")
        yield seen


def whole(server: Running, *said: str, most: int = 60) -> str:
    """What the API answers to the last of these, which user and model have said in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    asked = {"messages": messages, "temperature": 0, "max_tokens": most}
    text: str = server.good("/v1/chat/completions", **asked)["choices"][0]["message"]["content"]
    return text


def classes(page: Page) -> list[str]:
    """The sources of all tokens of all answers, in order."""
    script = "all => all.map(token => token.className.replace('token ', ''))"
    found: list[str] = page.locator(".answer .token").evaluate_all(script)
    return found


def test_a_chat_of_two_turns(browser: Browser, server: Running) -> None:
    with opened(browser, server) as seen:
        page = seen.page
        page.evaluate(LISTEN)
        seen.ask(QUESTION)
        first = seen.answered()
        assert first == whole(server, QUESTION) != ""
        lines = page.evaluate("told").split("\n\n")
        told = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        details = [chunk["foresay"] for chunk in told if "foresay" in chunk]
        words = [pair for d in details for pair in zip(d["words"], d["sources"], strict=True)]
        assert classes(page) == [source or "model" for word, source in words if word]
        assert page.locator(".answer .token").all_text_contents() == [w for w, _ in words if w]
        drafted, accepted = (sum(d[k] for d in details) for k in ("drafted", "accepted"))
        foot = page.locator(".answer .small").text_content() or ""
        pace = f"{len(words) / len(details):.2f} per step"
        assert foot.startswith(f"{len(words)} tokens · {pace} · {accepted} of {drafted} drafts")
        assert "tokens/s" in foot and accepted > 0

        seen.ask("again")
        assert seen.answered(2) == whole(server, QUESTION, first, "again")
        assert seen.answered(2) != whole(server, "again")  # or the first turn was not sent
        assert set(classes(page)) <= SOURCES and len(set(classes(page))) > 1
        page.click("#anew")
        expect(page.locator("article")).to_have_count(0)
        seen.ask("again")
        assert seen.answered() == whole(server, "again")
        seen.check(server)


def test_sources_are_told_apart_without_colour(browser: Browser, server: Running) -> None:
    with opened(browser, server) as seen:
        legend = seen.page.locator("#legend .token")
        names, styles, colours = (
            legend.evaluate_all(f"all => all.map(t => {what})")
            for what in (
                "t.className.split(' ')[1]",
                "getComputedStyle(t).textDecorationStyle",
                "getComputedStyle(t).textDecorationColor",
            )
        )
        assert names[-1] == "model" and set(names) == SOURCES
        assert colours[-1] == "rgba(0, 0, 0, 0)"  # no line at all
        assert len(set(styles[:-1])) == len(set(colours[:-1])) == len(SOURCES) - 1
        listed = seen.page.locator("#legend li").all_inner_texts()
        assert listed == [
            f"{SOURCE_NAMES[source].name} {SOURCE_NAMES[source].about}"
            for source in SOURCE_NAMES
            if (source or "model") in SOURCES
        ]


def test_the_numbers(browser: Browser, server: Running) -> None:
    with opened(browser, server) as seen:
        page = seen.page
        seen.ask(QUESTION, most=100)
        seen.answered()
        server.idle()
        stats = server.http.get("/v1/spec/stats").json()
        totals, line = stats["totals"], stats["timeline"]
        expect(page.locator("#counts")).to_have_text(f"{totals['accepted']} of {totals['drafted']}")
        expect(page.locator("#pace")).to_have_text(f"{totals['tokens_per_step']:.2f}")
        expect(page.locator("#load")).to_have_text("0 running · 0 waiting")
        assert stats["requests_of"] == "everybody"
        expect(page.locator("#whose")).to_contain_text("no keys: the numbers are of everybody's")
        bars = page.locator("#line .step")
        width = page.evaluate("document.getElementById('line').getBoundingClientRect().width")
        assert bars.count() == min(len(line), int((width - 44) // 4)) > 1
        last = bars.last
        phases = last.locator("rect").evaluate_all("all => all.map(r => r.getAttribute('class'))")
        assert phases == PHASES
        tip = last.get_attribute("data-tip") or ""
        assert f"{line[-1]['accepted']} of {line[-1]['drafted']} draft" in tip
        assert f"{line[-1]['rows']} row" in tip and f"{line[-1]['tokens']} token" in tip
        heights = bars.evaluate_all("all => all.map(bar => bar.getBBox().height)")
        seconds = [sum(step["seconds"].values()) for step in line[-len(heights) :]]
        whole = [i for i in range(len(seconds)) if bars.nth(i).locator(".cut").count() == 0]
        tallest = max(whole, key=lambda i: seconds[i])
        for i in whole:
            wanted = heights[tallest] * seconds[i] / seconds[tallest]
            assert heights[i] == pytest.approx(wanted, rel=0.02, abs=0.5)
        counts = [n for n in totals["accepted_lengths"].values() if n]
        assert page.locator("#lengths .bar").count() == len(counts) > 1
        assert len(page.locator("#flow .curve").get_attribute("d") or "") > len("M0 0")
        seen.check(server)


def test_keys_walk_and_tips_tell(browser: Browser, server: Running) -> None:
    with opened(browser, server) as seen:
        page, tip = seen.page, seen.page.locator("#tip")
        seen.ask(QUESTION)
        seen.answered()
        tokens = page.locator(".answer .token")
        expect(page.locator(".answer .token[tabindex='0']")).to_have_count(1)
        tokens.first.focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        expect(tokens.nth(tokens.count() - 2)).to_be_focused()
        expect(tip).to_have_text(tokens.nth(tokens.count() - 2).get_attribute("data-tip") or "")
        tokens.first.hover()
        meant = {"model": "the model's own", "own": "this conversation"}
        expect(tip).to_contain_text(meant.get(classes(page)[0], "earlier answers"))
        page.locator("#line .step").first.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#line .step").nth(1)).to_be_focused()
        expect(tip).to_contain_text("forward")
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()


def test_what_is_refused_is_told_in_the_servers_words(browser: Browser, server: Running) -> None:
    asked = {"messages": [{"role": "user", "content": "a"}], "temperature": -3}
    refused = server.refused("/v1/chat/completions", 400, **asked)
    with opened(browser, server) as seen:
        seen.ask("a", temperature="-3")
        expect(seen.page.locator("[role=alert]")).to_have_text(refused["message"])
        expect(seen.page.locator("#question")).to_have_value("a")  # to be asked again
        seen.ask("b")
        assert seen.answered(2) == whole(server, "b")  # the first was no part of it
        seen.check(server, f"{REFUSED} 400")


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model that answers everything with <script><script>…, one token a step."""
    folder = save_model(tmp_path_factory.mktemp("scripted"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = LlamaForCausalLM.from_pretrained(folder)
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "<script>"]
    assert len(set(letters)) == 8
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()  # so that the last token alone decides
        embed, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embed.zero_()
        head.zero_()
        embed[:, 8] = 1
        head[letters[0], 8] = 1
        for at, letter in enumerate(letters):
            embed[letter] = torch.eye(embed.shape[1])[at]
            head[letters[(at + 1) % 8], at] = 1
    model.save_pretrained(folder)
    with served(folder, options={"policy": "none"}) as found:
        yield found


def test_what_a_model_writes_is_text(browser: Browser, scripted: Running) -> None:
    with opened(browser, scripted) as seen:
        page = seen.page
        seen.ask(MARKUP, most=64)
        assert seen.answered() == "<script>" * 8 == whole(scripted, MARKUP, most=64)
        assert page.locator(".user .text").text_content() == MARKUP
        inside = page.locator("#turns script, #turns img")
        assert inside.count() == 0 and page.title() == "foresay"
        seen.check(scripted)
        # As markup it would have been seen.
        page.locator(".answer .text").evaluate("e => { e.innerHTML = e.textContent }")
        page.locator(".user .text").evaluate("e => { e.innerHTML = e.textContent }")
        assert inside.count() > 1
        page.wait_for_timeout(100)
        assert any("CSP" in complaint for complaint in seen.complaints)


def test_stop(browser: Browser, scripted: Running) -> None:
    with opened(browser, scripted) as seen:
        page = seen.page
        for by_key in (False, True):
            page.click("#anew")
            seen.ask("a", most=4000)
            expect(page.locator(".answer .token").nth(20)).to_be_attached()
            page.keyboard.press("Escape") if by_key else page.click("#stop")
            text = seen.answered()
            assert "<script>" in text and len(text) < 4000
            expect(page.locator(".answer .small")).to_contain_text("stopped")
            scripted.idle(5)  # the engine has stopped too
        seen.ask("go on", most=8)
        assert seen.answered(2) == whole(scripted, "a", text, "go on", most=8)
        seen.check(scripted)


def test_a_server_that_hides(browser: Browser, folder: Path) -> None:
    hiding = served(folder, shield=Shield(pad=256, hide=True))
    with hiding as server, opened(browser, server) as seen:
        sentence = server.http.get("/v1/spec/stats").json()["error"]["message"]
        expect(seen.page.locator("#hidden")).to_contain_text(sentence)
        expect(seen.page.locator("#numbers, #legend").first).to_be_hidden()
        seen.ask(QUESTION)
        assert seen.answered() == whole(server, QUESTION)
        assert classes(seen.page) == []
        foot = seen.page.locator(".answer .small").text_content() or ""
        assert foot.startswith("60 tokens · ") and "draft" not in foot
        seen.check(server, f"{REFUSED} 403")


def test_with_a_key_and_coalesced(browser: Browser, folder: Path) -> None:
    """As a browser logs in; and several steps in one chunk count as several."""
    key = "a-good-key-of-one"
    options: Any = {"keys": Keys.of([(key, "one")]), "shield": Shield(coalesce=16)}
    with served(folder, key=key, **options) as server:
        login: Any = {"username": "anybody", "password": key}
        with opened(browser, server, http_credentials=login) as seen:
            seen.ask(QUESTION)
            assert seen.answered() == whole(server, QUESTION)
            foot = seen.page.locator(".answer .small").text_content() or ""
            accepted = int(foot.split(" · ")[2].split()[0])
            assert accepted > 0 and f"{60 / (60 - accepted):.2f} per step" in foot
            assert server.http.get("/v1/spec/stats").json()["requests_of"] == "tenant"
            expect(seen.page.locator("#whose")).to_contain_text("of requests with your key")
            seen.check(server)
        with browser.new_context() as context, pytest.raises(Error, match="AUTH_CREDENTIALS"):
            context.new_page().goto(server.url)  # where a person would be asked for them


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_it_fits_and_can_be_read(
    browser: Browser, server: Running, scheme: Any, width: int, height: int
) -> None:
    size: Any = {"width": width, "height": height}
    with opened(browser, server, viewport=size, color_scheme=scheme) as seen:
        seen.ask("x" * 300 + " y" * 1000)  # one word that is too long, and more than fits
        seen.answered()
        for box in ("html", "#turns", "#numbers"):
            script = "e => e.scrollWidth - e.clientWidth"
            assert seen.page.locator(box).evaluate(script) <= 0, box
        for text in ("#question", ".answer .token.model", ".answer .small", "dt", "#send"):
            assert contrast(seen.page, text) >= 4.5, text
        expect(seen.page.locator("#send")).to_be_in_viewport()


def contrast(page: Page, selector: str) -> float:
    """Of a text with what is behind it, as the accessibility guidelines define it."""
    colours: list[list[float]] = page.locator(selector).first.evaluate(
        """e => {
          const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
          const text = numbers(getComputedStyle(e).color).slice(0, 3);
          for (; e; e = e.parentElement) {
            const [r, g, b, a = 1] = numbers(getComputedStyle(e).backgroundColor);
            if (a === 1) return [text, [r, g, b]];
          }
        }"""
    )

    def light(colour: list[float]) -> float:
        parts = [c / 255 for c in colour]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted(map(light, colours))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
def test_the_watch_sees_what_it_must(browser: Browser, server: Running) -> None:
    for script in (
        "fetch('http://elsewhere.invalid/').catch(() => 0)",
        "document.body.append(Object.assign(new Image(), {src: 'http://elsewhere.invalid/'}))",
        "document.body.setAttribute('style', 'color: red')",
        "console.error('something')",
    ):
        with opened(browser, server) as seen:
            seen.page.evaluate(script)
            seen.page.wait_for_timeout(100)
            with pytest.raises(AssertionError):
                seen.check(server)


def test_the_files_are_small_and_whole() -> None:
    files = {path.name: path.read_text() for path in PAGE.iterdir()}
    assert sum(len(text.encode()) for text in files.values()) < 40_000
    for source in Source:
        name = source.value or "model"  # what it is called comes from SOURCE_NAMES
        assert (f"\n.{name} {{" in files["page.css"]) == (name != "model")
    for text in files.values():
        assert not any(word in text for word in ("innerHTML", "insertAdjacent", "eval(", "https:"))


@pytest.mark.slow
@pytest.mark.model
def test_the_default_model(browser: Browser) -> None:
    drafter = tenant_drafter(1, 1 << 24)
    # What is shown is the page's business; whether drafts pay is the machine's.
    llm = default_llm().beside(drafter, "fixed", with_sources=True)
    question = "Name the planets in order, then name them again."
    with running(llm, drafter) as server, opened(browser, server) as seen:
        idea = seen.page.get_by_text(question)
        seen.page.fill("#most", "24")
        idea.click()
        first = seen.answered()
        assert first == whole(server, question, most=24)
        seen.page.click("#anew")
        seen.ask(question, most=24)
        assert seen.answered() == first
        assert "history" in classes(seen.page)  # it has written this before
        seen.check(server)
