"""One request can't hurt another: bad requests, faults in one stream, cancels at any moment, broken drafters."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pytest
import torch

from fakes import AlwaysRight, FakeDrafter, FakeModel, Sometimes, letters, plain_tokens
from slipstream.core.engine import Engine
from slipstream.core.round_stats import enter_round
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits, RequestOptions
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.core.turn import TURN
from slipstream.core.verify import VERIFIERS, Verifier, verify_matching
from slipstream.drafters.model import DraftModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.drafters.vocabulary import SameVocabulary
from slipstream.errors import NonFiniteLogitsError, SlipstreamError, UsageError
from slipstream.policy import AutoPolicy, FixedPolicy

PROMPT = [3, 1, 4]
SAMPLED = Sampling(temperature=0.8, seed=7)


def make_engine(model, drafter=None, policy=None, **settings) -> Engine:
    return Engine(model, letters(model.info.vocab_size), drafter, policy or FixedPolicy(4), **settings)


def expected(model, prompt=PROMPT, sampling=SAMPLED, count=30) -> list[int]:
    return plain_tokens(model.logits, prompt, sampling, count)


# -- requests -----------------------------------------------------------------------------------------------------


REFUSED = {
    "bias inf": lambda: {"sampling": Sampling(temperature=1, logit_bias={3: math.inf})},
    "bias outside": lambda: {"sampling": Sampling(logit_bias={32: 1.0})},
    "temperature": lambda: {"sampling": Sampling(temperature=1e-310)},
    "top_k": lambda: {"sampling": Sampling(temperature=1, top_k=1.5)},
    "sampling dict": lambda: {"sampling": {"temperature": 1}},
    "sampling tuple": lambda: {"sampling": ()},
    "limits dict": lambda: {"limits": {"max_tokens": 4}},
    "limits number": lambda: {"limits": 0},
    "stop numbers": lambda: {"limits": Limits(4, stop=(5,))},
    "stop number": lambda: {"limits": Limits(4, stop=5)},
    "stop bytes": lambda: {"limits": Limits(4, stop=(b"a",))},
    "stop tokens": lambda: {"limits": Limits(4, stop_tokens=frozenset({"a"}))},
    "max_tokens": lambda: {"limits": Limits(max_tokens=2.5)},
    "max_tokens none": lambda: {"limits": Limits(max_tokens=None)},
    "keyword": lambda: {"max_new_tokens": 4},
    "keyword beside limits": lambda: {"limits": Limits(4), "max_tokens": 4},
    "keyword beside sampling": lambda: {"sampling": Sampling(), "temperature": 0.5},
    "keyword beside sampling dict": lambda: {"sampling": {}, "temperature": 0.5},
    "max_tokens keyword": lambda: {"max_tokens": 2.5},
    "max_tokens keyword none": lambda: {"max_tokens": None},
    "stop keyword": lambda: {"stop": [5]},
    "stop_tokens keyword": lambda: {"stop_tokens": "ab"},
    "temperature keyword": lambda: {"temperature": "1"},
    "seed keyword": lambda: {"seed": -1},
    "bias keyword": lambda: {"logit_bias": {32: 1.0}},
    "drafter": lambda: {"drafter": "suffix"},
    "drafter object": lambda: {"drafter": object()},
    "verifier": lambda: {"verifier": verify_matching},
    "huge seed": lambda: {"sampling": Sampling(seed=10**5000)},
    "huge stop": lambda: {"limits": Limits(4, stop=[10**5000])},
    "prompt none": lambda: {"prompt": None},
    "prompt number": lambda: {"prompt": 5},
    "prompt floats": lambda: {"prompt": [1.0, 2.0]},
    "prompt bools": lambda: {"prompt": [True]},
    "prompt bytes": lambda: {"prompt": b"abc"},
    "prompt texts": lambda: {"prompt": ["a", "b"]},
    "prompt array of floats": lambda: {"prompt": np.ones(3)},
    "prompt 2-D": lambda: {"prompt": np.ones((2, 3), int)},
    "prompt scalar": lambda: {"prompt": np.int64(3)},
    "prompt mapping": lambda: {"prompt": {"role": "user"}},
    "prompt tensor": lambda: {"prompt": torch.ones(3)},
}


@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED)
def test_a_bad_request_is_refused_and_the_others_go_on(bad):
    model = FakeModel()
    engine = make_engine(model, Sometimes(model=model))
    good = engine.generate(PROMPT, SAMPLED, Limits(30))
    engine.step()
    with pytest.raises(UsageError):
        engine.generate(**{"prompt": PROMPT} | bad())
    assert engine.num_waiting == 0
    assert good.result().tokens == expected(model)


TAKEN = {
    "numpy seed": lambda: {"sampling": Sampling(temperature=np.float32(0.8), seed=np.int64(7))},
    "numpy ids": lambda: {"prompt": np.array(PROMPT, np.int32)},
    "torch ids": lambda: {"prompt": torch.tensor(PROMPT)},
    "list of numpy ids": lambda: {"prompt": [np.int64(t) for t in PROMPT]},
    "range": lambda: {"prompt": range(3)},
    "numpy max_tokens": lambda: {"limits": Limits(np.int16(30))},
    "stop list": lambda: {"limits": Limits(30, stop=["?"], stop_tokens=[])},
    "numpy bias": lambda: {"sampling": Sampling(temperature=0.8, seed=7, logit_bias={np.int64(3): np.float32(0)})},
}


@pytest.mark.parametrize("odd", TAKEN.values(), ids=TAKEN)
def test_an_odd_but_sensible_request_is_answered(odd):
    model = FakeModel()
    request = {"prompt": PROMPT, "sampling": Sampling(temperature=0.8, seed=7), "limits": Limits(30)} | odd()
    answer = make_engine(model, AlwaysRight(model=model)).generate(**request).result()
    assert answer.tokens == expected(model, [int(t) for t in request["prompt"]], Sampling(temperature=0.8, seed=7))
    assert all(type(token) is int for token in answer.tokens)


# -- faults in one stream -----------------------------------------------------------------------------------------


def _raising_verifier(nth: int) -> Verifier:
    calls = iter(range(1, 10_000))

    def verify(tree, scores, choice):
        if next(calls) == nth:
            raise ZeroDivisionError("verifier")
        return verify_matching(tree, scores, choice)

    return Verifier("raising", verify, couples=True)


@pytest.mark.parametrize("nth", [1, 4])
def test_a_verification_that_raises_ends_its_own_stream(nth):
    model = FakeModel()
    engine = make_engine(model, Sometimes(model=model))
    good = [engine.generate([*PROMPT, i], SAMPLED, Limits(30)) for i in range(3)]
    bad = engine.generate(PROMPT, SAMPLED, Limits(30), verifier=_raising_verifier(nth))
    with pytest.raises(ZeroDivisionError):
        bad.result()
    assert bad.tokens == expected(model)[: len(bad.tokens)]
    assert [answer.result().tokens for answer in good] == [expected(model, [*PROMPT, i]) for i in range(3)]
    assert not model.open_sequences


@pytest.mark.parametrize("nth", [1, 4])
def test_a_constraint_that_raises_ends_its_own_stream(nth):
    class Failing:
        calls = 0

        def prepare(self, answer, tree):
            self.calls += 1
            if self.calls == nth:
                raise ZeroDivisionError("constraint")

        def restrict(self, row, path):
            return row

    model = FakeModel()
    engine = make_engine(model, Sometimes(model=model))
    bad = engine.generate(PROMPT, SAMPLED, Limits(30), options=RequestOptions(constraint=Failing()))
    good = [engine.generate([*PROMPT, i], SAMPLED, Limits(30)) for i in range(3)]
    with pytest.raises(ZeroDivisionError):
        bad.result()
    assert bad.tokens == expected(model)[: len(bad.tokens)]
    assert [answer.result().tokens for answer in good] == [expected(model, [*PROMPT, i]) for i in range(3)]
    assert not model.open_sequences


def test_an_answer_is_over_when_its_figures_are_complete(monkeypatch):
    model, seen = FakeModel(), []
    engine = make_engine(model, AlwaysRight(model=model))
    answer = engine.generate(PROMPT, SAMPLED, Limits(30))

    def looked_at(*of_round):
        seen.append((answer.stream.done, answer.stream.num_answer_tokens))
        enter_round(*of_round)

    monkeypatch.setattr("slipstream.core.engine.enter_round", looked_at)
    assert answer.result().stats.num_tokens == 30
    assert seen[-1][1] == 30 and not any(done for done, _ in seen)


def test_a_text_that_cannot_be_decoded_ends_its_own_stream(monkeypatch):
    model = FakeModel()
    engine = make_engine(model, Sometimes(model=model))
    good, bad = (engine.generate(PROMPT, SAMPLED, Limits(30)) for _ in range(2))
    engine.step()
    monkeypatch.setattr(bad.stream, "_assembler", None)
    with pytest.raises(AttributeError):
        bad.result()
    assert good.result().tokens == expected(model)
    assert not model.open_sequences


def test_a_failed_forward_ends_only_the_streams_that_were_in_it():
    model = FakeModel(max_rows=2)
    model.fails_at = 3
    engine = make_engine(model)
    answers = [engine.generate([token], SAMPLED, Limits(5)) for token in range(3)]
    for answer in answers[:2]:
        with pytest.raises(RuntimeError, match="fell off the bus"):
            answer.result()
    assert answers[2].result().tokens == expected(model, [2], count=5)
    assert not model.open_sequences


@pytest.fixture
def ctrl_c():
    """A process in the background ignores it from its start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_reaches_its_own_thread_and_the_engine_goes_on():
    model = FakeModel()
    engine = make_engine(model)
    other = engine.generate([5], SAMPLED, Limits(5))
    interrupted = engine.generate(PROMPT, SAMPLED, Limits(30))
    score, model.score = model.score, lambda requests: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupted.result()
    model.score = score
    with pytest.raises(SlipstreamError, match="interrupted: KeyboardInterrupt"):
        other.result()
    assert not model.open_sequences
    assert engine.generate(PROMPT, SAMPLED, Limits(30)).result().tokens == expected(model)


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED, Sampling(temperature=1, top_p=0.9, frequency_penalty=1)])
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_no_numbers_end_their_own_stream_with_an_explanation(value, verifier, sampling):
    inner = FakeModel()
    model = FakeModel(lambda tokens: np.full(32, value, np.float32) if 31 in tokens else inner.logits(tokens))
    engine = make_engine(model)
    good = engine.generate(PROMPT, limits=Limits(30, stop_tokens=frozenset({31})))
    bad = engine.generate([31], sampling, Limits(30), verifier=verifier)
    with pytest.raises(NonFiniteLogitsError, match=r"fake gave no usable logits.*it is a fake"):
        bad.result()
    assert good.result().tokens == plain_tokens(inner.logits, PROMPT, Sampling(), 30, {31})


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("length", range(1, 6))
def test_tokens_before_such_logits_are_delivered_whatever_was_drafted(length, verifier):
    """The draft runs past the last good token; the answer ends with it all the same."""
    inner = FakeModel()
    right = plain_tokens(inner.logits, PROMPT, Sampling(), 9)
    end = len(PROMPT) + 8
    model = FakeModel(lambda t: np.full(32, math.nan, np.float32) if len(t) >= end else inner.logits(t))

    class Knows(FakeDrafter):
        def propose_one(self, stream, budget):
            return DraftTree.chain(right[stream.num_answer_tokens :][: min(length, budget)])

    answer = make_engine(model, Knows(), FixedPolicy(8)).generate(PROMPT, verifier=verifier)
    with pytest.raises(NonFiniteLogitsError):
        answer.result()
    assert answer.tokens == right[:8]


# -- cancelling ---------------------------------------------------------------------------------------------------


def _during(model, nth: int, action) -> None:
    """Calls `action` in the middle of the model's nth forward."""
    score, calls = model.score, iter(range(1, 10_000))

    def scoring(requests):
        scores = score(requests)
        if next(calls) == nth:
            action()
        return scores

    model.score = scoring


def _by_signal(answer) -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: answer.cancel())
    signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("cancel", [lambda answer: answer.cancel(), _by_signal], ids=["call", "signal"])
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_cancel_in_mid_round_waits_for_its_end(nth, cancel):
    model = FakeModel()
    drafter = SuffixDrafter()
    engine = make_engine(model, drafter)
    good, bad = (engine.generate(PROMPT, SAMPLED, Limits(30)) for _ in range(2))
    open_then: list[int] = []

    def action() -> None:
        cancel(bad)
        open_then.append(len(model.open_sequences))

    _during(model, nth, action)
    assert good.result().tokens == expected(model)
    assert open_then == [2]
    assert bad.finish_reason == "cancelled"
    assert bad.tokens == expected(model)[: len(bad.tokens)]
    assert not model.open_sequences
    assert good.stats.drafter_error is None
    again = engine.generate(PROMPT, SAMPLED, Limits(30)).result()
    assert again.stats.num_drafted > 0 and again.tokens == expected(model)


def test_the_garbage_collector_may_drop_an_answer_in_mid_round():
    model = FakeModel()
    engine = make_engine(model, Sometimes(model=model))
    good = engine.generate(PROMPT, SAMPLED, Limits(30))
    dropped = iter(engine.generate(PROMPT, SAMPLED, Limits(30)))
    next(dropped)
    cycle = [dropped]
    cycle.append(cycle)
    del dropped, cycle
    _during(model, 2, gc.collect)
    assert good.result().tokens == expected(model)
    assert not model.open_sequences and engine.num_active == 0


def test_an_answer_that_is_dropped_before_it_is_read_costs_nothing_more():
    model = FakeModel()
    engine = make_engine(model)
    good = engine.generate(PROMPT, SAMPLED, Limits(30))
    engine.generate(PROMPT, SAMPLED, Limits(30))
    running = engine.generate(PROMPT, SAMPLED, Limits(30))
    engine.step()
    assert engine.num_active == 2
    del running
    assert engine.num_active == 1
    assert good.result().tokens == expected(model)
    assert max(model.rows_by_score[1:]) == 1


def test_a_drafter_may_cancel_streams():
    model = FakeModel()
    answers = []

    class Cancels(FakeDrafter):
        def propose_one(self, stream, budget):
            answers[0].cancel()
            return DraftTree()

    engine = make_engine(model, Cancels())
    answers += [engine.generate(PROMPT, SAMPLED, Limits(30)) for _ in range(2)]
    assert answers[1].result().tokens == expected(model)
    assert answers[0].finish_reason == "cancelled"
    assert not model.open_sequences


def test_a_round_is_not_entered_twice():
    model = FakeModel()

    class Asks(FakeDrafter):
        def propose_one(self, stream, budget):
            engine.generate(PROMPT, drafter=None).result()
            return DraftTree()

    engine = make_engine(model, Asks())
    answer = engine.generate(PROMPT, SAMPLED, Limits(30)).result()
    assert answer.tokens == expected(model)
    assert "during a round" in answer.stats.drafter_error
    assert not model.open_sequences


# -- policies -----------------------------------------------------------------------------------------------------


class BrokenPolicy(FixedPolicy):
    """Fails in one of its methods, or in one of its plan's, whenever it is called."""

    def __init__(self, method: str, fails: Callable[..., object]) -> None:
        super().__init__(4)
        self._method, self._fails = method, fails
        if hasattr(self, method) and method != "plan":
            setattr(self, method, fails)

    def plan(self, view):
        if self._method == "plan":
            return self._fails(view)
        plan = super().plan(view)
        if hasattr(plan, self._method):
            setattr(plan, self._method, self._fails)
        return plan


def _raise(*args: object) -> None:
    raise ZeroDivisionError("a bug in a policy")


@pytest.mark.parametrize("method", ["plan", "asks", "receive", "keep", "record", "forget"])
def test_a_policy_that_raises_ends_no_stream_and_leaks_nothing(method, caplog):
    model = FakeModel()
    engine = make_engine(model, AlwaysRight(model=model), BrokenPolicy(method, _raise))
    answers = [engine.generate(PROMPT, SAMPLED, Limits(30)) for _ in range(3)]
    assert all(answer.result().tokens == expected(model) for answer in answers)
    assert "a bug in a policy" in engine.stats.policy_error
    assert caplog.text.count("a bug in a policy") == 1
    assert not model.open_sequences


TOO_LONG = DraftTree.chain([1] * 40)


@pytest.mark.parametrize(
    "keeps",
    [
        lambda: [],
        lambda: [EMPTY_TREE] * 2,
        lambda: [None],
        lambda: [[1, 2]],
        lambda: [TOO_LONG],
        lambda: [DraftTree.chain([99])],
        lambda: [DraftTree.chain([-1])],
        lambda: None,
    ],
    ids=["too few", "too many", "no tree", "a list", "longer than the room", "unknown id", "negative id", "nothing"],
)
def test_a_policy_that_keeps_what_no_forward_can_score_makes_plain_rounds(keeps):
    model = FakeModel()
    engine = make_engine(model, AlwaysRight(model=model), BrokenPolicy("keep", keeps))
    answer = engine.generate(PROMPT, SAMPLED, Limits(30)).result()
    assert answer.tokens == expected(model)
    assert engine.stats.policy_error and not answer.stats.num_drafted


# -- threads and processes ----------------------------------------------------------------------------------------


def test_engines_in_several_threads_share_a_model():
    model = FakeModel()
    drafters = [Sometimes(model=model), SuffixDrafter(), DraftModelDrafter(model), None]
    engines = [make_engine(model, drafter) for drafter in drafters]
    wrong = []

    def work(engine: Engine) -> None:
        for i in range(12):
            answer = engine.generate([i], SAMPLED, Limits(30))
            if i % 4 == 3:
                next(iter(answer))
                answer.cancel()
            elif answer.result().tokens != expected(model, [i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(engine,)) for engine in engines for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not model.open_sequences


def test_no_engine_keeps_another_waiting():
    """A thread that comes back for its next round at once does not overtake the one that waits."""
    model, rounds = FakeModel(), []
    score = model.score

    def slow(requests):
        rounds.append(threading.get_ident())
        time.sleep(0.02)  # long enough for the other to come back, on a busy machine too
        return score(requests)

    model.score = slow
    threads = [
        threading.Thread(target=make_engine(model).generate(PROMPT, SAMPLED, Limits(15)).result) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    while len(set(rounds[:2])) < 2:
        del rounds[0]  # the second thread had not started
    both = rounds[: len(rounds) - 6]
    longest = max(len(list(run)) for _, run in groupby(both))
    assert longest <= 3


def _generate_in_child(engine, reports) -> None:
    try:
        reports.put(engine.generate(PROMPT, SAMPLED, Limits(5)).result().tokens)
    except UsageError as error:
        reports.put(str(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_gets_a_clear_error():
    model = FakeModel()
    engine = make_engine(model)
    answer = engine.generate(PROMPT, SAMPLED, Limits(30))
    engine.step()
    context = multiprocessing.get_context("fork")
    reports = context.SimpleQueue()
    with TURN.taken():  # as another thread may have it at that moment
        child = context.Process(target=_generate_in_child, args=(engine, reports))
        child.start()
        child.join(30)
    assert child.exitcode == 0
    assert "can't be used after a fork" in reports.get() and os.getpid() != child.pid
    assert answer.result().tokens == expected(model)


# -- drafters -----------------------------------------------------------------------------------------------------


@dataclass
class Returns(FakeDrafter):
    """Proposes what `make` makes of the right tokens."""

    model: FakeModel | None = None
    make: object = None

    def propose_one(self, stream, budget):
        right = AlwaysRight(model=self.model).propose_one(stream, budget)
        return self.make(right)


def _uniform(shape) -> np.ndarray:
    return np.full(shape, 1 / 32)


BROKEN = {
    "nan": lambda t: DraftTree.chain(t.tokens, [math.nan] * len(t)),
    "inf": lambda t: DraftTree.chain(t.tokens, [math.inf] * len(t)),
    "none": lambda t: DraftTree.chain(t.tokens, [None] * len(t)),
    "text": lambda t: DraftTree.chain(t.tokens, ["high"] * len(t)),
    "float tokens": lambda t: DraftTree.chain([float(token) for token in t.tokens]),
    "text tokens": lambda t: DraftTree.chain([str(token) for token in t.tokens]),
    "short proposals": lambda t: DraftTree.chain(t.tokens, (), [_uniform(0)] * len(t)),
    "2-D proposals": lambda t: DraftTree.chain(t.tokens, (), [_uniform((1, 32))] * len(t)),
    "nan proposals": lambda t: DraftTree.chain(t.tokens, (), [np.full(32, math.nan)] * len(t)),
    "zero proposals": lambda t: DraftTree.chain(t.tokens, (), [np.zeros(32)] * len(t)),
    "proposals that are lists": lambda t: DraftTree.chain(t.tokens, (), [[1 / 32] * 32] * len(t)),
    "a list": lambda t: list(t.tokens),
    "nothing": lambda t: None,
    "raises": lambda t: 1 / 0,
}


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("policy", [AutoPolicy, lambda: FixedPolicy(4)], ids=["auto", "fixed"])
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_drafter_is_given_up_for_its_streams_alone(broken, policy, verifier):
    model = FakeModel()
    engine = make_engine(model, AlwaysRight(model=model), policy(), clock=lambda: 0.0)
    plain = engine.generate(PROMPT, SAMPLED, Limits(30), drafter=None)
    fine = engine.generate(PROMPT, SAMPLED, Limits(30))
    drafter = Returns(name="broken", model=model, make=broken)
    answer = engine.generate(PROMPT, SAMPLED, Limits(30), drafter=drafter, verifier=verifier).result()
    assert answer.stats.drafter_error and len(answer.tokens) == 30
    if verifier == "matching":
        assert answer.tokens == expected(model)
    assert plain.result().tokens == fine.result().tokens == expected(model)
    assert fine.stats.drafter_error is None
    assert not model.open_sequences


@pytest.mark.parametrize(
    "odd",
    [
        lambda t: DraftTree.chain([np.int64(token) for token in t.tokens]),
        lambda t: DraftTree.chain(t.tokens, [7.0] * len(t)),
        lambda t: DraftTree.chain(t.tokens, [-1.0] * len(t)),
        lambda t: DraftTree.chain(t.tokens, np.full(len(t), 0.5)),
        lambda t: DraftTree(t.tokens, tuple(np.int32(p) for p in t.parents)),
    ],
    ids=["numpy tokens", "too sure", "below zero", "numpy confidences", "numpy parents"],
)
def test_an_odd_but_sensible_draft_is_used(odd):
    model = FakeModel()
    answer = make_engine(model, Returns(model=model, make=odd)).generate(PROMPT, SAMPLED, Limits(30)).result()
    assert answer.stats.drafter_error is None and answer.stats.num_accepted > 0
    assert answer.tokens == expected(model) and all(type(token) is int for token in answer.tokens)


def test_a_drafter_that_fails_on_one_stream_keeps_the_others_and_later_ones():
    model = FakeModel()

    class Picky(AlwaysRight):
        def propose_one(self, stream, budget):
            if stream.prompt_length == 1:
                raise ValueError("too short")
            return super().propose_one(stream, budget)

    engine = make_engine(model, Picky(model=model))
    answers = [engine.generate(prompt, SAMPLED, Limits(30)) for prompt in (PROMPT, [5], PROMPT)]
    assert [a.result().tokens for a in answers] == [expected(model, p) for p in (PROMPT, [5], PROMPT)]
    assert [bool(a.stats.drafter_error) for a in answers] == [False, True, False]
    later = engine.generate(PROMPT, SAMPLED, Limits(30)).result()
    assert later.stats.num_accepted > 0 and not later.stats.drafter_error


def test_a_draft_model_with_nan_weights_hurts_nobody():
    model, broken = FakeModel(), FakeModel(lambda tokens: np.full(32, math.nan, np.float32))
    for sampling in (Sampling(), SAMPLED):
        for verifier in VERIFIERS:
            engine = make_engine(model, DraftModelDrafter(broken))
            plain = engine.generate(PROMPT, sampling, Limits(30), drafter=None)
            answer = engine.generate(PROMPT, sampling, Limits(30), verifier=verifier).result()
            assert answer.stats.drafter_error and len(answer.tokens) == 30
            assert plain.result().tokens == expected(model, sampling=sampling)
    assert not model.open_sequences and not broken.open_sequences


def test_a_draft_with_a_smaller_head_works_beside_penalties():
    model = FakeModel(vocab=32)
    small = FakeModel(lambda tokens: model.logits(tokens)[:16], vocab=16)
    small.info = FakeModel(vocab=32).info
    sampling = Sampling(repetition_penalty=1.3, presence_penalty=0.5, logit_bias={30: 3.0})
    engine = make_engine(model, DraftModelDrafter(small, vocabulary=SameVocabulary(32)))
    answer = engine.generate([30, 31, 2], sampling, Limits(30)).result()
    assert answer.tokens == expected(model, [30, 31, 2], sampling)
    assert answer.stats.drafter_error is None
