"""DrafterTeam: several drafters for a stream. Which of them is asked is the policy's choice (tests/unit/policy)."""

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
from slipstream.core.drafter_guard import DrafterGuard
from slipstream.core.engine import Engine
from slipstream.core.policy import Ask
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.core.team import DrafterTeam, members_of
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.errors import UsageError
from slipstream.policy import FixedPolicy

SURE, UNSURE = DraftTree.chain([1], [0.9]), DraftTree.chain([2], [0.1])


def says(tree: DraftTree, name: str = "fake") -> Scripted:
    return Scripted(script=lambda stream, budget: tree, name=name)


@pytest.mark.parametrize(
    ("drafts", "taken"),
    [
        ([SURE, UNSURE], SURE),
        ([UNSURE, SURE], UNSURE),
        ([EMPTY_TREE, SURE], SURE),
        ([SURE, EMPTY_TREE], SURE),
        ([EMPTY_TREE, EMPTY_TREE, UNSURE], UNSURE),
        ([EMPTY_TREE, EMPTY_TREE], EMPTY_TREE),
    ],
)
def test_asked_as_a_whole_it_gives_the_first_draft_that_there_is(drafts, taken):
    team = DrafterTeam([says(tree, str(i)) for i, tree in enumerate(drafts)])
    assert team.propose([make_stream([0])], [4]) == [taken]


def test_asked_as_a_whole_later_members_are_asked_only_for_what_is_still_open():
    first = Scripted(script=lambda stream, budget: SURE if stream.tokens == [0] else EMPTY_TREE)
    second = says(SURE, "second")
    streams = [make_stream([0]), make_stream([1]), make_stream([0])]
    DrafterTeam([first, second]).propose(streams, [4, 4, 4])
    assert (first.num_proposals, second.num_proposals) == (3, 1)


def test_members_are_those_of_a_team_or_the_drafter_itself():
    one, other = FakeDrafter("one"), FakeDrafter("other")
    assert list(members_of(DrafterTeam([one, other]))) == [one, other]
    assert list(members_of(one)) == [one]
    assert not members_of(None)


def test_everyone_is_told_about_every_stream():
    members = [FakeDrafter("one"), FakeDrafter("other")]
    drafter, stream = DrafterTeam(members), make_stream([0])
    drafter.begin(stream)
    drafter.observe(["observation"])
    drafter.end(stream)
    for member in members:
        assert (member.begun, member.observations, member.ended) == ([stream.id], ["observation"], [stream.id])


def test_one_that_fails_at_the_end_does_not_keep_the_others_from_tidying_up():
    tidy, stream = FakeDrafter("tidy"), make_stream([0])
    with pytest.raises(RuntimeError):
        DrafterTeam([Crashing(FakeDrafter(), "end"), tidy]).end(stream)
    assert tidy.ended == [stream.id]


class NeedsTheStream(FakeDrafter):
    """Has something for each stream, until the stream ends."""

    def propose(self, streams, budgets):
        assert all(stream.id in self.begun and stream.id not in self.ended for stream in streams)
        return super().propose(streams, budgets)


def test_a_member_is_not_asked_for_a_stream_that_another_has_just_failed_on():
    failing, other = Crashing(FakeDrafter("one"), "propose"), NeedsTheStream("other")
    team, guard = DrafterTeam([failing, other]), DrafterGuard(vocab_size=32)
    streams = [make_stream([i], drafter=team) for i in range(2)]
    for stream in streams:
        guard.begin(stream)
    asks = [Ask(streams[0], failing, 4), Ask(streams[0], other, 4), Ask(streams[1], other, 4)]
    trees, _ = guard.propose(asks)
    assert trees == [EMPTY_TREE] * 3
    assert [stream.drafter for stream in streams] == [None, team]
    assert other.num_proposals == 1


def test_it_is_free_only_if_all_are_and_names_them():
    assert DrafterTeam([says(SURE, "one"), says(SURE, "other")]).is_free
    mixed = DrafterTeam([FakeDrafter(name="suffix"), FakeDrafter(name="model", is_free=False)])
    assert not mixed.is_free
    assert mixed.name == "chained:suffix,model"


def test_at_least_one_drafter_is_needed():
    with pytest.raises(UsageError, match="at least one"):
        DrafterTeam([])


def test_members_are_told_apart_by_name():
    with pytest.raises(UsageError, match="chained:suffix,suffix: each drafter may be named only once"):
        DrafterTeam([FakeDrafter("suffix"), FakeDrafter("suffix")])


def test_in_an_engine_the_second_helps_where_the_first_has_no_idea():
    model = FakeModel()
    engine = Engine(model, letters(), DrafterTeam([FakeDrafter(), AlwaysRight("right", model=model)]), FixedPolicy(4))
    answer = engine.generate([3, 1, 4], limits=Limits(max_tokens=21)).result()
    assert answer.tokens == plain_tokens(model.logits, [3, 1, 4], Sampling(), 21)
    assert answer.stats.acceptance_rate == 1.0


def test_in_an_engine_a_first_that_is_sure_and_wrong_keeps_the_text():
    model = FakeModel()
    members = [AlwaysWrong("wrong", model=model), AlwaysRight("right", model=model)]
    engine = Engine(model, letters(), DrafterTeam(members), FixedPolicy(4))
    answer = engine.generate([3, 1, 4], limits=Limits(max_tokens=21)).result()
    assert answer.tokens == plain_tokens(model.logits, [3, 1, 4], Sampling(), 21)
    assert answer.stats.num_accepted == 0
