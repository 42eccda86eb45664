"""The race: the same prompt with and without speculation."""

from __future__ import annotations

from typing import Any

import pytest

from browser.conftest import ANSWER, OpenPage, send, shoot, wait_for_answer
from served import Served

pytestmark = pytest.mark.real_model


def test_the_race_compares_texts_and_speeds(server: Served, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#race")
    page.get_by_role("button", name="Start the race").click()
    page.locator("#lane-speculation .token").first.wait_for()
    assert page.locator("#lane-plain .token").count() == 0  # one after the other
    verdict = page.get_by_role("status").filter(has_text="Same text.")
    verdict.wait_for()
    shoot(page, "race")
    for lane in ("speculation", "plain"):
        assert page.locator(f"#lane-{lane} .text").text_content() == ANSWER
    assert page.locator("#lane-plain .token.drafted").count() == 0
    assert page.locator("#lane-speculation .token.drafted").count() > 10
    assert "Speculation was " in verdict.text_content()
    page.get_by_role("button", name="Replay side by side").click()
    assert page.locator("#lane-plain .text").text_content() != ANSWER
    page.get_by_role("button", name="Stop").click()
    page.locator("#lane-plain .text", has_text=ANSWER.strip()).wait_for()


def test_texts_that_differ_are_told(server: Served, open_page: OpenPage) -> None:
    """The engine never lets this happen, so the answer to the plain request is changed on its way."""
    page = open_page(f"{server.url}/#race")

    def change(route: Any) -> None:
        if '"enabled":false' not in route.request.post_data:
            route.continue_()
            return
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("Tuesday", "Sunday"))

    page.route("**/v1/chat/completions", change)
    page.get_by_role("button", name="Start the race").click()
    page.get_by_role("status").filter(has_text="The texts differ from character 9 on.").wait_for()
    assert page.locator("#lane-plain .differs").text_content() == " Sunday"


def test_a_prompt_of_the_chat_can_be_raced(server: Served, open_page: OpenPage) -> None:
    page = open_page(server.url)
    send(page, "A prompt for the race")
    wait_for_answer(page)
    page.get_by_role("button", name="Race this prompt").click()
    assert page.get_by_label("Prompt of the race").input_value() == "A prompt for the race"
