"""Whatever the drafter does, the engine gives the text of plain decoding."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from fakes import (
    AlwaysRight,
    AlwaysWrong,
    BadTokens,
    Crashing,
    FakeDrafter,
    FakeModel,
    Oversized,
    RandomTrees,
    Scripted,
    Sometimes,
    cycle_logits,
    hashed_logits,
    letters,
    plain_tokens,
    target_tokens,
)
from slipstream.core.engine import Engine
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.core.tree import DraftTree
from slipstream.drafters.ngram import NgramDrafter
from slipstream.drafters.suffix import SuffixDrafter, SuffixOptions
from slipstream.policy import AutoPolicy, FixedPolicy

PROMPT = [3, 1, 4]
GREEDY = Sampling()
SAMPLED = Sampling(temperature=1.0, top_p=0.95, seed=5)
PENALISED = Sampling(temperature=0.8, repetition_penalty=1.2, frequency_penalty=0.3, logit_bias={2: 1.0}, seed=9)

DRAFTERS = {
    "none": lambda model: None,
    "empty": lambda model: FakeDrafter(),
    "right": lambda model: AlwaysRight(model=model),
    "wrong": lambda model: AlwaysWrong(model=model),
    "sometimes": lambda model: Sometimes(model=model, p=0.7),
    "trees": lambda model: RandomTrees(model=model),
    "oversized": lambda model: Oversized(model=model),
    "bad tokens": lambda model: BadTokens(model=model),
    "ngram": lambda model: NgramDrafter(),
    "suffix": lambda model: SuffixDrafter(),
    "suffix trees": lambda model: SuffixDrafter(SuffixOptions(width=3)),
}


def make_engine(model, drafter=None, policy=None, eos=None, **settings) -> Engine:
    return Engine(model, letters(model.info.vocab_size, eos), drafter, policy or FixedPolicy(4), **settings)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("policy", [lambda: FixedPolicy(4), AutoPolicy], ids=["fixed", "auto"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_gives_the_text_of_plain_decoding(drafter, policy, sampling):
    model = FakeModel()
    engine = make_engine(model, DRAFTERS[drafter](model), policy())
    answer = engine.generate(PROMPT, sampling, Limits(max_tokens=50)).result()
    expected = plain_tokens(model.logits, PROMPT, sampling, 50)
    assert answer.tokens == expected
    assert answer.text == letters().decode(expected)
    assert answer.finish_reason == "length"
    assert not model.open_sequences
    assert answer.stats.drafter_error is None


def test_a_right_drafter_saves_forwards_and_a_wrong_one_none():
    def forwards(make_drafter):
        model = FakeModel()
        answer = make_engine(model, make_drafter(model)).generate(PROMPT, SAMPLED, Limits(max_tokens=51)).result()
        assert answer.stats.target_forwards == model.num_scores
        return model.num_scores

    assert forwards(DRAFTERS["none"]) == 51
    assert forwards(DRAFTERS["wrong"]) == 51
    assert forwards(DRAFTERS["right"]) == 11  # the prompt's token, then 5 a round
    assert 11 < forwards(DRAFTERS["sometimes"]) < 40


def test_tokens_say_whether_they_were_drafted():
    model = FakeModel()
    engine = make_engine(model, AlwaysRight(model=model))
    drafted = [token.drafted for token in engine.generate(PROMPT, GREEDY, Limits(max_tokens=11))]
    assert drafted == [False, *([True] * 4 + [False]) * 2]


# -- ends inside a draft ------------------------------------------------------------------------------------------

CYCLE = FakeModel(cycle_logits(range(26), 32))  # … a b c d e f …


@pytest.mark.parametrize("max_tokens", range(1, 13))
@pytest.mark.parametrize("drafter", ["none", "right", "oversized", "trees"])
def test_max_tokens_inside_a_draft(drafter, max_tokens):
    model = FakeModel(CYCLE.logits)
    engine = make_engine(model, DRAFTERS[drafter](model), FixedPolicy(5))
    answer = engine.generate("a", GREEDY, Limits(max_tokens=max_tokens)).result()
    assert answer.text == "bcdefghijklmnop"[:max_tokens]
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("eos", range(1, 12))
@pytest.mark.parametrize("drafter", ["none", "right", "trees"])
def test_an_end_token_inside_a_draft(drafter, eos):
    model = FakeModel(CYCLE.logits)
    engine = make_engine(model, DRAFTERS[drafter](model), FixedPolicy(5), eos=eos)
    answer = engine.generate([0], GREEDY, Limits(max_tokens=20)).result()
    assert answer.tokens == list(range(1, eos + 1))
    assert answer.text == "bcdefghijklmnop"[: eos - 1]
    assert answer.finish_reason == "stop"
    assert answer.stats.num_tokens == eos
    assert answer.stats.num_accepted <= eos


def test_ignore_eos_goes_on_and_stop_tokens_end_like_it():
    engine = make_engine(CYCLE, AlwaysRight(model=CYCLE), eos=4)
    assert len(engine.generate([0], GREEDY, Limits(max_tokens=9, ignore_eos=True)).result().tokens) == 9
    answer = engine.generate([0], GREEDY, Limits(max_tokens=9, ignore_eos=True, stop_tokens=frozenset({6}))).result()
    assert (answer.text, answer.finish_reason) == ("bcdf", "stop")  # e is the end token, so it has no text


@pytest.mark.parametrize("stop", ["f", "ef", "defg", "hij", "bcd", "klmno"])
@pytest.mark.parametrize("drafter", ["none", "right", "trees"])
def test_a_stop_string_inside_or_across_drafts(drafter, stop):
    model = FakeModel(CYCLE.logits)
    engine = make_engine(model, DRAFTERS[drafter](model), FixedPolicy(5))
    answer = engine.generate("a", GREEDY, Limits(max_tokens=20, stop=("zz", stop))).result()
    text = "bcdefghijklmnopqrst"
    assert answer.text == text[: text.index(stop)]
    assert answer.finish_reason == "stop"
    assert letters().decode(answer.tokens) == text[: text.index(stop) + len(stop)]


def test_text_held_for_a_stop_string_is_released_at_the_end():
    engine = make_engine(CYCLE, AlwaysRight(model=CYCLE))
    answer = engine.generate("a", GREEDY, Limits(max_tokens=5, stop=("efX",))).result()
    assert answer.text == "bcdef"


@pytest.mark.parametrize("context", range(5, 20))
@pytest.mark.parametrize("drafter", ["none", "right", "oversized", "trees", "suffix trees"])
def test_a_full_context_ends_the_answer_and_is_never_exceeded(drafter, context):
    model = FakeModel(context=context)
    engine = make_engine(model, DRAFTERS[drafter](model), FixedPolicy(5))
    answer = engine.generate(PROMPT, GREEDY, Limits(max_tokens=100)).result()
    assert answer.tokens == plain_tokens(model.logits, PROMPT, GREEDY, context - 3)
    assert answer.finish_reason == "length"


def test_text_held_when_the_context_is_full_is_released():
    model = FakeModel(CYCLE.logits, context=6)
    answer = make_engine(model).generate("a", GREEDY, Limits(stop=("fX",))).result()
    assert answer.text == "bcdef"


# -- drafters that misbehave --------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("method", ["begin", "propose", "observe"])
@pytest.mark.parametrize("policy", [lambda: FixedPolicy(4), AutoPolicy], ids=["fixed", "auto"])
def test_a_drafter_that_crashes_is_left_out_and_the_text_stays(method, nth, policy, caplog):
    model = FakeModel()
    drafter = Crashing(AlwaysRight(model=model), method, nth)
    engine = make_engine(model, drafter, policy(), clock=lambda: 0.0)  # a busy machine must not change who is asked
    answers = [engine.generate([*PROMPT, i], SAMPLED, Limits(max_tokens=40)) for i in range(3)]
    with caplog.at_level(logging.WARNING, logger="slipstream"):
        for i, answer in enumerate(answers):
            assert answer.result().tokens == plain_tokens(model.logits, [*PROMPT, i], SAMPLED, 40)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"crash in {method}" in caplog.text
    concerned = answers[nth - 1 :] if method == "begin" else answers  # `begin` is for one stream alone
    assert all(f"crash in {method}" in answer.stats.drafter_error for answer in concerned)
    assert not any(answer.stats.drafter_error for answer in answers if answer not in concerned)
    assert "crashing" in engine.stats.drafter_error
    assert set(drafter.inner.begun) <= set(drafter.inner.ended)
    assert not model.open_sequences


def test_a_drafter_that_crashed_is_not_tried_again(caplog):
    model = FakeModel()
    engine = make_engine(model, Crashing(AlwaysRight(model=model), "propose", 2))
    for _ in range(3):
        answer = engine.generate(PROMPT, GREEDY, Limits(max_tokens=20)).result()
        assert answer.tokens == plain_tokens(model.logits, PROMPT, GREEDY, 20)
        assert answer.stats.drafter_error
    assert len(caplog.records) == 1


def test_a_drafter_that_crashes_at_the_end_harms_nobody():
    model = FakeModel()
    engine = make_engine(model, Crashing(AlwaysRight(model=model), "end"))
    for _ in range(2):
        answer = engine.generate(PROMPT, SAMPLED, Limits(max_tokens=20)).result()
        assert answer.tokens == plain_tokens(model.logits, PROMPT, SAMPLED, 20)
    assert not model.open_sequences


@pytest.mark.parametrize(
    "proposals",
    [lambda s: [], lambda s: [DraftTree.chain([1])] * (len(s) + 1), lambda s: None, lambda s: [None] * len(s)],
    ids=["too few", "too many", "no list", "no trees"],
)
def test_an_answer_of_the_wrong_shape_counts_as_a_crash(proposals, caplog):
    model, drafter = FakeModel(), FakeDrafter()
    drafter.propose = lambda streams, budgets: proposals(streams)
    answer = make_engine(model, drafter).generate(PROMPT, GREEDY, Limits(max_tokens=9)).result()
    assert answer.tokens == plain_tokens(model.logits, PROMPT, GREEDY, 9)
    assert answer.stats.drafter_error
    assert len(caplog.records) == 1


@pytest.mark.parametrize("bad", [-1, 32, 10**9])
@pytest.mark.parametrize("at", [0, 2])
def test_a_draft_is_cut_before_an_id_outside_the_vocabulary(bad, at):
    model = FakeModel()
    answer = make_engine(model, BadTokens(model=model, bad=bad, at=at)).generate(PROMPT, GREEDY, Limits(13)).result()
    assert answer.tokens == plain_tokens(model.logits, PROMPT, GREEDY, 13)
    assert answer.stats.num_accepted == answer.stats.num_drafted > 0 or at == 0
    assert answer.stats.drafter_error is None


def test_an_oversized_draft_is_cut_to_its_budget():
    model = FakeModel(max_rows=64)
    answer = make_engine(model, Oversized(model=model, extra=100)).generate(PROMPT, GREEDY, Limits(21)).result()
    assert max(model.rows_by_score) == 5
    assert answer.stats.acceptance_rate == 1.0


def test_a_crash_of_one_drafter_leaves_the_others_alone():
    model = FakeModel()
    engine = make_engine(model)
    good = AlwaysRight(model=model)
    broken = engine.generate(PROMPT, GREEDY, Limits(21), drafter=Crashing(FakeDrafter(), "propose"))
    fine = engine.generate(PROMPT, GREEDY, Limits(21), drafter=good)
    assert broken.result().tokens == fine.result().tokens
    assert broken.stats.drafter_error and not fine.stats.drafter_error
    assert fine.stats.num_accepted > 0


# -- what the drafter is told -------------------------------------------------------------------------------------


def test_begin_and_end_come_once_for_every_stream():
    model = FakeModel()
    drafter = AlwaysRight(model=model)
    engine = make_engine(model, drafter)
    answers = [engine.generate([*PROMPT, i], limits=Limits(max_tokens=5 + i)) for i in range(4)]
    next(iter(answers[0]))
    for answer in answers[1:]:
        answer.result()
    assert sorted(drafter.begun) == sorted(drafter.ended) == [answer.stream.id for answer in answers]


@dataclass
class Noting(Sometimes):
    """Keeps what it proposed."""

    proposed: list[DraftTree] = field(default_factory=list)

    def propose_one(self, stream, budget):
        self.proposed.append(super().propose_one(stream, budget))
        return self.proposed[-1]


def test_observations_carry_what_was_scored_and_decided():
    model = FakeModel()
    drafter = Noting(model=model, p=0.6)
    engine = make_engine(model, drafter, FixedPolicy(3))
    answer = engine.generate(PROMPT, GREEDY, Limits(max_tokens=30)).result()
    gained = [token for o in drafter.observations for token in o.verdict.tokens(o.scored)]
    assert answer.tokens[: len(gained)] == gained
    assert [o.scored for o in drafter.observations if o.scored] == drafter.proposed


def test_budgets_leave_room_for_the_targets_own_token():
    model = FakeModel()
    budgets = []

    def script(stream, budget):
        budgets.append(budget)
        return DraftTree.chain(target_tokens(model, stream, budget))

    make_engine(model, Scripted(script=script), FixedPolicy(6)).generate(PROMPT, GREEDY, Limits(max_tokens=12)).result()
    assert budgets == [6, 3]  # 1 + 7 + 4 tokens


def test_a_logits_row_is_not_changed_by_penalties():
    """FakeScores hands out read-only rows: a write would raise."""
    model = FakeModel(hashed_logits(32, 4))
    answer = make_engine(model, AlwaysRight(model=model)).generate(PROMPT, PENALISED, Limits(max_tokens=20)).result()
    assert len(answer.tokens) == 20
