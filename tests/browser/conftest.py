"""Chromium and a server for the page's tests.

They need Chromium (`make browser` installs Debian's) and are skipped where there is none. Most use a fake model that
says a fixed text at a fixed pace: it takes no processor time, and what is drafted and accepted is known.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import FakeModel, FakeScores, Logits, Row, Scripted, target_tokens
from served import Served, served
from slipstream.core.engine import Engine
from slipstream.core.protocols import ScoreRequest
from slipstream.core.tree import DraftTree
from slipstream.models import open_checkpoint
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.policy import make_policy

ANSWER = "Monday, Tuesday, Wednesday: <b>bold</b> & <img src=x onerror=alert(1)>\n" * 3
PACE_S = 0.02  # of a step: slow enough to watch
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


def scripted_logits(tokenizer: Tokenizer, answer: str) -> Logits:
    """After the prompt, the answer token by token, and then its end."""
    opening = tokenizer.encode("<|im_start|>assistant\n", special=True)
    says = [*tokenizer.encode(answer), tokenizer.eos_id]

    def logits(tokens: Sequence[int]) -> Row:
        said = tokens[::-1].index(opening[0]) + 1 - len(opening)  # since the last message began
        row = np.zeros(tokenizer.vocab_size, np.float32)
        row[says[min(max(said, 0), len(says) - 1)]] = 30.0
        return row

    return logits


class PacedModel(FakeModel):
    """Takes its time for each step."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[FakeScores]:
        time.sleep(PACE_S)
        return super().score(requests)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return open_checkpoint("smollm2-135m").tokenizer


def paced_engine(tokenizer: Tokenizer, answer: str = ANSWER) -> Engine:
    """Two tokens of each step are drafted with a chance of 75 %, the third is the model's own."""
    model = PacedModel(scripted_logits(tokenizer, answer), tokenizer.vocab_size, context=4096, name="paced")
    drafter = Scripted(
        name="guess",
        script=lambda stream, budget: DraftTree.chain(target_tokens(model, stream, budget), [0.75] * budget),
    )
    return Engine(model, tokenizer, drafter, make_policy("fixed(2)"), max_streams=2)


@pytest.fixture(scope="module")  # no longer: as long as Playwright runs, other tests can't start an event loop
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: make browser installs it")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test installs it")
    with playwright.sync_playwright() as started:
        # Root, as in containers, can't use Chromium's sandbox; the page shown is our own.
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(chromium: Any, tokenizer: Tokenizer) -> Iterator[Served]:
    with served(paced_engine(tokenizer), tokenizer) as running:
        yield running


OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(chromium: Any) -> Iterator[OpenPage]:
    """Opens the page of a server. What the page reports as an error fails the test, broken rules of its
    Content-Security-Policy included; failed requests are what some tests are about, and are no such error."""
    errors: list[str] = []
    contexts = []

    def note(message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            errors.append(message.text)

    def open_one(url: str, width: int = 1280, height: int = 800, **context: Any) -> Any:
        contexts.append(chromium.new_context(viewport={"width": width, "height": height}, **context))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []


def remember(page: Any, **settings: Any) -> None:
    """As if the user had chosen these settings earlier."""
    page.evaluate("settings => localStorage.setItem('slipstream.settings', JSON.stringify(settings))", settings)
    page.reload()


def send(page: Any, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.get_by_role("button", name="Send").click()


def wait_for_answer(page: Any) -> None:
    page.locator(".turn.assistant:not(.running)").last.wait_for()


def shoot(page: Any, name: str) -> None:
    """Keeps a picture if somebody wants to look at it."""
    if folder := os.environ.get("SLIPSTREAM_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")
