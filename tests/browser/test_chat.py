"""The chat: tokens as they come, who drafted them, settings, export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from browser.conftest import ANSWER, OpenPage, send, shoot, wait_for_answer
from served import Served

pytestmark = pytest.mark.real_model

TOKENS = ".turn.assistant .token"
WORD = re.compile(r"\w")


def test_tokens_come_one_step_after_the_other(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    assert page.get_by_role("heading", name="See a model answer faster").is_visible()
    send(page, "Hello")
    page.locator(TOKENS).first.wait_for()
    early = page.locator(TOKENS).count()
    assert page.get_by_role("button", name="Stop").is_visible()
    shoot(page, "running")
    wait_for_answer(page)
    assert 0 < early < page.locator(TOKENS).count()
    assert page.locator(".turn.assistant .text").text_content() == ANSWER
    assert "drafted accepted (" in page.locator(".turn .meta").text_content()
    assert page.get_by_role("button", name="Send").is_visible()


def test_drafted_tokens_are_tinted_and_say_who_drafted_them(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    send(page, "Hello")
    wait_for_answer(page)
    drafted = page.locator(f"{TOKENS}.drafted")
    share = drafted.count() / page.locator(TOKENS).count()
    assert 0.5 < share < 0.75  # two of three
    drafted = drafted.filter(has_text=WORD).first
    plain = page.locator(f"{TOKENS}:not(.drafted)").filter(has_text=WORD).first
    assert _background(drafted) != _background(plain)
    drafted.hover()
    assert "drafted by guess, which gave it a chance of 75 %" in page.locator("#token-tip").text_content()
    plain.hover()
    assert "written by the model itself" in page.locator("#token-tip").text_content()


def _background(element: Any) -> str:
    return element.evaluate("element => getComputedStyle(element).backgroundColor")


def test_an_answer_is_text_and_never_html(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    send(page, "<img src=x onerror=alert(2)>")
    wait_for_answer(page)
    assert "<img src=x onerror=alert(1)>" in page.locator(".turn.assistant .text").text_content()
    assert page.locator(".turn img, .turn b").count() == 0


def test_stop_ends_the_answer_and_frees_its_place(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    send(page, "Hello")
    page.locator(TOKENS).first.wait_for()
    page.get_by_role("button", name="Stop").click()
    wait_for_answer(page)
    assert "stopped by you" in page.locator(".turn .meta").text_content()
    assert len(page.locator(".turn.assistant .text").text_content()) < len(ANSWER)


def test_settings_reach_the_request_and_are_remembered(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.locator("#model", has_text="paced").wait_for()  # the server has said which drafters there are
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most tokens").fill("5")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Longest draft").fill("1")
    page.get_by_label("Drafter").select_option("guess")
    page.get_by_role("button", name="Save").click()
    with page.expect_request("**/v1/chat/completions") as sent:
        send(page, "Hello")
    body = sent.value.post_data_json
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0, 5, 7)
    assert body["speculation"] == {"details": True, "drafter": "guess", "max_draft": 1}
    wait_for_answer(page)
    assert "5 tokens" in page.locator(".turn .meta").text_content()
    page.reload()
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("Most tokens").input_value() == "5"


def test_a_conversation_can_be_exported(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    send(page, "Hello")
    wait_for_answer(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export as JSON").click()
    exported = json.loads(Path(saved.value.path()).read_text())
    assert [message["role"] for message in exported["messages"]] == ["user", "assistant"]
    assert exported["messages"][1]["content"] == ANSWER
    assert {token["drafter"] for token in exported["messages"][1]["tokens"]} == {"guess", None}
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export as Markdown").click()
    assert "## You\n\nHello\n" in Path(saved.value.path()).read_text()
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0
