"""chained: the first draft that is confident, an unsure one where there is no better."""

from __future__ import annotations

import pytest

from fakes import (
    AlwaysRight,
    AlwaysWrong,
    Crashing,
    FakeDrafter,
    FakeModel,
    Scripted,
    letters,
    make_stream,
    plain_tokens,
)
from slipstream.core.engine import Engine
from slipstream.core.policy import FixedPolicy
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.drafters.chained import ChainedDrafter
from slipstream.errors import UsageError

SURE, UNSURE, NO_OPINION = DraftTree.chain([1], [0.9]), DraftTree.chain([2], [0.1]), DraftTree.chain([3])


def says(tree: DraftTree, is_free: bool = True) -> Scripted:
    return Scripted(script=lambda stream, budget: tree, is_free=is_free)


@pytest.mark.parametrize(
    ("drafts", "taken"),
    [
        ([SURE, UNSURE], SURE),
        ([UNSURE, SURE], SURE),
        ([EMPTY_TREE, SURE], SURE),
        ([NO_OPINION, SURE], NO_OPINION),
        ([SURE, EMPTY_TREE], SURE),
        ([UNSURE, EMPTY_TREE], UNSURE),
        ([UNSURE, EMPTY_TREE, EMPTY_TREE], UNSURE),
        ([UNSURE, EMPTY_TREE, SURE], SURE),
        ([SURE, UNSURE, UNSURE], SURE),
        ([EMPTY_TREE, EMPTY_TREE], EMPTY_TREE),
        ([UNSURE], UNSURE),
    ],
)
def test_the_first_confident_draft_is_taken(drafts, taken):
    drafter = ChainedDrafter([says(tree) for tree in drafts])
    assert drafter.propose([make_stream([0])], [4]) == [taken]


def test_later_drafters_are_asked_only_for_what_is_still_open():
    first = Scripted(script=lambda stream, budget: SURE if stream.tokens == [0] else EMPTY_TREE)
    second = says(SURE)
    streams = [make_stream([0]), make_stream([1]), make_stream([0])]
    ChainedDrafter([first, second]).propose(streams, [4, 4, 4])
    assert (first.num_proposals, second.num_proposals) == (3, 1)


def test_the_confidence_that_counts_can_be_set():
    drafter = ChainedDrafter([says(UNSURE), says(SURE)], confidence=0.05)
    assert drafter.propose([make_stream([0])], [4]) == [UNSURE]


def test_everyone_is_told_about_every_stream():
    members = [FakeDrafter(), FakeDrafter()]
    drafter, stream = ChainedDrafter(members), make_stream([0])
    drafter.begin(stream)
    drafter.observe(["observation"])
    drafter.end(stream)
    for member in members:
        assert (member.begun, member.observations, member.ended) == ([stream.id], ["observation"], [stream.id])


def test_one_that_fails_at_the_end_does_not_keep_the_others_from_tidying_up():
    tidy, stream = FakeDrafter(), make_stream([0])
    ChainedDrafter([Crashing(FakeDrafter(), "end"), tidy]).end(stream)
    assert tidy.ended == [stream.id]


def test_it_is_free_only_if_all_are_and_names_them():
    assert ChainedDrafter([says(SURE), says(SURE)]).is_free
    mixed = ChainedDrafter([FakeDrafter(name="suffix"), FakeDrafter(name="model", is_free=False)])
    assert not mixed.is_free
    assert mixed.name == "chained:suffix,model"


def test_at_least_one_drafter_is_needed():
    with pytest.raises(UsageError, match="at least one"):
        ChainedDrafter([])


def test_in_an_engine_the_second_helps_where_the_first_has_no_idea():
    model = FakeModel()
    engine = Engine(model, letters(), ChainedDrafter([FakeDrafter(), AlwaysRight(model=model)]), FixedPolicy(4))
    answer = engine.generate([3, 1, 4], limits=Limits(max_tokens=21)).result()
    assert answer.tokens == plain_tokens(model.logits, [3, 1, 4], Sampling(), 21)
    assert answer.stats.acceptance_rate == 1.0


def test_in_an_engine_a_first_that_is_sure_and_wrong_keeps_the_text():
    model = FakeModel()
    members = [AlwaysWrong(model=model), AlwaysRight(model=model)]
    engine = Engine(model, letters(), ChainedDrafter(members), FixedPolicy(4))
    answer = engine.generate([3, 1, 4], limits=Limits(max_tokens=21)).result()
    assert answer.tokens == plain_tokens(model.logits, [3, 1, 4], Sampling(), 21)
    assert answer.stats.num_accepted == 0
