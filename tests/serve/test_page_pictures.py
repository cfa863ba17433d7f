"""The pictures of the page in `docs/`: what they show is there. `FORESAY_SCREENSHOTS=1` takes them
anew; otherwise nothing is written."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from foresay.serve.start import tenant_drafter
from real import default_llm
from serve.browsing import DESKTOP, PHONE, opened
from serve.running import running

DOCS = Path(__file__).parents[2] / "docs" / "page"
NAMES = {"compare": DESKTOP, "phone": PHONE, "charts": PHONE}
LARGEST = 150_000  # bytes
QUESTION = "Write a Python class Point with x and y, then Point3 with z."


def keep(page: Page, name: str) -> None:
    if os.environ.get("FORESAY_SCREENSHOTS") != "1":
        return
    page.mouse.move(0, 0)
    whole = Image.open(io.BytesIO(page.screenshot(animations="disabled", caret="hide")))
    method = Image.Quantize.MAXCOVERAGE  # so that rare colours stay what they are
    few = whole.convert("RGB").quantize(256, method, dither=Image.Dither.NONE)
    few.save(DOCS / f"{name}.png", optimize=True)


@pytest.mark.slow
@pytest.mark.model
def test_what_the_pictures_show(browser: Browser) -> None:
    drafter = tenant_drafter(1, 1 << 24)
    llm = default_llm().beside(drafter, "adaptive", with_sources=True)
    settings = {"markdown": True, "max_tokens": 96}
    with running(llm, drafter, name="SmolLM2-135M-Instruct") as server:
        with opened(browser, server, settings=settings) as seen:
            seen.page.check("#compare")
            seen.ask(QUESTION)
            seen.answered(2)
            expect(seen.page.locator(".verdict")).to_contain_text("✓ Identical")
            assert seen.page.locator(".answer .code").count() >= 2
            assert seen.page.locator("#line .step").count() > 20
            seen.fits()
            expect(seen.page.locator(".verdict")).to_be_in_viewport()
            keep(seen.page, "compare")
        with opened(
            browser, server, viewport=PHONE, color_scheme="dark", settings=settings
        ) as seen:
            seen.ask(QUESTION)
            seen.answered()
            assert seen.page.locator(".answer [data-mark]").count() > 10
            seen.page.locator(".user").scroll_into_view_if_needed()
            keep(seen.page, "phone")
            seen.page.get_by_role("button", name="Charts", exact=True).click()
            expect(seen.page.locator("#line .step").first).to_be_attached()
            for chart in ("#flow", "#luck", "#lengths", "#line"):
                box = seen.page.locator(chart).bounding_box()
                assert box is not None and box["width"] > 350 and box["height"] > 80
            seen.fits()
            keep(seen.page, "charts")


def test_the_pictures_are_small() -> None:
    assert {path.name for path in DOCS.iterdir()} == {f"{name}.png" for name in NAMES}
    for name, size in NAMES.items():
        path = DOCS / f"{name}.png"
        assert path.stat().st_size < LARGEST, name
        with Image.open(path) as picture:
            assert picture.size == (size["width"], size["height"]) and picture.mode == "P"
            assert len(picture.convert("L").getcolors() or ()) > 8, name  # it is not empty
