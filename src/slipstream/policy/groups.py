"""The streams of a round, grouped by the drafters that can draft for them, and the possible requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.core.policy import RoundView
from slipstream.core.stream import Drafter, Stream
from slipstream.core.team import members_of
from slipstream.policy.knowledge import Knowledge
from slipstream.policy.objective import RoundOption
from slipstream.policy.offers import StreamGain


@dataclass(frozen=True, slots=True)
class DrafterGroup:
    drafter: Drafter
    members: list[int]  # indices of the streams
    streams: list[Stream]
    longest: int  # the longest draft for which any of them has room
    num_unread: int  # tokens that the drafter has to read first
    is_cut_later: bool  # a draft costs nothing until it is scored, so the choice can wait until it is proposed


@dataclass(frozen=True, slots=True)
class DraftOption:
    """A draft to request. It is for the streams for which no other drafter offers more."""

    members: list[int]
    round: RoundOption  # its size is the depth of the draft
    pays: bool = False  # expected to pay off; else a trial, or one that shows how long it takes


class Rivals:
    """The streams that a new draft is for: those of its group whose best offer so far has fewer expected tokens."""

    def __init__(self, group: DrafterGroup, gains: Mapping[int, StreamGain]) -> None:
        """`gains`: what is offered already, by stream."""
        self.members = group.members
        self.kept_nodes, self.kept_tokens = 0, 0.0  # of the offers that stay
        self._group = group
        self._gains = gains
        self._offered = sorted([gain.tokens for gain in gains.values()])
        self._num_exceeded = -1

    def compare(self, tokens: float) -> None:
        """The draft would give each stream this many tokens. `members` change only where that passes another offer."""
        num_exceeded = bisect_left(self._offered, tokens)
        if not self._gains or num_exceeded == self._num_exceeded:
            return
        self._num_exceeded, gains, everyone = num_exceeded, self._gains, set(self._group.members)
        self.members = [i for i in self._group.members if i not in gains or gains[i].tokens < tokens]
        kept = [gain for i, gain in gains.items() if gain.tokens >= tokens or i not in everyone]
        self.kept_nodes, self.kept_tokens = sum([gain.nodes for gain in kept]), sum([gain.tokens for gain in kept])


def group_by_drafter(view: RoundView, known: Knowledge) -> list[DrafterGroup]:
    members: dict[int, list[int]] = {}
    drafters: dict[int, Drafter] = {}
    for i, (stream, room) in enumerate(zip(view.streams, view.rooms, strict=True)):
        for drafter in members_of(stream.drafter) if room > 0 and known.max_draft > 0 else ():
            if id(drafter) not in drafters:
                drafters[id(drafter)], members[id(drafter)] = drafter, []
            members[id(drafter)].append(i)
    return [_group(drafters[key], of_drafter, view, known) for key, of_drafter in members.items()]


def _group(drafter: Drafter, members: list[int], view: RoundView, known: Knowledge) -> DrafterGroup:
    streams, is_free = [view.streams[i] for i in members], drafter.is_free
    return DrafterGroup(
        drafter,
        members,
        streams,
        longest=min(known.max_draft, max([view.rooms[i] for i in members])),
        num_unread=0 if is_free else known.num_unread(drafter.name, streams),
        is_cut_later=is_free and all(s.verifier.judges_unscored for s in streams),
    )
