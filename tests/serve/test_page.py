"""The page, as a real browser shows it: Chromium, driven by playwright."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, expect

from foresay.drafter import SOURCE_NAMES, Source
from foresay.serve.app import PAGE
from foresay.serve.keys import Keys
from foresay.serve.shield import Shield
from foresay.serve.start import tenant_drafter
from real import default_llm
from serve.browsing import DESKTOP, PHONE, REFUSED, contrast, opened, sources, whole
from serve.running import Running, running, served
from serve.scripted import save_scripted

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
        assert sources(page) == [source or "model" for word, source in words if word]
        assert page.locator(".answer .text .token").all_text_contents() == [
            w for w, _ in words if w
        ]
        drafted, accepted = (sum(d[k] for d in details) for k in ("drafted", "accepted"))
        foot = page.locator(".answer .facts").text_content() or ""
        pace = f"{len(words) / len(details):.2f} per step"
        assert foot.startswith(f"{len(words)} tokens · {pace} · {accepted} of {drafted} drafts")
        assert "tokens/s" in foot and accepted > 0

        seen.ask("again")
        assert seen.answered(2) == whole(server, QUESTION, first, "again")
        assert seen.answered(2) != whole(server, "again")  # or the first turn was not sent
        assert set(sources(page)) <= SOURCES and len(set(sources(page))) > 1
        page.click("#anew")
        expect(page.locator("article")).to_have_count(0)
        seen.ask("again")
        assert seen.answered() == whole(server, "again")
        seen.check(server)


def test_a_legend_of_what_occurred(browser: Browser, server: Running) -> None:
    """Under the names of the command line, with the marks of the text; nothing else."""
    with opened(browser, server) as seen:
        seen.ask(QUESTION)
        seen.answered()
        found = sources(seen.page)
        named = [s for s in SOURCE_NAMES if (s or "model") in found]
        drafted = [SOURCE_NAMES[s].name for s in named if s]
        legend = seen.page.locator(".answer .legend .token")
        assert legend.all_text_contents() == drafted != []
        listed = seen.page.locator("#sources .token")
        assert listed.all_text_contents() == [SOURCE_NAMES[s].name for s in named]
        counts = seen.page.locator("#sources small:not(.about)").all_text_contents()
        tokens = [int(count.split()[0]) for count in counts]
        assert sum(tokens) == 60 and all(
            count >= found.count(s or "model") for s, count in zip(named, tokens, strict=True)
        )  # a token that is part of a character is counted, and not seen
        marks = "all => Object.fromEntries(all.map(t => [t.textContent, t.dataset.mark]))"
        text = seen.page.locator(".answer .text .token")
        by_source = text.evaluate_all(marks.replace("t.textContent", "t.dataset.source"))
        by_name = listed.evaluate_all(marks)
        assert by_source == {s or "model": by_name[SOURCE_NAMES[s].name] for s in named}


def test_marks_are_told_apart_without_colour(browser: Browser, server: Running) -> None:
    """There are enough for every source, also for one that is added."""
    with opened(browser, server) as seen:
        looks = seen.page.evaluate("""() => [...Array(12).keys()].map(at => {
          const token = document.createElement("span");
          token.className = "token";
          token.dataset.mark = at;
          document.body.append(token);
          const style = getComputedStyle(token);
          return ["Style", "Line", "Color"].map(what => style["textDecoration" + what]);
        })""")
        styles, colours = {(style, line) for style, line, _ in looks}, {c for _, _, c in looks}
        assert len(styles) == len(colours) == len(looks) > len(Source) - 1


def test_the_numbers(browser: Browser, server: Running) -> None:
    with opened(browser, server) as seen:
        page = seen.page
        seen.set(max_tokens="100")
        seen.ask(QUESTION)
        seen.answered()
        facts = (page.locator(".answer .facts").text_content() or "").split(" · ")
        server.idle()
        stats = server.http.get("/v1/spec/stats").json()
        totals, line = stats["totals"], stats["timeline"]
        told = f"{totals['tokens']} tokens, {totals['tokens_per_step']:.2f} per step; "
        told += f"{totals['accepted']} of {totals['drafted']} drafts accepted."
        expect(page.locator("#sums")).to_have_text(told)
        # The headline is the answer's own, and stays when nothing is written any more.
        page.wait_for_timeout(2500)
        assert page.locator("#pace").text_content() == facts[1].split()[0]
        assert page.locator("#counts").text_content() == facts[2].partition(" drafts")[0]
        rate = page.locator("#rate").text_content() or ""
        assert rate == facts[3].split()[0] and float(rate) > 0
        expect(page.locator("#whole")).to_have_text("The last answer")
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
        tokens = page.locator(".answer .text .token")
        expect(page.locator(".answer .text .token[tabindex='0']")).to_have_count(1)
        tokens.first.focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        expect(tokens.nth(tokens.count() - 2)).to_be_focused()
        expect(tip).to_have_text(tokens.nth(tokens.count() - 2).get_attribute("data-tip") or "")
        tokens.first.hover()
        meant = {"model": "the model's own", "own": "this conversation"}
        expect(tip).to_contain_text(meant.get(sources(page)[0], "earlier answers"))
        page.locator("#line .step").first.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#line .step").nth(1)).to_be_focused()
        expect(tip).to_contain_text("forward")
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model that answers everything with <script><script>…, one token a step."""
    folder = save_scripted(tmp_path_factory.mktemp("scripted"), "<script>")
    with served(folder, options={"policy": "none"}) as found:
        yield found


def test_what_a_model_writes_is_text(browser: Browser, scripted: Running) -> None:
    with opened(browser, scripted) as seen:
        page = seen.page
        seen.set(max_tokens="64")
        seen.ask(MARKUP)
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
        seen.set(max_tokens="4000")
        for by_key in (False, True):
            page.click("#anew")
            seen.ask("a")
            expect(page.locator(".answer .text .token").nth(20)).to_be_attached()
            page.keyboard.press("Escape") if by_key else page.click("#stop")
            text = seen.answered()
            assert "<script>" in text and len(text) < 4000
            expect(page.locator(".answer .facts")).to_contain_text("stopped")
            scripted.idle(5)  # the engine has stopped too
        seen.set(max_tokens="8")
        seen.ask("go on")
        assert seen.answered(2) == whole(scripted, "a", text, "go on", most=8)
        seen.check(scripted)


def test_a_server_that_hides(browser: Browser, folder: Path) -> None:
    hiding = served(folder, shield=Shield(pad=256, hide=True))
    with hiding as server, opened(browser, server) as seen:
        sentence = server.http.get("/v1/spec/stats").json()["error"]["message"]
        expect(seen.page.locator("#hidden")).to_contain_text(sentence, ignore_case=True)
        expect(seen.page.locator("#numbers")).to_be_hidden()
        seen.ask(QUESTION)
        assert seen.answered() == whole(server, QUESTION)
        assert sources(seen.page) == []
        foot = seen.page.locator(".answer .facts").text_content() or ""
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
            foot = seen.page.locator(".answer .facts").text_content() or ""
            accepted = int(foot.split(" · ")[2].split()[0])
            assert accepted > 0 and f"{60 / (60 - accepted):.2f} per step" in foot
            assert server.http.get("/v1/spec/stats").json()["requests_of"] == "tenant"
            expect(seen.page.locator("#whose")).to_contain_text("of requests with your key")
            seen.check(server)
        with browser.new_context() as context, pytest.raises(Error, match="AUTH_CREDENTIALS"):
            context.new_page().goto(server.url)  # where a person would be asked for them


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["1280", "420"])
def test_it_fits_and_can_be_read(
    browser: Browser, server: Running, scheme: Any, viewport: Any
) -> None:
    with opened(browser, server, viewport=viewport, color_scheme=scheme) as seen:
        seen.ask("x" * 300 + " y" * 1000)  # one word that is too long, and more than fits
        seen.answered()
        seen.fits()
        texts = ("#question", ".answer .token[data-source=model]", ".answer .facts", "dt", "#send")
        for text in (*texts, ".actions button", "#chosen"):
            assert contrast(seen.page, text) >= 4.5, text
        expect(seen.page.locator("#send")).to_be_in_viewport()


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
    assert sum(len(text.encode()) for text in files.values()) < 100_000
    linked = re.findall(r'"/page/([\w.]+)"', "".join(files.values()))
    assert set(linked) == {*files, "sources.js"} - {"index.html"}
    for text in files.values():
        assert not any(word in text for word in ("innerHTML", "insertAdjacent", "eval(", "@import"))
        # No address: nothing is loaded from elsewhere. (A picture names its format.)
        assert "//" not in re.sub(r"(?m)//www.w3.org/2000/svg|(^|\s)//.*|:\\/\\/", "", text)


@pytest.mark.slow
@pytest.mark.model
def test_the_default_model(browser: Browser) -> None:
    drafter = tenant_drafter(1, 1 << 24)
    # What is shown is the page's business; whether drafts pay is the machine's.
    llm = default_llm().beside(drafter, "fixed", with_sources=True)
    question = "Name the planets in order, then name them again."
    short = {"max_tokens": 24}
    with running(llm, drafter) as server, opened(browser, server, settings=short) as seen:
        seen.page.get_by_text(question).click()
        first = seen.answered()
        assert first == whole(server, question, most=24)
        seen.page.click("#anew")
        seen.ask(question)
        assert seen.answered() == first
        assert "history" in sources(seen.page)  # it has written this before
        seen.check(server)
