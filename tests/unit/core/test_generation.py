"""An answer as the caller sees it: keywords, `async for`, what it prints, what it is as a dict."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time

import pytest

from fakes import FakeModel, Sometimes, letters, plain_tokens
from slipstream.core.engine import Engine
from slipstream.core.generate_keywords import GenerateKeywords
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import UsageError
from slipstream.policy import FixedPolicy

PROMPT = [3, 1, 4]
SAMPLED = {"temperature": 0.8, "seed": 7}


def make_engine(model=None, **settings) -> Engine:
    model = model or FakeModel()
    return Engine(model, letters(), Sometimes(model=model), FixedPolicy(4), **settings)


def expected(prompt=PROMPT, count=30) -> list[int]:
    return plain_tokens(FakeModel().logits, prompt, Sampling(**SAMPLED), count)


# -- keywords -----------------------------------------------------------------------------------------------------


def test_the_keywords_are_the_fields_of_sampling_and_limits():
    fields = [field.name for kind in (Sampling, Limits) for field in dataclasses.fields(kind)]
    assert sorted(GenerateKeywords.__annotations__) == sorted(fields)


def test_keywords_do_what_the_objects_do():
    keywords = {"temperature": 1.2, "seed": 3, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1,
                "presence_penalty": 0.1, "frequency_penalty": 0.2, "logit_bias": {5: -1.0}}  # fmt: skip
    limits = {"max_tokens": 20, "stop": "?", "stop_tokens": [31], "ignore_eos": True}
    answer = make_engine().generate(PROMPT, **keywords, **limits)
    assert answer.stream.sampling == Sampling(**keywords)
    assert answer.stream.limits == Limits(20, ("?",), frozenset({31}), True)
    assert answer.result().tokens == make_engine().generate(PROMPT, Sampling(**keywords), Limits(20)).result().tokens


def test_some_settings_may_be_an_object_and_others_keywords():
    assert make_engine().generate(PROMPT, Sampling(**SAMPLED), max_tokens=30).result().tokens == expected()
    assert make_engine().generate(PROMPT, limits=Limits(30), **SAMPLED).result().tokens == expected()


@pytest.mark.parametrize("stop", ["b", ["b"], ("b", "?")])
def test_a_stop_string_may_stand_alone(stop):
    whole = make_engine().generate(PROMPT, max_tokens=100, **SAMPLED).result().text
    assert "b" in whole
    assert make_engine().generate(PROMPT, max_tokens=100, stop=stop, **SAMPLED).result().text == whole.partition("b")[0]


def test_an_unknown_keyword_lists_the_valid_ones():
    with pytest.raises(UsageError, match=r"no keyword 'max_new_tokens'; it takes max_tokens, stop, .*, logit_bias"):
        make_engine().generate(PROMPT, max_new_tokens=4)


def test_a_field_beside_its_object_is_refused():
    with pytest.raises(UsageError, match="temperature was given beside sampling=, which has it"):
        make_engine().generate(PROMPT, Sampling(), temperature=1)


# -- async --------------------------------------------------------------------------------------------------------


async def read(answer) -> list[int]:
    return [token.id async for token in answer]


def test_async_for_gives_the_same_tokens():
    answer = make_engine().generate(PROMPT, max_tokens=30, **SAMPLED)
    assert asyncio.run(read(answer)) == answer.tokens == expected()
    assert answer.finish_reason == "length"


def test_rounds_run_in_one_thread_that_is_not_the_event_loops():
    model, threads = FakeModel(), set()
    score = model.score
    model.score = lambda requests: threads.add(threading.current_thread()) or score(requests)
    engine = make_engine(model)

    async def ask_all() -> list[list[int]]:
        return await asyncio.gather(*(read(engine.generate([*PROMPT, i], max_tokens=30, **SAMPLED)) for i in range(4)))

    assert asyncio.run(ask_all()) == [expected([*PROMPT, i]) for i in range(4)]
    assert len(threads) == 1 and threading.current_thread() not in threads
    assert model.num_scores <= 31  # four streams share each round


def test_the_event_loop_goes_on_during_a_round():
    model = FakeModel()
    score, released = model.score, threading.Event()
    model.score = lambda requests: released.wait(10) and score(requests)

    async def ask() -> list[int]:
        reader = asyncio.create_task(read(make_engine(model).generate(PROMPT, max_tokens=4, **SAMPLED)))
        await asyncio.sleep(0.05)  # the round has begun, and waits for this loop
        released.set()
        return await reader

    assert asyncio.run(ask()) == expected(count=4)


def test_an_answer_that_waits_for_room_holds_nobody_up():
    """With room for one stream, the first answer is read while the second waits for its end."""
    engine = make_engine(max_streams=1)
    seen: list[tuple[str, int]] = []

    async def ask(name: str) -> None:
        async for _ in engine.generate(PROMPT, max_tokens=10):
            seen.append((name, engine.num_waiting))

    async def both() -> None:
        waiting = asyncio.create_task(ask("first")), asyncio.create_task(ask("second"))
        await asyncio.gather(*waiting)

    asyncio.run(both())
    assert [name for name, _ in seen] == ["first"] * 10 + ["second"] * 10
    assert seen[0] == ("first", 1)


def test_cancelling_the_task_cancels_the_answer():
    model = FakeModel()
    engine = make_engine(model)
    answer = engine.generate(PROMPT, max_tokens=400, ignore_eos=True)

    async def ask() -> None:
        reader = asyncio.create_task(read(answer))
        while not answer.tokens:
            await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

    asyncio.run(ask())
    deadline = time.monotonic() + 60
    while model.open_sequences and time.monotonic() < deadline:
        time.sleep(0.01)  # the round that was running ends first
    assert answer.finish_reason == "cancelled" and not model.open_sequences
    assert engine.generate(PROMPT, max_tokens=30, **SAMPLED).result().tokens == expected()


def test_leaving_the_loop_cancels_the_answer():
    engine = make_engine()
    answer = engine.generate(PROMPT, max_tokens=400, ignore_eos=True)

    async def ask() -> None:
        async for _ in answer:
            break

    asyncio.run(ask())
    assert answer.finish_reason == "cancelled"


def test_what_ends_an_answer_is_raised():
    model = FakeModel()
    model.fails_at = 3
    with pytest.raises(RuntimeError, match="fell off the bus"):
        asyncio.run(read(make_engine(model).generate(PROMPT)))


# -- what it prints -----------------------------------------------------------------------------------------------


def test_it_prints_its_state_then_its_text():
    answer = make_engine().generate(PROMPT, max_tokens=30, **SAMPLED)
    assert repr(answer) == str(answer) == "<Generation '', 0 tokens, not started>"
    tokens = iter(answer)
    while not answer.text:
        next(tokens)
    assert repr(answer) == f"<Generation {answer.text!r}, {len(answer.tokens)} tokens, running>"
    answer.result()
    assert str(answer) == answer.text
    assert repr(answer) == f"<Generation {answer.text!r}, 30 tokens, length>"


def test_a_long_text_is_shown_in_part():
    answer = make_engine().generate(PROMPT, max_tokens=200, ignore_eos=True).result()
    assert len(repr(answer)) < 120 and "…', 200 tokens" in repr(answer)


def test_it_is_ready_for_json():
    answer = make_engine().generate(PROMPT, max_tokens=5, **SAMPLED).result()
    shown = json.loads(json.dumps(answer.to_dict()))
    assert shown["tokens"] == expected(count=5)
    assert shown["finish_reason"] == "length" and shown["text"] == answer.text
    assert shown["stats"]["num_tokens"] == 5
    assert json.loads(json.dumps(answer.stats.to_dict())) == shown["stats"]
