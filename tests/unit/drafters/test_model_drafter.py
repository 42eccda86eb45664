"""The draft model: what it proposes, and what it never computes twice."""

from __future__ import annotations

import numpy as np
import pytest

from fakes import (
    AlwaysRight,
    FakeModel,
    cycle_logits,
    grow,
    hashed_logits,
    letters,
    make_stream,
    plain_tokens,
    target_tokens,
)
from slipstream.core.engine import Engine
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.core.team import DrafterTeam
from slipstream.drafters.model import DraftModelDrafter, DraftModelOptions
from slipstream.drafters.vocabulary import SameVocabulary
from slipstream.errors import UsageError
from slipstream.policy import FixedPolicy

PROMPT = [3, 1, 4, 1, 5]
SAMPLED = Sampling(temperature=1.0, top_p=0.9, seed=3)
PENALISED = Sampling(temperature=0.7, frequency_penalty=0.4, repetition_penalty=1.1, seed=8)
SETTINGS = pytest.mark.parametrize("sampling", [Sampling(), SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])


def similar_to(logits, seed: int = 9, noise: float = 1.5):
    other = hashed_logits(32, seed, scale=1.0)
    return lambda tokens: logits(tokens) + noise * other(tokens)


def engine_for(target, draft, options=None, budget=4, **settings) -> Engine:
    drafter = DraftModelDrafter(draft, options, SameVocabulary(target.info.vocab_size))
    return Engine(target, letters(target.info.vocab_size), drafter, FixedPolicy(budget), **settings)


def proposal(drafter, budget=4, sampling=None, prompt=PROMPT):
    stream = make_stream(prompt, sampling, drafter=drafter)
    drafter.begin(stream)
    return drafter.propose([stream], [budget])[0]


# -- what it proposes ---------------------------------------------------------------------------------------------


@SETTINGS
def test_a_draft_that_is_the_target_is_accepted_whole(sampling):
    """Greedy and sampled alike: draft and target share the noise."""
    target, draft = FakeModel(), FakeModel()
    answer = engine_for(target, draft).generate(PROMPT, sampling, Limits(max_tokens=41)).result()
    assert answer.tokens == plain_tokens(target.logits, PROMPT, sampling, 41)
    assert answer.stats.acceptance_rate == 1.0
    assert target.num_scores == 9


@SETTINGS
@pytest.mark.parametrize("n_parallel", [1, 3])
def test_a_similar_draft_is_accepted_in_part_and_the_text_stays(sampling, n_parallel):
    target = FakeModel()
    draft = FakeModel(similar_to(target.logits))
    engine = engine_for(target, draft, DraftModelOptions(n_parallel=n_parallel), budget=6)
    answers = [engine.generate([*PROMPT, i], sampling, Limits(max_tokens=50)) for i in range(3)]
    for i, answer in enumerate(answers):
        assert answer.result().tokens == plain_tokens(target.logits, [*PROMPT, i], sampling, 50)
        assert answer.stats.drafter_error is None
    assert 0 < engine.stats.num_accepted < engine.stats.num_drafted
    assert not draft.open_sequences


def test_shared_noise_makes_samples_agree_more_often_than_independent_ones():
    target = FakeModel(hashed_logits(32, 1, scale=1.0))
    draft = FakeModel(similar_to(target.logits, noise=0.3))
    sampling = Sampling(temperature=1.5, seed=1)
    stats = engine_for(target, draft, budget=1).generate(PROMPT, sampling, Limits(max_tokens=200)).result().stats
    independent = np.mean([_agreement(target, draft, [a, b], sampling) for a in range(6) for b in range(6)])
    assert stats.acceptance_rate > 2 * independent


def _agreement(target, draft, context, sampling) -> float:
    """The chance that two independent samples are the same token."""
    p, q = (np.exp(model.logits(context) / sampling.temperature) for model in (target, draft))
    return float((p / p.sum()) @ (q / q.sum()))


def test_confidence_is_the_draft_models_own_probability():
    model = FakeModel()
    tree = proposal(DraftModelDrafter(model))
    row = model.logits(PROMPT)
    weights = np.exp(row - row.max())
    assert tree.confidence[0] == pytest.approx(weights.max() / weights.sum(), rel=1e-5)


def test_drafting_stops_where_the_draft_is_not_sure_enough():
    sure, unsure = cycle_logits(range(5), 32, sharp=12.0), hashed_logits(32, scale=0.1)
    draft = FakeModel(lambda tokens: unsure(tokens) if tokens[-1] == 3 else sure(tokens))
    assert proposal(DraftModelDrafter(draft, DraftModelOptions(p_min=0.5)), 8, prompt=[0]).tokens == (1, 2, 3)
    assert len(proposal(DraftModelDrafter(draft), 8, prompt=[0])) == 8
    assert not proposal(DraftModelDrafter(draft, DraftModelOptions(p_min=0.5)), 8, prompt=[3])


def test_a_tree_holds_the_second_choice_where_it_is_likely():
    def logits(tokens):
        row = np.zeros(32, np.float32)
        row[[7, 9]] = (10.0, 9.5) if tokens[-1] == 5 else (10.0, 0.0)
        return row

    tree = proposal(DraftModelDrafter(FakeModel(logits), DraftModelOptions(n_parallel=2)), 6)
    assert [tree.tokens[n] for n in tree.children(-1)] == [7, 9]
    assert sorted(map(tuple, (tree.path_tokens(n) for n in range(len(tree)) if not tree.children(n)))) == [
        (7, 7, 7),
        (9, 7, 7),
    ]
    assert proposal(DraftModelDrafter(FakeModel(logits)), 6).is_chain
    never = DraftModelOptions(n_parallel=2, p_split=0.9)
    assert proposal(DraftModelDrafter(FakeModel(logits), never), 6).is_chain


@pytest.mark.parametrize("n_parallel", [1, 2, 3, 5])
@pytest.mark.parametrize("budget", range(8))
@pytest.mark.parametrize("verifier", ["matching", "rejection"])
def test_a_draft_never_exceeds_its_budget(budget, n_parallel, verifier):
    options = DraftModelOptions(n_parallel=n_parallel, p_split=0.0)
    drafter = DraftModelDrafter(FakeModel(hashed_logits(32, scale=0.5)), options)
    stream = make_stream(PROMPT, SAMPLED, drafter=drafter, verifier=verifier)
    drafter.begin(stream)
    tree = drafter.propose([stream], [budget])[0]
    assert len(tree) == budget


def test_more_branches_are_accepted_more_often():
    target = FakeModel(hashed_logits(32, scale=1.0))

    def accepted(n_parallel):
        draft = FakeModel(similar_to(target.logits, noise=1.0))
        options = DraftModelOptions(n_parallel=n_parallel, p_split=0.02)
        return engine_for(target, draft, options, budget=6).generate(PROMPT, limits=Limits(200)).result().stats

    assert accepted(3).accepted_at[1] > accepted(1).accepted_at[1] * 1.1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"p_min": 1.0}, "p_min=1: expected p_min 0 or more, and less than 1"),
        ({"p_min": -0.1}, "p_min=-0.1: expected p_min 0 or more, and less than 1"),
        ({"p_split": 1.1}, "p_split=1.1: expected p_split 0 to 1"),
        ({"n_parallel": 0}, "n_parallel=0: expected n_parallel 1 or more"),
    ],
    ids=str,
)
def test_impossible_options_are_refused(options, told):
    with pytest.raises(UsageError) as refused:
        DraftModelOptions(**options)
    assert str(refused.value) == told


# -- what it computes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_parallel", [1, 3])
def test_the_draft_model_reads_nothing_twice(n_parallel):
    """Each row it scores is a new (context, token): a rejection goes back to where text and draft part."""
    target = FakeModel()
    draft = FakeModel(similar_to(target.logits, noise=1.0))
    engine = engine_for(target, draft, DraftModelOptions(n_parallel=n_parallel), budget=5)
    answer = engine.generate(PROMPT, limits=Limits(max_tokens=80)).result()
    assert 0 < answer.stats.num_accepted < answer.stats.num_drafted
    on_the_text = {
        tuple(answer.stream.tokens[:n]): count
        for n in range(1, len(answer.stream.tokens) + 1)
        if (count := draft.rows_read[tuple(answer.stream.tokens[:n])])
    }
    if n_parallel == 1:
        assert max(draft.rows_read.values()) == 1
    assert max(on_the_text.values()) <= n_parallel  # a line that lost is closed, and its token may be read once more
    assert draft.num_rows <= len(answer.stream.tokens) + answer.stats.num_drafted


def test_the_prompt_is_read_once_before_the_first_draft():
    draft = FakeModel(max_rows=16)
    prompt = [i % 32 for i in range(50)]
    drafter = DraftModelDrafter(draft)
    stream = make_stream(prompt)
    drafter.begin(stream)
    assert draft.num_rows == 0
    drafter.read_prompts([stream], [20])
    assert (draft.num_rows, draft.num_scores) == (20, 2)
    drafter.read_prompts([stream], [30])
    assert (draft.num_rows, draft.num_scores) == (49, 4)
    drafter.propose([stream], [3])
    assert draft.num_rows == 49 + 3


def test_what_was_not_read_of_a_prompt_is_read_before_the_first_draft():
    draft = FakeModel(max_rows=16)
    drafter, stream = DraftModelDrafter(draft), make_stream([i % 32 for i in range(50)])
    drafter.begin(stream)
    drafter.read_prompts([stream], [20])
    assert list(drafter.propose([stream], [3])[0].tokens) == target_tokens(draft, stream, 3)
    assert draft.num_rows == 49 + 3


def test_a_long_prompt_does_not_hold_up_other_streams():
    """The draft model reads as much of it in a round as the target does."""
    target, draft = FakeModel(), FakeModel()
    engine = engine_for(target, draft, prefill_chunk=8)
    short = engine.generate(PROMPT, limits=Limits(max_tokens=40))
    engine.step()
    long = engine.generate([i % 32 for i in range(100)], limits=Limits(max_tokens=5))
    read = []
    while not long.stream.tokens[100:]:
        before = draft.num_rows
        engine.step()
        read.append(draft.num_rows - before)
    assert max(read) <= 8 + 5  # and a draft of the other stream
    assert sum(read) >= 99
    assert short.result().tokens == plain_tokens(target.logits, PROMPT, Sampling(), 40)
    assert long.result().stats.num_accepted > 0


def test_a_prompt_that_several_streams_begin_with_is_read_once():
    target, draft = FakeModel(), FakeModel(remembers=True)
    engine = engine_for(target, draft)
    prompt = [i % 32 for i in range(30)]
    answers = [engine.generate(prompt, limits=Limits(max_tokens=3)) for _ in range(4)]
    engine.step()
    assert draft.num_rows == 29
    assert all(answer.result().tokens == plain_tokens(target.logits, prompt, Sampling(), 3) for answer in answers)


def test_a_drafter_that_fails_to_read_a_prompt_is_dropped_for_its_stream_alone(monkeypatch):
    target, draft = FakeModel(), FakeModel()
    team = DrafterTeam([Reads("one", model=target), DraftModelDrafter(draft)])
    engine = Engine(target, letters(32), team, FixedPolicy(4))
    answers = [engine.generate([*PROMPT, token], limits=Limits(max_tokens=20)) for token in (9, Reads.BAD, 11)]
    others = engine.generate(PROMPT, limits=Limits(max_tokens=20), drafter=None)
    for answer, last in zip(answers, (9, Reads.BAD, 11), strict=True):
        assert answer.result().tokens == plain_tokens(target.logits, [*PROMPT, last], Sampling(), 20)
    assert others.result().tokens == plain_tokens(target.logits, PROMPT, Sampling(), 20)
    assert [bool(answer.stats.drafter_error) for answer in answers] == [False, True, False]
    assert not draft.open_sequences


class Reads(AlwaysRight):
    """Can't read a prompt that ends with BAD."""

    BAD = 10

    def read_prompts(self, streams, counts):
        assert all(stream.tokens[stream.prompt_length - 1] != self.BAD for stream in streams)


def test_one_forward_a_depth_serves_all_streams():
    draft = FakeModel()
    drafter = DraftModelDrafter(draft)
    streams = [make_stream([*PROMPT, i]) for i in range(5)]
    for stream in streams:
        drafter.begin(stream)
    before = draft.num_scores
    trees = drafter.propose(streams, [4, 4, 2, 0, 4])
    assert draft.num_scores - before == 4
    assert [len(tree) for tree in trees] == [4, 4, 2, 0, 4]
    assert [list(t.tokens) for t in trees] == [
        target_tokens(draft, s, n) for s, n in zip(streams, [4, 4, 2, 0, 4], strict=True)
    ]


def test_a_stream_that_was_not_drafted_for_a_while_is_caught_up():
    draft = FakeModel(max_rows=16)
    drafter = DraftModelDrafter(draft)
    stream = make_stream(PROMPT)
    drafter.begin(stream)
    drafter.propose([stream], [3])
    grow(stream, [7] * 40)
    assert list(drafter.propose([stream], [3])[0].tokens) == target_tokens(draft, stream, 3)
    assert max(draft.rows_read.values()) == 1


def test_each_draft_stops_by_its_own_chance_not_by_that_of_earlier_ones():
    draft = FakeModel()
    drafter, stream = DraftModelDrafter(draft), make_stream(PROMPT)
    stream.least_chance = 0.3
    drafter.begin(stream)
    lengths, fresh = [], []
    for _ in range(6):
        tree = drafter.propose([stream], [8])[0]
        another = DraftModelDrafter(FakeModel())
        another.begin(stream)
        fresh.append(len(another.propose([stream], [8])[0]))
        lengths.append(len(tree))
        grow(stream, tree.tokens)  # accepted whole
    assert lengths == fresh
    assert max(lengths) > 1


def test_many_streams_are_drafted_within_the_rows_the_draft_model_takes():
    draft = FakeModel(max_rows=16)
    drafter = DraftModelDrafter(draft, DraftModelOptions(n_parallel=2, p_split=0.0))
    streams = [make_stream([*PROMPT, i]) for i in range(12)]
    for stream in streams:
        drafter.begin(stream)
    drafter.propose(streams, [4] * 12)
    for stream in streams:
        grow(stream, [1, 2, 3])  # unread tokens ride along with the first step
    trees = drafter.propose(streams, [4] * 12)
    assert [len(tree) for tree in trees] == [4] * 12
    assert max(draft.rows_by_score) <= 16


# -- where it cannot draft ----------------------------------------------------------------------------------------


def test_a_stream_longer_than_the_drafts_context_is_left_to_the_target():
    target, draft = FakeModel(), FakeModel(context=20)
    answer = engine_for(target, draft).generate(PROMPT, limits=Limits(max_tokens=60)).result()
    assert answer.tokens == plain_tokens(target.logits, PROMPT, Sampling(), 60)
    assert answer.stats.drafter_error is None
    assert 0 < answer.stats.num_accepted < 20
    long = engine_for(target, FakeModel(context=4)).generate(PROMPT, limits=Limits(max_tokens=20)).result()
    assert (long.stats.num_drafted, long.stats.drafter_error) == (0, None)


def test_a_draft_model_without_room_drafts_nothing_for_the_stream():
    target, draft = FakeModel(), FakeModel(max_sequences=1)
    engine = engine_for(target, draft)
    answers = [engine.generate([*PROMPT, i], limits=Limits(max_tokens=20)) for i in range(3)]
    engine.step()
    for i, answer in enumerate(answers):
        assert answer.result().tokens == plain_tokens(target.logits, [*PROMPT, i], Sampling(), 20)
        assert answer.stats.drafter_error is None
    assert [answer.stats.num_drafted > 0 for answer in answers] == [True, False, False]
    assert not draft.open_sequences


def test_without_room_for_a_branch_the_draft_stays_a_chain():
    draft = FakeModel(hashed_logits(32, scale=0.5), max_sequences=1)
    tree = proposal(DraftModelDrafter(draft, DraftModelOptions(n_parallel=3, p_split=0.0)), 5)
    assert tree.is_chain and len(tree) == 5


def test_branches_are_closed_by_the_next_round_and_at_the_end():
    draft = FakeModel(hashed_logits(32, scale=0.5))
    drafter = DraftModelDrafter(draft, DraftModelOptions(n_parallel=3, p_split=0.0))
    stream = make_stream(PROMPT)
    drafter.begin(stream)
    for _ in range(4):
        drafter.propose([stream], [6])
        assert len(draft.open_sequences) == 3
        grow(stream, [2])
    drafter.end(stream)
    assert not draft.open_sequences
    drafter.end(stream)


def test_an_abandoned_stream_gives_the_drafts_sequence_back():
    target, draft = FakeModel(), FakeModel()
    for _ in engine_for(target, draft, DraftModelOptions(n_parallel=3)).generate(PROMPT):
        break
    assert not draft.open_sequences


def test_a_draft_model_that_fails_is_left_out():
    target, draft = FakeModel(), FakeModel()
    draft.fails_at = 7
    answer = engine_for(target, draft).generate(PROMPT, SAMPLED, Limits(max_tokens=30)).result()
    assert answer.tokens == plain_tokens(target.logits, PROMPT, SAMPLED, 30)
    assert "fell off the bus" in answer.stats.drafter_error
    assert not draft.open_sequences


# -- padded vocabularies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target_size", "draft_size"), [(70, 64), (64, 70), (64, 64)])
@pytest.mark.parametrize("verifier", ["matching", "rejection"])
@SETTINGS
def test_padding_rows_of_either_model_do_no_harm(target_size, draft_size, verifier, sampling):
    shared = hashed_logits(64)

    def padded(size):
        return FakeModel(lambda tokens: np.concatenate([shared(tokens), np.full(size - 64, -30, np.float32)]), size)

    target, draft = padded(target_size), padded(draft_size)
    engine = engine_for(target, draft, DraftModelOptions(n_parallel=2))
    answer = engine.generate(PROMPT, sampling, Limits(max_tokens=31), verifier=verifier).result()
    assert answer.stats.drafter_error is None
    assert answer.stats.num_accepted > 10
    if verifier == "matching":
        assert answer.tokens == plain_tokens(target.logits, PROMPT, sampling, 31)


def test_likely_padding_of_the_draft_is_never_proposed():
    draft = FakeModel(lambda tokens: np.arange(70, dtype=np.float32), 70)
    drafter = DraftModelDrafter(draft, vocabulary=SameVocabulary(64))
    assert proposal(drafter, 3, prompt=[1]).tokens == (63, 63, 63)


@pytest.mark.parametrize("at", [0, 2, 300])
@pytest.mark.parametrize("sampling", [Sampling(), PENALISED], ids=["greedy", "penalised"])
def test_an_id_that_the_draft_does_not_have_ends_drafting_not_the_drafter(at, sampling):
    """In the prompt, near its end or far back; the draft model cannot read it."""
    target, draft = FakeModel(vocab=70, context=600), FakeModel(hashed_logits(64), 64, context=600)
    prompt = [5] * 301
    prompt[300 - at] = 66
    answer = engine_for(target, draft).generate(prompt, sampling, Limits(max_tokens=12)).result()
    assert answer.tokens == plain_tokens(target.logits, prompt, sampling, 12)
    assert answer.stats.drafter_error is None


def test_an_id_that_the_draft_does_not_have_in_the_answer_ends_drafting_for_good():
    target = FakeModel(cycle_logits([*range(5), 66], 70), 70)
    draft = FakeModel(cycle_logits(range(10), 64), 64)
    engine = engine_for(target, draft)
    stats = engine.generate([0], limits=Limits(max_tokens=400)).result().stats
    assert stats.drafter_error is None
    assert stats.num_accepted == 4
