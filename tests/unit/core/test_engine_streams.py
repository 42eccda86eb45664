"""Many streams in one engine: joining, waiting, leaving, failing."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import pytest

from fakes import (
    AlwaysRight,
    AlwaysWrong,
    FakeModel,
    RandomTrees,
    Sometimes,
    cycle_logits,
    letters,
    plain_tokens,
)
from slipstream.core.engine import Engine
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import CapacityError, ContextFullError, UsageError
from slipstream.policy import AutoPolicy, FixedPolicy

PROMPT = [3, 1, 4]


def make_engine(model, drafter=None, policy=None, **settings) -> Engine:
    return Engine(model, letters(model.info.vocab_size), drafter, policy or FixedPolicy(4), **settings)


def requests(count: int) -> list[tuple[list[int], Sampling, Limits]]:
    """Prompts and answers of mixed lengths, greedy and sampled."""
    return [
        (
            [(7 * i + j) % 32 for j in range(1 + 5 * i % 23)],
            Sampling(temperature=(i % 3) * 0.5, seed=i),
            Limits(max_tokens=1 + 11 * i % 37),
        )
        for i in range(count)
    ]


def expected(model, request) -> list[int]:
    prompt, sampling, limits = request
    return plain_tokens(model.logits, prompt, sampling, limits.max_tokens)


# -- many at once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [lambda: FixedPolicy(4), AutoPolicy], ids=["fixed", "auto"])
@pytest.mark.parametrize("max_streams", [1, 3, 32])
def test_many_streams_give_the_texts_of_single_ones(max_streams, policy):
    model = FakeModel()
    engine = make_engine(model, RandomTrees(model=model), policy(), max_streams=max_streams, prefill_chunk=5)
    todo = requests(14)
    answers = [engine.generate(*request) for request in todo]
    most = 0
    while engine.step():
        most = max(most, engine.num_active)
    assert most <= max_streams
    assert [answer.result().tokens for answer in answers] == [expected(model, request) for request in todo]
    assert not model.open_sequences


def test_streams_share_one_forward():
    model = FakeModel()
    engine = make_engine(model)
    answers = [engine.generate(PROMPT, limits=Limits(max_tokens=10)) for _ in range(8)]
    while engine.step():
        pass
    assert model.num_scores == 10
    assert {answer.finish_reason for answer in answers} == {"length"}


def test_streams_join_while_others_run():
    model = FakeModel()
    engine = make_engine(model, Sometimes(model=model))
    todo, answers = requests(10), []
    for request in todo:
        answers.append(engine.generate(*request))
        engine.step()
        engine.step()
    assert [answer.result().tokens for answer in answers] == [expected(model, request) for request in todo]


def test_mixed_drafters_in_one_engine():
    model = FakeModel()
    right, wrong = AlwaysRight(model=model, name="right"), AlwaysWrong(model=model, name="wrong")
    engine = make_engine(model, right, AutoPolicy())
    todo = [(request, drafter) for request in requests(4) for drafter in ("inherit", wrong, None)]
    answers = [engine.generate(*request, drafter=drafter) for request, drafter in todo]
    for answer, (request, _) in zip(answers, todo, strict=True):
        assert answer.result().tokens == expected(model, request)
    assert wrong.num_proposals and right.num_proposals
    assert all(answer.stats.num_drafted == 0 for answer in answers[2::3])


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7])
@pytest.mark.parametrize("policy", [lambda: FixedPolicy(4), AutoPolicy], ids=["fixed", "auto"])
def test_a_model_that_takes_few_rows_is_never_given_more(max_rows, policy):
    model = FakeModel(max_rows=max_rows)
    engine = make_engine(model, RandomTrees(model=model), policy())
    todo = requests(5)
    answers = [engine.generate(*request) for request in todo]
    assert [answer.result().tokens for answer in answers] == [expected(model, request) for request in todo]


@pytest.mark.parametrize("chunk", [1, 2, 10, 1000])
def test_prompts_are_fed_in_chunks(chunk):
    model = FakeModel()
    prompt = [i % 32 for i in range(21)]
    answer = (
        make_engine(model, AlwaysRight(model=model), prefill_chunk=chunk).generate(prompt, limits=Limits(1)).result()
    )
    assert answer.tokens == plain_tokens(model.logits, prompt, Sampling(), 1)
    assert max(model.rows_by_score) == min(chunk, 21)
    assert answer.stats.target_forwards == -(-21 // chunk)


def test_a_prompt_is_fed_in_as_many_rows_as_keep_the_device_busy():
    model = FakeModel()
    model.info = replace(model.info, prompt_rows=13)
    answers = [make_engine(model, prefill_chunk=None).generate([3] * 30, limits=Limits(1)).result()]
    assert max(model.rows_by_score) == 13
    engine = make_engine(model, prefill_chunk=None)
    answers += [engine.generate([3] * 10, limits=Limits(1)) for _ in range(3)]
    while engine.step():
        pass
    assert model.rows_by_score[-1] == 30  # several prompts in one forward
    assert all(answer.tokens == answers[0].tokens for answer in answers)


def test_nothing_is_drafted_before_the_prompt_is_read():
    """A chunk of one token is still prompt: a draft behind it could never be right."""
    model = FakeModel()
    drafter = AlwaysRight(model=model)
    engine = make_engine(model, drafter, prefill_chunk=1)
    answer = engine.generate([1] * 9, limits=Limits(max_tokens=5))
    for _ in range(8):
        engine.step()
    assert model.num_rows == 8 and not answer.tokens
    assert drafter.num_proposals == 0


def test_decoding_goes_on_while_a_long_prompt_is_read():
    model = FakeModel()
    engine = make_engine(model, prefill_chunk=4)
    first = iter(engine.generate(PROMPT, limits=Limits(max_tokens=100)))
    next(first)
    second = engine.generate([5] * 40, limits=Limits(max_tokens=1))
    before = model.num_scores
    for _ in range(5):
        next(first)
    assert model.num_scores == before + 5
    assert not second.tokens


def test_a_known_beginning_is_not_read_again():
    model = FakeModel(remembers=True)
    engine = make_engine(model)
    prompt = [i % 32 for i in range(20)]
    first = engine.generate(prompt, limits=Limits(max_tokens=3)).result()
    rows = model.num_rows
    second = engine.generate(prompt, limits=Limits(max_tokens=3)).result()
    assert second.tokens == first.tokens
    assert (first.stats.num_reused, second.stats.num_reused) == (0, 19)
    assert model.num_rows - rows == 3


# -- leaving early ------------------------------------------------------------------------------------------------


def test_leaving_the_loop_returns_the_sequence():
    model = FakeModel()
    drafter = AlwaysRight(model=model)
    engine = make_engine(model, drafter)
    answer = engine.generate(PROMPT, limits=Limits(max_tokens=100))
    for _ in answer:
        break
    assert not model.open_sequences
    assert drafter.ended == [answer.stream.id]
    assert answer.finish_reason == "cancelled"
    assert (engine.num_active, engine.num_waiting) == (0, 0)


def test_an_error_in_the_callers_loop_returns_the_sequence():
    model = FakeModel()
    engine = make_engine(model)
    with pytest.raises(ZeroDivisionError):
        for _ in engine.generate(PROMPT):
            _ = 1 / 0
    assert not model.open_sequences


def test_cancelling_one_leaves_the_others_alone():
    model = FakeModel()
    engine = make_engine(model, Sometimes(model=model))
    todo = requests(4)
    answers = [engine.generate(*request) for request in todo]
    engine.step()
    answers[2].cancel()
    answers[2].cancel()
    for i in (0, 1, 3):
        assert answers[i].result().tokens == expected(model, todo[i])
    assert not model.open_sequences


def test_a_waiting_stream_can_be_cancelled():
    model = FakeModel()
    engine = make_engine(model, max_streams=1)
    running, waiting = engine.generate(PROMPT, limits=Limits(20)), engine.generate(PROMPT, limits=Limits(20))
    engine.step()
    assert (engine.num_active, engine.num_waiting) == (1, 1)
    waiting.cancel()
    assert engine.num_waiting == 0
    assert waiting.result().tokens == []
    assert running.result().tokens == plain_tokens(model.logits, PROMPT, Sampling(), 20)
    assert model.num_opened == 1


def test_close_cancels_what_runs_and_what_waits():
    model = FakeModel()
    engine = make_engine(model, max_streams=2)
    answers = [engine.generate(PROMPT) for _ in range(5)]
    engine.step()
    engine.close()
    assert {answer.finish_reason for answer in answers} == {"cancelled"}
    assert not model.open_sequences
    assert engine.step() is False


def test_a_finished_answer_can_be_cancelled_and_read_again():
    engine = make_engine(FakeModel())
    answer = engine.generate(PROMPT, limits=Limits(max_tokens=3)).result()
    text = answer.text
    answer.cancel()
    assert answer.finish_reason == "length"
    assert answer.result().text == text


# -- no room ------------------------------------------------------------------------------------------------------


def test_streams_wait_for_room_and_then_run():
    model = FakeModel(max_tokens=50)  # room for two of them
    engine = make_engine(model, Sometimes(model=model))
    answers = [engine.generate([*PROMPT, i], limits=Limits(max_tokens=20)) for i in range(6)]
    engine.step()
    assert (engine.num_active, engine.num_waiting) == (2, 4)
    for i, answer in enumerate(answers):
        assert answer.result().tokens == plain_tokens(model.logits, [*PROMPT, i], Sampling(), 20)


def test_one_that_never_fits_fails_alone():
    model = FakeModel(max_tokens=50)
    engine = make_engine(model)
    before = engine.generate(PROMPT, limits=Limits(max_tokens=20))
    too_big = engine.generate(PROMPT, limits=Limits(max_tokens=200))
    behind = engine.generate(PROMPT, limits=Limits(max_tokens=20))
    with pytest.raises(CapacityError, match="203 tokens does not fit"):
        too_big.result()
    assert too_big.finish_reason == "error"
    assert before.result().tokens == behind.result().tokens == plain_tokens(model.logits, PROMPT, Sampling(), 20)


class Optimist(FakeModel):
    """Says there is room, and then there is none."""

    def can_open(self, reserve: int) -> bool:
        return True

    def _new_sequence(self, tokens, reserve):
        if not super().can_open(reserve):
            raise CapacityError("no room after all")
        return super()._new_sequence(tokens, reserve)


def test_a_model_that_finds_no_room_at_the_last_moment_fails_that_stream_alone():
    model = Optimist(max_tokens=50)
    engine = make_engine(model)
    running = engine.generate(PROMPT, limits=Limits(max_tokens=40))
    engine.step()
    late = engine.generate(PROMPT, limits=Limits(max_tokens=30))
    assert running.result().tokens == plain_tokens(model.logits, PROMPT, Sampling(), 40)
    assert late.result().tokens == plain_tokens(model.logits, PROMPT, Sampling(), 30)
    with pytest.raises(CapacityError, match="no room after all"):
        engine.generate(PROMPT, limits=Limits(max_tokens=100)).result()


def test_a_model_that_cannot_open_ends_the_stream_with_its_error():
    model = FakeModel()
    engine = make_engine(model)
    running = engine.generate(PROMPT, limits=Limits(max_tokens=9))
    engine.step()
    works, model.open = model.open, _raise
    broken = engine.generate(PROMPT, limits=Limits(max_tokens=9))
    with pytest.raises(RuntimeError, match="cannot open"):
        broken.result()
    model.open = works
    assert len(running.result().tokens) == 9
    assert len(engine.generate(PROMPT, limits=Limits(max_tokens=9)).result().tokens) == 9


def _raise(*args):
    raise RuntimeError("cannot open")


# -- a target that fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", [1, 4])
def test_a_target_that_raises_ends_its_streams_and_the_engine_stays_usable(fails_at):
    model = FakeModel()
    drafter = AlwaysRight(model=model)
    engine = make_engine(model, drafter, max_streams=2)
    answers = [engine.generate([*PROMPT, i], limits=Limits(max_tokens=60)) for i in range(3)]
    model.fails_at = fails_at
    for answer in answers[:2]:
        with pytest.raises(RuntimeError, match="fell off the bus"):
            answer.result()
        assert answer.finish_reason == "error"
    assert not model.open_sequences
    assert sorted(drafter.ended) == [answer.stream.id for answer in answers[:2]]
    assert answers[2].result().tokens == plain_tokens(model.logits, [*PROMPT, 2], Sampling(), 60)


def test_tokens_made_before_the_failure_are_still_delivered():
    model = FakeModel()
    model.fails_at = 4
    read = []
    with pytest.raises(RuntimeError):
        for token in make_engine(model).generate(PROMPT):
            read.append(token.id)
    assert read == plain_tokens(model.logits, PROMPT, Sampling(), 3)


# -- requests that are refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ("", UsageError, "prompt is empty"),
        ([], UsageError, "prompt is empty"),
        ([1] * 16, ContextFullError, "16 tokens and fake holds 16"),
        ([1] * 99, ContextFullError, "shorten the prompt"),
        ([1, 32], UsageError, "token id 32; fake has a vocabulary of 32"),
        ([-1], UsageError, "token id -1"),
    ],
)
def test_a_bad_prompt_is_refused_before_anything_runs(prompt, error, message):
    model = FakeModel(context=16)
    engine = make_engine(model)
    with pytest.raises(error, match=message):
        engine.generate(prompt)
    assert engine.num_waiting == 0 and model.num_opened == 0


def test_a_prompt_that_leaves_room_for_one_token_gets_one():
    answer = make_engine(FakeModel(context=16)).generate([1] * 15).result()
    assert len(answer.tokens) == 1


def test_an_unknown_verifier_is_refused():
    with pytest.raises(UsageError, match="'magic'; expected one of matching, rejection"):
        make_engine(FakeModel()).generate(PROMPT, verifier="magic")


@pytest.mark.parametrize("settings", [{"max_streams": 0}, {"prefill_chunk": 0}], ids=str)
def test_an_engine_that_could_never_run_a_stream_is_refused(settings):
    with pytest.raises(UsageError, match="expected 1 or more"):
        make_engine(FakeModel(), **settings)


def test_limits_refuse_an_empty_answer():
    with pytest.raises(UsageError, match="max_tokens is 0"):
        Limits(max_tokens=0)


def test_strings_messages_and_ids_are_all_prompts():
    engine = make_engine(FakeModel())
    texts = {
        engine.generate(prompt, limits=Limits(max_tokens=8)).result().text
        for prompt in ("dbe", [{"role": "user", "content": "dbe"}], [3, 1, 4], (3, 1, 4))
    }
    assert len(texts) == 1


# -- threads ------------------------------------------------------------------------------------------------------


@pytest.fixture
def eager_switching():
    """Threads change hands as often as they can: races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_several_threads_generate_at_once(eager_switching):
    model = FakeModel(cycle_logits(range(26), 32))
    engine = make_engine(model, Sometimes(model=model), max_streams=3)
    failures = []

    def work(start: int) -> None:
        for turn in range(25):
            first, count = (start + turn) % 26, 1 + (start * 5 + turn) % 9
            answer = engine.generate([first], limits=Limits(max_tokens=count))
            text = "".join(token.text for token in answer)
            wanted = "".join("abcdefghijklmnopqrstuvwxyz"[(first + 1 + i) % 26] for i in range(count))
            if text != wanted:
                failures.append((text, wanted))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    assert not model.open_sequences


def test_a_reader_sees_all_tokens_of_a_stream_that_another_thread_finished():
    """The last token must not be lost between 'nothing to read' and 'the stream is over'."""
    engine = make_engine(FakeModel(cycle_logits(range(26), 32)))
    answer = engine.generate([0], limits=Limits(max_tokens=1))

    class Outbox(type(answer.stream.outbox)):
        looked = False

        def __bool__(self):
            """Empty when looked at first; another thread finishes the stream right after that."""
            if not self.looked:
                self.looked = True
                other = threading.Thread(target=engine.step)
                other.start()
                other.join(timeout=1)  # ends at once unless the reader holds the engine
                return False
            return len(self) > 0

    answer.stream.outbox = Outbox()
    assert [token.text for token in answer] == ["b"]
