"""The page in a real browser, Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect

from serve.running import Running

DESKTOP: Any = {"width": 1280, "height": 860}
PHONE: Any = {"width": 420, "height": 860}
REFUSED = "Failed to load resource: the server responded with a status of"
_PRESET = "localStorage['foresay.settings'] ??= JSON.stringify(%s)"


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

    def ask(self, question: str) -> None:
        self.page.fill("#question", question)
        self.page.press("#question", "Enter")

    def set(self, **values: str) -> None:
        """Fill fields of the settings, and save them."""
        self.page.click("#open-settings")
        for name, value in values.items():
            self.page.fill(f"#{name}", value)
        self.page.click("#settings .main")
        expect(self.page.locator("#settings")).to_be_hidden()
        self.page.mouse.move(0, 0)  # what is pointed at is not drawn anew

    def answered(self, count: int = 1) -> str:
        """The text of the last answer, of so many."""
        answers = self.page.locator("article.answer")
        expect(answers).to_have_count(count)
        expect(self.page.locator("#send")).to_be_enabled(timeout=60_000)
        return answers.locator(".text").nth(count - 1).text_content() or ""

    def fits(self) -> None:
        """Nothing is wider than the window, and nothing but code and tables than its box."""
        for box in ("html", "#turns", "#numbers"):
            wider = self.page.locator(box).evaluate("e => e.scrollWidth - e.clientWidth")
            assert wider <= 0, box

    def check(self, server: Running, *complaints: str) -> None:
        """It has asked this server only, and complained of nothing else."""
        own = urlsplit(server.url).netloc
        asked = (url for url in self.urls if not url.startswith(("data:", "blob:")))
        assert {urlsplit(url).netloc for url in asked} == {own}
        left = [c for c in self.complaints if not c.startswith(complaints or ("\0",))]
        assert left == []
        if complaints:
            assert self.complaints


@contextmanager
def opened(
    browser: Browser,
    server: Running,
    *,
    viewport: Any = DESKTOP,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[Seen]:
    """The page, with short answers that are shown as they are written, unless `settings` differ."""
    preset = {"max_tokens": 60, "temperature": 0, "markdown": False, **(settings or {})}
    with browser.new_context(viewport=viewport, **options) as context:
        context.set_default_timeout(20_000)
        seen = Seen(context.new_page())
        seen.page.add_init_script(_PRESET % json.dumps(preset))
        response = seen.page.goto(server.url)
        assert response is not None and response.status == 200
        expect(seen.page.locator("#model")).not_to_have_text("…")
        yield seen


def whole(server: Running, *said: str, most: int = 60, **more: Any) -> str:
    """What the API answers to the last of these, which user and model have said in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    asked = {"messages": messages, "temperature": 0, "max_tokens": most, **more}
    text: str = server.good("/v1/chat/completions", **asked)["choices"][0]["message"]["content"]
    return text


def sources(page: Page) -> list[str]:
    """The sources of all tokens of all answers, in order."""
    script = "all => all.map(token => token.dataset.source)"
    found: list[str] = page.locator(".answer .text .token").evaluate_all(script)
    return found


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
