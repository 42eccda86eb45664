"""Themes, widths, keyboard and screen reader."""

from __future__ import annotations

from typing import Any

import pytest

from browser.conftest import ANSWER, OpenPage, send, shoot, wait_for_answer
from served import Served

pytestmark = pytest.mark.real_model

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

WIDTHS = (360, 768, 1080, 1920)
SERIOUS = ("serious", "critical")


def findings(page: Any) -> list[str]:
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in SERIOUS]


def background(page: Any) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_theme_follows_the_system_until_one_is_chosen(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url, color_scheme="dark")
    dark = background(page)
    page.emulate_media(color_scheme="light")
    light = background(page)
    assert dark != light
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    assert background(page) == dark
    page.reload()
    assert background(page) == dark
    page.get_by_role("button", name="Theme: dark").click()
    assert background(page) == light


@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_fits(server: Served, open_page: OpenPage, width: int) -> None:
    page = open_page(server.url, width=width)
    send(page, "Hello " + "verylongword" * 20)
    wait_for_answer(page)
    page.locator("#policy", has_text="fixed").wait_for(state="attached")
    for view in ("chat", "race", "speed"):
        page.goto(f"{server.url}/#{view}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shoot(page, f"{view}-{width}")
    shown = page.locator("#chart-speed svg, #chart-positions svg, #chart-drafts svg")
    assert [shown.nth(index).is_visible() for index in range(3)] == [True] * 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(server: Served, open_page: OpenPage, scheme: str) -> None:
    page = open_page(server.url, color_scheme=scheme)
    page.locator("#model", has_text="paced").wait_for()
    assert findings(page) == []
    send(page, "Hello")
    wait_for_answer(page)
    page.locator(".turn .token.drafted").first.hover()
    assert findings(page) == []
    shoot(page, f"chat-{scheme}")
    page.get_by_role("button", name="Settings").click()
    assert findings(page) == []
    page.keyboard.press("Escape")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    send(page, "Hello")
    page.get_by_role("alert").wait_for()
    assert findings(page) == []
    page.unroute("**/v1/chat/completions")
    page.get_by_role("link", name="Race").click()
    page.get_by_role("button", name="Start the race").click()
    page.get_by_role("button", name="Replay").wait_for()
    assert findings(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    page.get_by_role("link", name="Speed").click()
    assert findings(page) == []


def test_everything_works_with_the_keyboard_alone(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    press = page.keyboard.press
    press("Tab")
    assert focused(page) == "Skip to the message box"
    press("Enter")
    page.keyboard.type("Hello")
    press("Enter")
    wait_for_answer(page)
    press("Shift+Tab")  # Race this prompt
    press("Shift+Tab")  # the answer
    for _ in range(2):
        press("ArrowRight")
    said = page.locator("#announcer").text_content()
    assert "guess" in said or "model itself" in said
    assert page.locator("#token-tip").is_visible()
    press("Escape")
    assert page.locator("#token-tip").is_hidden()
    press("Tab")
    assert focused(page) == "Race this prompt"
    press("Enter")
    assert focused(page) == "Start the race"
    press("Enter")
    page.get_by_role("status").filter(has_text="Same text.").wait_for()


def test_settings_open_and_close_with_the_keyboard(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_role("button", name="Settings").focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("dialog").is_hidden()
    assert focused(page) == "Settings"


def test_an_answer_is_read_out_once_and_whole(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    send(page, "Hello")
    page.locator(".turn.assistant .token").first.wait_for()
    assert page.locator("#announcer").text_content() == "Answering."
    wait_for_answer(page)
    assert page.locator("#announcer").text_content() == f"Answer complete: {ANSWER}"


def focused(page: Any) -> str:
    return page.evaluate("document.activeElement.textContent")


def test_nothing_is_loaded_from_elsewhere(server: Served, open_page: OpenPage) -> None:
    page = open_page("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    answer = page.goto(server.url)
    page.locator("#model", has_text="paced").wait_for()
    assert len(asked) > 20
    assert [url for url in asked if not url.startswith(server.url)] == []
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
