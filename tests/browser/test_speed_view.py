"""The speed panel: the server's figures, as they change."""

from __future__ import annotations

import re

import pytest

from browser.conftest import OpenPage, send, wait_for_answer
from served import Served

pytestmark = pytest.mark.real_model


def test_figures_come_by_themselves(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.locator("#speed-against", has_text="plain decoding").wait_for()
    assert page.get_by_text("Send a message to fill this.").is_visible()
    send(page, "Hello")
    wait_for_answer(page)
    page.locator("#totals", has_text="(100 %)").wait_for()  # all that was drafted is accepted
    positions = page.locator("#chart-positions svg").get_attribute("aria-label")
    assert re.search(r"position 1: 100 % of \d+, position 2: 100 % of \d+\.", positions)
    page.locator("#chart-speed .line:not(.dashed)[d*=L]").wait_for(state="attached")
    page.locator("#chart-speed .line.dashed[d*=L]").wait_for(state="attached")
    assert float(page.locator("#speed-now").text_content()) > 0


def test_a_hidden_page_asks_for_nothing(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.locator("#model", has_text="paced").wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(300)  # a request that was under way ends
    asked.clear()
    page.wait_for_timeout(1500)
    assert asked == []
