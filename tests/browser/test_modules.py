"""Modules of the page that compute something, called in Chromium."""

from __future__ import annotations

from typing import Any

import pytest

from browser.conftest import OpenPage
from served import Served

pytestmark = pytest.mark.real_model

EVENTS = 'data: {"text": "Käse 🧀"}\n\ndata: two\r\n\r\ndata: [DONE]\n\n'
SPLIT = """async ([text, size]) => {
  const { events } = await import("./js/events.js");
  const bytes = new TextEncoder().encode(text);
  const body = new ReadableStream({
    start(to) {
      for (let at = 0; at < bytes.length; at += size) to.enqueue(bytes.slice(at, at + size));
      to.close();
    },
  });
  const found = [];
  for await (const data of events(body)) found.push(data);
  return found;
}"""


@pytest.fixture
def page(server: Served, open_page: OpenPage) -> Any:
    return open_page(server.url)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_whole_however_they_arrive(page: Any, size: int) -> None:
    assert page.evaluate(SPLIT, [EVENTS, size]) == ['{"text": "Käse 🧀"}', "two", "[DONE]"]


@pytest.mark.parametrize(
    ("one", "other", "at"), [("same", "same", -1), ("", "", -1), ("abc", "abd", 2), ("ab", "abc", 2), ("", "a", 0)]
)
def test_the_first_difference(page: Any, one: str, other: str, at: int) -> None:
    script = "async ([one, other]) => (await import('./js/compare.js')).firstDifference(one, other)"
    assert page.evaluate(script, [one, other]) == at


@pytest.mark.parametrize(
    ("kind", "said", "title", "action"),
    [
        (401, "", "This server needs an API key", "key"),
        (429, "", "The server is busy: its queue is full", "retry"),
        (503, "the server is shutting down", "The server takes no more requests now", "retry"),
        (400, "must be a number", "The server refused the request", "settings"),
        (500, "the engine failed", "The answer failed", "retry"),
    ],
)
def test_every_problem_has_a_text(page: Any, kind: int, said: str, title: str, action: str) -> None:
    script = """async ([kind, said]) => {
      const { explain, Problem } = await import("./js/problems.js");
      return explain(new Problem(kind, said));
    }"""
    found = page.evaluate(script, [kind, said])
    assert (found["title"], found["action"]) == (title, action)
    assert found["advice"].endswith(".")
