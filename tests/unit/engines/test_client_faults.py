"""What goes wrong over HTTP is a clear message, and the text that had come is kept."""

from __future__ import annotations

import pytest
from fault_server import WORDS, fault_server

from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines import find_engine
from slipstream.engines.client import Client, Timeouts
from slipstream.engines.http_generator import HttpGenerator
from slipstream.engines.ports import free_port
from slipstream.errors import EngineRequestError, UsageError

ENGINE = find_engine("llama-server")


def answer(url: str, timeouts: Timeouts | None = None):
    generator = HttpGenerator(ENGINE, Client(url, timeouts=timeouts), "x")
    return generator.answer("Count", Sampling(), Limits(4))


def test_a_sound_stream_is_an_answer():
    with fault_server() as url:
        got = answer(url)
    assert (got.text, got.finish_reason, got.stats.num_tokens) == ("".join(WORDS), "length", 4)
    assert 0 < got.stats.ttft_s <= got.stats.total_s


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (401, "--api-key"),
        (404, "not found: it may be another kind of engine"),
        (500, "internal error; see its log"),
        (418, "418"),
    ],
)
def test_a_refusal_names_the_status_the_engine_s_words_and_what_to_do(status, hint):
    with fault_server(status) as url, pytest.raises(EngineRequestError) as caught:
        answer(url)
    assert caught.value.status == status
    assert hint in str(caught.value)
    assert f"told to answer {status}" in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "said"), [("broken stream", "ended before the answer was complete"), ("error event", "out of memory")]
)
def test_a_stream_that_breaks_off_keeps_its_text(fault, said):
    with fault_server(fault) as url, pytest.raises(EngineRequestError, match=said) as caught:
        answer(url)
    assert caught.value.partial_text == "".join(WORDS[:2])


def test_a_silent_engine_is_given_up_on_with_its_text():
    with fault_server("hang") as url, pytest.raises(EngineRequestError, match=r"did not respond for 0\.3 s") as caught:
        answer(url, Timeouts(answer_s=0.3, figures_s=0.3))
    assert caught.value.partial_text == "".join(WORDS[:2])


def test_slow_metrics_cost_the_counters_and_not_the_answer():
    with fault_server("slow metrics") as url:
        got = answer(url, Timeouts(figures_s=0.2))
    assert got.text == "".join(WORDS)
    assert got.stats.num_drafted == 0


def test_an_answer_that_is_no_json_is_quoted():
    with (
        fault_server("no JSON") as url,
        pytest.raises(EngineRequestError, match="ended before the answer was complete"),
    ):
        answer(url)
    with fault_server("no JSON") as url, pytest.raises(EngineRequestError, match="did not send JSON: this is no JSON"):
        Client(url).post_json("/v1/completions", {})


def test_nobody_there():
    with pytest.raises(EngineRequestError, match="nothing listens"):
        answer(f"http://127.0.0.1:{free_port()}")


def test_an_address_that_is_none():
    with pytest.raises(UsageError, match="expected for example http"):
        Client("localhost:8080")
