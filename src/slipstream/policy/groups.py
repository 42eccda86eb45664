"""The streams of a round, grouped by the drafters that can draft for them, and the possible requests."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.core.policy import RoundView
from slipstream.core.stream import Drafter, Stream
from slipstream.core.team import members_of
from slipstream.policy.knowledge import Knowledge
from slipstream.policy.objective import RoundOption


@dataclass(frozen=True, slots=True)
class DrafterGroup:
    drafter: Drafter
    members: list[int]  # indices of the streams
    streams: list[Stream]
    longest: int  # the longest draft for which any of them has room
    num_unread: int  # tokens that the drafter has to read first

    @property
    def is_cut_later(self) -> bool:
        """Whether a draft costs nothing until it is scored, so that the choice can wait until it is proposed."""
        return self.drafter.is_free and all(s.verifier.judges_unscored for s in self.streams)


@dataclass(frozen=True, slots=True)
class DraftOption:
    """A draft to request. It is for the streams for which no other drafter offers more."""

    members: list[int]
    round: RoundOption  # its size is the depth of the draft


def group_by_drafter(view: RoundView, known: Knowledge) -> list[DrafterGroup]:
    members: dict[int, list[int]] = {}
    drafters: dict[int, Drafter] = {}
    for i, (stream, room) in enumerate(zip(view.streams, view.rooms, strict=True)):
        for drafter in members_of(stream.drafter) if min(room, known.max_draft) > 0 else ():
            drafters[id(drafter)] = drafter
            members.setdefault(id(drafter), []).append(i)
    groups = []
    for key, of_drafter in members.items():
        streams = [view.streams[i] for i in of_drafter]
        longest = min(known.max_draft, max(view.rooms[i] for i in of_drafter))
        drafter = drafters[key]
        num_unread = 0 if drafter.is_free else sum(known.num_unread(drafter.name, stream) for stream in streams)
        groups.append(DrafterGroup(drafter, of_drafter, streams, longest, num_unread))
    return groups
