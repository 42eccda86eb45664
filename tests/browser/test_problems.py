"""What the page says when something goes wrong, and that it goes on afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from browser.conftest import ANSWER, OpenPage, paced_engine, remember, send, shoot, wait_for_answer
from served import Served, eventually, served
from slipstream.models.text.tokenizer import Tokenizer

pytestmark = pytest.mark.real_model

KEY = "browser-test-key"


@pytest.fixture(scope="module")
def guarded(chromium: Any, tokenizer: Tokenizer) -> Iterator[Served]:
    """One place, nobody may wait, and a key is needed."""
    with served(paced_engine(tokenizer, ANSWER * 5), tokenizer, api_keys=(KEY,), max_streams=1, max_queue=0) as running:
        yield running


@pytest.fixture
def own_process(chromium: Any) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`slipstream serve` with the built-in model, to be killed."""
    command = [sys.executable, "-m", "slipstream", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"NO_COLOR": "1"}) as process:
        assert process.stderr
        url = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        try:
            yield url, process
        finally:
            process.kill()


def test_the_server_is_killed_in_mid_answer(
    own_process: tuple[str, subprocess.Popen[str]], open_page: OpenPage
) -> None:
    url, process = own_process
    page = open_page(url)
    remember(page, temperature=0)
    send(page, "List the days of the week, then list them again.")  # and again, up to the last token
    page.locator(".turn.assistant .token").nth(5).wait_for(state="attached")
    process.send_signal(signal.SIGKILL)
    page.get_by_role("alert").wait_for()
    shoot(page, "error")
    assert "The connection ended in the middle of the answer" in page.get_by_role("alert").text_content()
    assert page.locator(".turn.assistant .token").count() > 5  # what came is kept
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("alert").filter(has_text="The server can't be reached").wait_for()
    page.locator("#model", has_text="no connection to the server").wait_for()


def test_a_key_is_asked_for_and_then_used(guarded: Served, open_page: OpenPage) -> None:
    page = open_page(guarded.url)
    page.locator("#model", has_text="an API key is needed").wait_for()
    send(page, "Hello")
    page.get_by_role("alert").filter(has_text="This server needs an API key").wait_for()
    page.get_by_role("button", name="Enter the key").click()
    page.keyboard.type("wrong-key-123\n")
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("alert").filter(has_text="The server refused the API key").wait_for()
    page.get_by_role("button", name="Enter the key").click()
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Save").click()
    page.locator("#model", has_text="paced").wait_for()
    page.get_by_role("button", name="Try again").click()
    page.locator(".turn.assistant .token").first.wait_for()
    wait_for_answer(page)
    assert page.get_by_role("alert").count() == 0
    stored = page.evaluate("JSON.stringify(localStorage)")
    assert KEY not in stored  # in this tab only


def test_a_full_server_says_when_to_come_back(guarded: Served, open_page: OpenPage) -> None:
    page = open_page(guarded.url)
    page.evaluate("key => sessionStorage.setItem('slipstream.key', JSON.stringify(key))", KEY)
    other = page.context.new_page()
    other.goto(guarded.url)
    other.evaluate("key => sessionStorage.setItem('slipstream.key', JSON.stringify(key))", KEY)
    for one in (page, other):
        one.reload()
    send(other, "Hello")
    other.locator(".turn.assistant .token").first.wait_for()
    send(page, "Hello")
    page.get_by_role("alert").filter(has_text="The server is busy").wait_for()
    assert re.search(r"Try again in \d+ s", page.get_by_role("alert").text_content())
    other.get_by_role("button", name="Stop").click()
    assert eventually(lambda: guarded.num_active == 0)
    page.get_by_role("button", name="Try again").click()
    page.locator(".turn.assistant .token").first.wait_for()


def test_a_refused_field_is_named(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    remember(page, maxTokens=999_999)
    send(page, "Hello")
    alert = page.get_by_role("alert").filter(has_text="The server refused the request")
    alert.wait_for()
    assert alert.text_content().count("max_tokens:") == 1
