"""Markdown on the page, by the page's own modules in a real browser: what is shown as what, that
text that comes in pieces is shown as if it had come at once, and what hostile text does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from serve.browsing import DESKTOP, PHONE, Seen, opened, whole
from serve.running import Running, served
from serve.scripted import save_scripted

WRITE = """async (pieces) => {
  const { Markdown } = await import("/page/markdown.js");
  const { Marks } = await import("/page/marks.js");
  const root = document.createElement("div");
  const marks = new Marks();
  const writer = new Markdown(root, (from, to) => marks.nodes(from, to));
  let longest = 0;
  const begun = performance.now();
  for (const piece of pieces) {
    const start = performance.now();
    marks.add(piece);
    writer.write(piece);
    longest = Math.max(longest, performance.now() - start);
  }
  const whole = performance.now() - begun;
  for (const button of root.querySelectorAll("figcaption")) button.remove();
  root.normalize();
  const depth = (e) => 1 + Math.max(0, ...[...e.children].map(depth));
  return { html: root.innerHTML, text: root.textContent, longest, whole, depth: depth(root) };
}"""
PRE = '<figure class="code"><pre tabindex="0" role="group" aria-label="Code: {}"><code>'
LINES = '<span class="lines">{}</span></code></pre></figure>'
LINK = '<a href="{0}" target="_blank" rel="noopener noreferrer nofollow" title="{0}">{1}</a>'
TABLE = '<div class="wide" tabindex="0" role="group" aria-label="Table"><table>{}</table></div>'
CASES = {
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "# One\n## Two\ntext": "<h3>One</h3><h4>Two</h4><p>text</p>",
    "#hash 1. not": "<p>#hash 1. not</p>",
    "*a* **b** ~~d~~ _e_ __f__": "<p><em>a</em> <strong>b</strong> <del>d</del> <em>e</em> "
    "<strong>f</strong></p>",
    "***c*** ~d~": "<p><em><strong>c</strong></em> ~d~</p>",
    "2*3*4 a_b_c **open": "<p>2<em>3</em>4 a_b_c **open</p>",
    "**a *b* c**": "<p><strong>a <em>b</em> c</strong></p>",
    r"\*a\* \`b\`": "<p>*a* `b`</p>",
    "`a *b*` and ``c ` d``": "<p><code>a *b*</code> and <code>c ` d</code></p>",
    "`open *a*": "<p>`open <em>a</em></p>",
    "- a\n- b\n  - c\n- d": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li>"
    "<li><p>d</p></li></ul>",
    "1. a\n2. b\n\n   c\n\nd": "<ol><li><p>a</p></li><li><p>b</p><p>c</p></li></ol><p>d</p>",
    "3) a\n4) b": '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>',
    "in\n1990. no list": "<p>in\n1990. no list</p>",
    "- a\n* b": "<ul><li><p>a</p></li></ul><ul><li><p>b</p></li></ul>",
    "> a\n> b\n> > c\n\nd": "<blockquote><p>a\nb</p><blockquote><p>c</p></blockquote>"
    "</blockquote><p>d</p>",
    "> - a\nlazy": "<blockquote><ul><li><p>a\nlazy</p></li></ul></blockquote>",
    "---\n***\n- - -": "<hr><hr><hr>",
    "```python\nif *a*:\n    b\n\n```\nc": PRE.format("python")
    + LINES.format("if *a*:\n    b\n\n")
    + "<p>c</p>",
    "~~~\n``` <b>\n~~~": PRE.format("text") + LINES.format("``` &lt;b&gt;\n"),
    "- ```\n  a\n  ```": f"<ul><li>{PRE.format('text')}{LINES.format('a' + chr(10))}</li></ul>",
    "| a | b |\n|---|:-:|\n| 1 | `x|y` |\nend": TABLE.format(
        '<thead><tr><th> a </th><th class="middle"> b </th></tr></thead><tbody><tr><td> 1 </td>'
        '<td class="middle"> <code>x|y</code> </td></tr></tbody>'
    )
    + "<p>end</p>",
    "a | b\nno table": "<p>a | b\nno table</p>",
    "[a *b*](https://x.example/y)": "<p>"
    + LINK.format("https://x.example/y", "a <em>b</em>")
    + "</p>",
    "see https://x.example/a_b_c, or <mailto:a@b.example>.": "<p>see "
    + LINK.format("https://x.example/a_b_c", "https://x.example/a_b_c")
    + ", or "
    + LINK.format("mailto:a@b.example", "mailto:a@b.example")
    + ".</p>",
    "![a picture](https://x.example/p.png)": "<p>"
    + LINK.format("https://x.example/p.png", "a picture")
    + "</p>",
    "<b>a</b> &amp; <img src=x onerror=alert(1)>": "<p>&lt;b&gt;a&lt;/b&gt; &amp;amp; "
    "&lt;img src=x onerror=alert(1)&gt;</p>",
    "[a](javascript:alert(1)) [b](/v1/models) [c](data:text/html,x) [d](//x.example)": "<p>"
    "[a](javascript:alert(1)) [b](/v1/models) [c](data:text/html,x) [d](//x.example)</p>",
    "[a](JaVaScRiPt:alert(1))[b](\x01javascript:alert(1))<javascript:alert(1)>": "<p>"
    "[a](JaVaScRiPt:alert(1))[b](\x01javascript:alert(1))&lt;javascript:alert(1)&gt;</p>",
}


@pytest.fixture(scope="module")
def page(browser: Browser, server: Running) -> Iterator[Page]:
    with opened(browser, server) as seen:
        yield seen.page
        seen.check(server)


def written(page: Page, *pieces: str) -> Any:
    return page.evaluate(WRITE, list(pieces))


def test_what_is_shown_as_what(page: Page) -> None:
    for text, html in CASES.items():
        assert written(page, text)["html"] == html, text


def test_pieces_are_shown_as_the_whole(page: Page) -> None:
    """Cut anywhere: after each character, and at random places of all cases together."""
    for text in CASES:
        assert written(page, *text)["html"] == written(page, text)["html"], text
    chance = random.Random(0)
    for _ in range(20):
        texts = chance.sample(list(CASES), 12)
        text = chance.choice(["\n\n", "\n"]).join(texts)
        cuts = sorted(chance.sample(range(len(text)), 40))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert written(page, *pieces)["html"] == written(page, text)["html"], text


LONG = 1 << 20
HOSTILE = {
    "a long line": "ab " * (LONG // 3),
    "a long word": "x" * LONG,
    "a long line of code": "```\n" + "x" * LONG,
    "many lines": "word\n" * (LONG // 20),
    "code without an end": "```\n" + "a = 1\n" * (LONG // 24),
    "quotes": ">" * 10_000 + " a\n" + "> " * 10_000 + "b",
    "quotes in lines": (">" * 100 + "\n") * 2000,
    "lists": "".join(" " * (2 * n) + "- a\n" for n in range(300)),
    "brackets": "[" * 100_000,
    "links": "[a](" * 25_000,
    "closed brackets": "[" * 4000 + "]" * 4000 + "](" * 4000,
    "emphasis": "*a " * 3000 + "a* " * 3000,
    "stars": "*" * 100_000 + "a",
    "mixed signs": "*_~`[" * 8_000,
    "backticks": " ".join("`" * (n % 300 + 1) for n in range(3000)),
    "tables": "|a" * 4000 + "|\n" + "|-" * 4000 + "|\n" + "|b" * 4000,
    "spaces": "a" + " " * 100_000 + "\n" + "-" + " " * 7000 + "x",
    "fences": "```\n~~~\n" * 20_000,
    "closings": "https://a.b/" + ")" * 100_000,
}
KEPT = {"a long line", "a long word", "many lines", "brackets", "links"}


@pytest.mark.slow
def test_hostile_text_is_harmless(page: Page) -> None:
    """None takes long, in pieces as they come from a model; nothing is nested deeply, nothing of
    what is no markup is lost."""
    for name, text in HOSTILE.items():
        size = max(len(text) // 500, 20)
        found = written(page, *(text[at : at + size] for at in range(0, len(text), size)))
        assert found["whole"] < 20_000 and found["longest"] < 1000, (name, found["whole"])
        assert found["depth"] < 60, name
        if name in KEPT:
            assert found["text"].replace("\n", "") == text.replace("\n", ""), name


LINKS = "[a](javascript:document.title='hurt')"
IMAGE = "<img src=x onerror=\"document.title='hurt'\">"
SCRIPT = ["<script>document.title='hurt'</script>\n", LINKS, "\n```html\n", IMAGE, "\n> > >\n# "]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["1280", "420"])
def test_a_hostile_model(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, viewport: Any
) -> None:
    folder = save_scripted(tmp_path_factory.mktemp("hostile"), SCRIPT)
    shown = {"markdown": True, "max_tokens": 80}
    with (
        served(folder, options={"policy": "none"}) as server,
        opened(browser, server, viewport=viewport, settings=shown) as seen,
    ):
        seen.ask("a")
        seen.answered()
        text = whole(server, "a", most=80)
        assert text == "".join(SCRIPT) * 16
        page = seen.page
        assert page.locator("#turns").locator("script, img, a, iframe").count() == 0
        assert page.locator(".answer .code").count() == 1  # it was read as Markdown
        assert page.title() == "foresay"
        seen.fits()
        seen.check(server)
        # Each part would be seen as markup: the watch works.
        page.locator(".answer .text").evaluate("(e, text) => { e.innerHTML = text }", text)
        page.wait_for_timeout(100)
        assert any("CSP" in complaint for complaint in seen.complaints)


@pytest.mark.slow
def test_a_line_of_a_megabyte(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    """From a model, and the page still answers to clicks meanwhile."""
    words = [chr(ord("a") + n) * 4096 for n in range(16)]
    folder = save_scripted(tmp_path_factory.mktemp("long"), words)
    settings = {"markdown": True, "max_tokens": 256}
    with (
        served(folder, options={"policy": "none"}) as server,
        opened(browser, server, viewport=PHONE, settings=settings) as seen,
    ):
        seen.ask("a")
        expect(seen.page.locator(".answer .token").nth(20)).to_be_attached()
        seen.page.click("[data-to=numbers]", timeout=2000)
        seen.page.click("[data-to=chat]", timeout=2000)
        assert seen.answered() == "".join(words) * 16
        kept = seen.page.evaluate("Object.values(localStorage).some(v => v.length > 1000000)")
        assert not kept
        expect(seen.page.locator("#notice")).to_contain_text("chats up to 1000000 are kept")
        seen.fits()
        seen.check(server)


def test_code_is_copied_as_it_is(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    code = "if a:\n\n    b = `c`\n"
    folder = save_scripted(tmp_path_factory.mktemp("code"), ["```python\n", code, "```\n\n"])
    options: Any = {"permissions": ["clipboard-read", "clipboard-write"]}
    settings = {"markdown": True, "max_tokens": 3}
    with (
        served(folder) as server,
        opened(browser, server, settings=settings, **options) as seen,
    ):
        seen.ask("a")
        seen.answered()
        check_copied(seen, "Copy the code", code)
        check_copied(seen, "Copy the answer", f"```python\n{code}```\n\n")
        check_copied(seen, "Copy the question", "a")


def check_copied(seen: Seen, name: str, text: str) -> None:
    seen.page.get_by_role("button", name=name).click()
    expect(seen.page.get_by_role("button", name=name)).to_have_text("Copied")
    assert seen.page.evaluate("navigator.clipboard.readText()") == text
