"""What somebody does with the page who leaves it open: compare, ask again, edit, set, keep chats.
On a desktop and on a phone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Request, Route, expect

from serve.browsing import DESKTOP, PHONE, Seen, opened, sources, whole
from serve.running import Running

QUESTION = "one two three one two three one"
CHATS = "/v1/chat/completions"


@pytest.fixture(params=[DESKTOP, PHONE], ids=["1280", "420"])
def seen(request: Any, browser: Browser, server: Running) -> Iterator[Seen]:
    with opened(browser, server, viewport=request.param) as page:
        yield page
        page.fits()
        page.check(server)


def bodies(seen: Seen) -> list[dict[str, Any]]:
    """The bodies of all questions that are asked from now on."""
    found: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith(CHATS):
            found.append(json.loads(request.post_data or ""))

    seen.page.on("request", note)
    return found


def named(seen: Seen, name: str) -> Locator:
    return seen.page.get_by_role("button", name=name, exact=True)


def test_side_by_side_without_drafts(seen: Seen, server: Running) -> None:
    asked, page = bodies(seen), seen.page
    # The first answer that is long enough for drafts: which one that is depends on the processor.
    ask = partial(whole, server, QUESTION, temperature=0.8)
    seed = next(seed for seed in range(100) if len(ask(seed=seed)) > 40)
    seen.set(temperature="0.8", seed=str(seed))
    page.check("#compare")
    seen.ask(QUESTION)
    seen.answered(2)
    drafting, plainly = sorted(asked, key=lambda body: "speculative" in body)
    assert plainly.pop("speculative") is False and plainly == drafting
    texts = page.locator(".answer .text").all_text_contents()
    assert texts == [ask(seed=seed)] * 2
    left, right = (page.locator(".two .answer").nth(at) for at in (0, 1))
    expect(left.locator(".facts")).not_to_contain_text("nothing drafted")
    tokens = right.locator(".token").evaluate_all("all => all.map(t => t.dataset.source)")
    assert set(tokens) == {"model"}
    told = right.locator(".facts").text_content() or ""
    assert re.match(r"\d+ tokens · 1\.00 per step · nothing drafted · ", told), told
    boxes = [left.bounding_box(), right.bounding_box()]
    assert boxes[0] and boxes[1] and boxes[0]["y"] == boxes[1]["y"]  # beside each other
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text(f"✓ Identical, all {len(texts[0])} characters.")
    expect(verdict).to_contain_text("times as fast")
    expect(verdict).to_contain_text(f"at the same time, with seed {seed}")
    seconds = [float(text.split(" tokens/s")[0].split()[-1]) for text in facts(page)]
    first = "With drafts" if seconds[0] >= seconds[1] else "Without drafts"
    expect(verdict).to_contain_text(f"{first} it was done")
    # The chat goes on with it.
    page.uncheck("#compare")
    seen.set(temperature="0")
    seen.ask("again")
    assert seen.answered(3) == whole(server, QUESTION, texts[0], "again")


def test_a_comparison_without_a_seed_is_given_one(browser: Browser, server: Running) -> None:
    with opened(browser, server) as seen:
        asked = bodies(seen)
        seen.set(temperature="0.8")
        seen.page.check("#compare")
        seen.ask(QUESTION)
        seen.answered(2)
        seeds = {body["seed"] for body in asked}
        assert len(asked) == 2 and len(seeds) == 1 and seeds.pop() in range(2**32)
        expect(seen.page.locator(".verdict")).to_contain_text("✓ Identical, all ")
        seen.check(server)


def facts(page: Any) -> list[str]:
    found: list[str] = page.locator(".answer .facts").all_text_contents()
    return found


def test_a_difference_is_seen(browser: Browser, server: Running) -> None:
    """The comparison can fail: the second answer is made another one on its way."""

    def spoil(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        if body.get("speculative") is False:
            body["logit_bias"] = {str(ord("~")): 5}
        route.continue_(post_data=json.dumps(body))

    with opened(browser, server) as seen:
        seen.page.route(f"**{CHATS}", spoil)
        seen.page.check("#compare")
        seen.ask(QUESTION)
        seen.answered(2)
        one, other = seen.page.locator(".answer .text").all_text_contents()
        at = next(at for at in range(len(one)) if one[: at + 1] != other[: at + 1])
        verdict = seen.page.locator(".verdict")
        expect(verdict).to_contain_text(f"✗ Different from character {at + 1} on:")
        shown = verdict.locator("mark").all_text_contents()
        assert shown == [one[at : at + 24], other[at : at + 24]]
        seen.check(server)


def test_regenerate_and_edit(seen: Seen, server: Running) -> None:
    page = seen.page
    for question in ("a", "b"):
        seen.ask(question)
        seen.answered("ab".index(question) + 1)
    first = whole(server, "a")
    named(seen, "Ask this question again").nth(1).click()
    assert seen.answered(2) == whole(server, "a", first, "b")
    named(seen, "Edit this question").first.click()
    box = page.get_by_label("The question, edited")
    expect(box).to_be_focused()
    expect(box).to_have_value("a")
    page.keyboard.press("Escape")
    expect(page.locator(".user .text").first).to_have_text("a")
    named(seen, "Edit this question").first.click()
    box.fill("c")
    named(seen, "Ask again").click()
    assert seen.answered(1) == whole(server, "c")
    expect(page.locator("#notice")).to_contain_text("is kept, in Chats")
    seen.ask("d")
    assert seen.answered(2) == whole(server, "c", whole(server, "c"), "d")
    # The chat from before is kept, as it was.
    page.click("#open-chats")
    titles = page.locator("#chats .title")
    expect(titles).to_have_count(2)
    titles.nth(1).click()
    assert page.locator(".user .text").all_text_contents() == ["a", "b"]


def test_settings_are_checked_as_the_server_checks_them(seen: Seen, server: Running) -> None:
    page, asked = seen.page, bodies(seen)
    page.click("#open-settings")
    wrong = {
        "temperature": ("9", "Temperature is 9; expected 0, or a number from 0.001 to 2."),
        "max_tokens": ("0", "Max tokens is 0; expected a whole number from 1 to 2147483647."),
        "top_p": ("0", "Top p is 0; expected a number above 0, at most 1."),
        "top_k": ("1.5", "Top k is 1.5; expected a whole number from 0 to 2147483646."),
        "min_p": ("many", "Min p is many; expected a number from 0 to 1."),
        "repetition_penalty": ("-1", "Repetition penalty is -1; expected a number from 0.000001"),
        "seed": ("-1", "Seed is -1; expected a whole number from 0 to 9007199254740991."),
    }
    for name, (value, sentence) in wrong.items():
        page.fill(f"#{name}", value)
        expect(page.locator(f"#{name}-wrong")).to_contain_text(sentence)
        page.click("#settings .main")
        expect(page.locator("#settings")).to_be_visible()  # it is not taken
        expect(page.locator(f"#{name}")).to_be_focused()
        page.fill(f"#{name}", "1")
        expect(page.locator(f"#{name}-wrong")).to_be_empty()
    page.keyboard.press("Escape")
    seen.ask("a")
    seen.answered()
    assert {**asked[-1], "temperature": 0, "max_tokens": 60} == asked[-1]  # as before
    seen.set(temperature="0.5", top_p="0.9", seed="7", max_tokens="5", system="Be short.")
    expect(page.locator("#chosen")).to_have_text("temperature 0.5, 5 tokens, system prompt")
    page.reload()
    seen.ask("a")
    seen.answered()
    sent = asked[-1]
    assert sent["messages"][0] == {"role": "system", "content": "Be short."}
    assert {**sent, "temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 5} == sent
    assert "top_k" not in sent and "min_p" not in sent
    assert all(name in sent for name in ("seed", "top_p"))
    page.click("#open-settings")
    page.click("[data-do=usual]")
    page.click("#settings .main")
    expect(page.locator("#chosen")).to_have_text("temperature 0, 512 tokens, system prompt")


BOUNDS: list[tuple[str, float, float]] = [
    ("temperature", 0.001, 0.0005),
    ("top_p", 1, 1.1),
    ("top_p", 0.1, 0),
    ("min_p", 0, -0.1),
    ("min_p", 1, 1.5),
    ("top_k", 2**31 - 2, 2**31),
    ("repetition_penalty", 1e-6, 0),
    ("max_tokens", 1, 0),
    ("seed", 2**53 - 1, 0.5),
]


def test_the_bounds_are_the_servers(browser: Browser, server: Running) -> None:
    script = "async ([n, v]) => (await import('/page/settings.js')).wrong(n, String(v))"
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    with opened(browser, server) as seen:
        for name, good, bad in BOUNDS:
            server.good(CHATS, **{**body, name: good})
            server.refused(CHATS, 400, **{**body, name: bad})
            assert seen.page.evaluate(script, [name, good]) is None, name
            assert seen.page.evaluate(script, [name, bad]) is not None, name


def test_chats_are_kept_opened_exported_and_deleted(seen: Seen, server: Running) -> None:
    page = seen.page
    for question in ("first chat", "second chat"):
        page.click("#anew")
        seen.ask(question)
        seen.answered()
    page.reload()
    expect(page.locator("article")).to_have_count(0)
    page.click("#open-chats")
    titles = page.locator("#chats .title")
    assert [t.partition("1 question")[0] for t in titles.all_text_contents()] == [
        "second chat",
        "first chat",
    ]
    with page.expect_download() as download:
        page.click("[data-do=export]")
    saved = json.loads(Path(download.value.path()).read_text())["chats"]
    said = [{"role": "user", "content": "first chat"}]
    said.append({"role": "assistant", "content": whole(server, "first chat")})
    assert saved[1]["messages"] == said and len(saved) == 2
    titles.nth(1).click()
    assert page.locator(".user .text").all_text_contents() == ["first chat"]
    assert seen.answered() == said[1]["content"]
    seen.ask("again")
    assert seen.answered(2) == whole(server, "first chat", said[1]["content"], "again")
    page.click("#open-chats")
    named(seen, "Delete: first chat").click()  # the one that is open
    expect(titles).to_have_count(1)
    expect(page.locator("article")).to_have_count(0)
    page.click("[data-do=clear]")
    expect(titles).to_have_count(1)  # only when it is pressed again
    page.click("[data-do=clear]")
    expect(titles).to_have_count(0)
    page.keyboard.press("Escape")
    kept = page.evaluate("Object.keys(localStorage).filter(k => k.startsWith('foresay.chat.'))")
    assert kept == []


def test_what_is_kept_is_bounded_and_checked(browser: Browser, server: Running) -> None:
    script = """async () => {
      const kept = await import("/page/kept.js");
      const turn = (n) => ({ question: `q${n}`, answer: "a".repeat(300_000), facts: "" });
      const notices = [];
      for (let n = 0; n < 60; n++) {
        const small = { ...turn(n), answer: "a" };
        notices.push(kept.keep({ ...kept.newChat(), turns: [small] }));
      }
      const many = kept.all().length;
      for (let n = 0; n < 30; n++) notices.push(kept.keep({ ...kept.newChat(), turns: [turn(n)] }));
      const big = kept.all().length;
      const whole = { ...kept.newChat(), turns: [turn(0), turn(1), turn(2), turn(3)] };
      notices.push(kept.keep(whole));
      for (const text of ["", "{}", "[", "null", '{"id":"x","turns":5}', '"<b>"']) {
        localStorage.setItem("foresay.chat.x", text);
        kept.all();
      }
      const titles = kept.all().map((chat) => chat.title);
      return { many, big, notices: [...new Set(notices)], latest: titles[0], count: titles.length };
    }"""
    with opened(browser, server) as seen:
        found = seen.page.evaluate(script)
        assert found["many"] == 50 and 5 < found["big"] < 50  # the oldest went
        assert found["latest"] == "q29" and found["count"] == found["big"]
        assert len(found["notices"]) == 2 and "chats up to 1000000 are kept" in found["notices"][1]
        seen.page.reload()
        expect(seen.page.locator("#model")).to_have_text("tiny")
        seen.check(server)


def test_keyboard_and_names(seen: Seen, server: Running) -> None:
    """All can be reached by Tab and has a name; dialogs keep the focus and give it back."""
    page = seen.page
    seen.ask(QUESTION)
    seen.answered()
    unnamed = """() => [...document.querySelectorAll("button, input, textarea, svg, [tabindex]")]
      .filter(e => e.checkVisibility() && e.ariaHidden !== "true")
      .filter(e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length))
      .map(e => e.outerHTML)"""
    assert page.evaluate(unnamed) == []
    reached = set[str]()
    page.locator("#open-chats").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.id"))
    wanted = {"anew", "Conversation", "Edit this question", "Copy the answer", "question"}
    assert reached >= wanted | {"Ask this question again", "open-settings", "compare", "send"}
    page.locator("#open-settings").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_visible()
    assert page.evaluate(unnamed) == []
    page.keyboard.press("Escape")
    expect(page.locator("#open-settings")).to_be_focused()
    page.locator("#compare").focus()
    page.keyboard.press("Space")
    expect(page.locator("#compare")).to_be_checked()


def test_charts_on_a_phone(browser: Browser, server: Running) -> None:
    with opened(browser, server, viewport=PHONE) as seen:
        page = seen.page
        seen.ask(QUESTION)
        seen.answered()
        expect(page.locator("#numbers")).to_be_hidden()
        expect(page.locator("#send")).to_be_in_viewport()
        named(seen, "Charts").click()
        expect(page.locator("#send")).to_be_hidden()
        expect(page.locator("#rate")).to_be_in_viewport()
        for chart in ("#flow .curve", "#lengths .bar", "#line .step"):
            page.locator(chart).first.scroll_into_view_if_needed()
            expect(page.locator(chart).first).to_be_in_viewport()
        assert "model" in sources(page)
        seen.fits()
        named(seen, "Chat").click()
        expect(page.locator(".answer .text")).to_be_visible()
        seen.check(server)
