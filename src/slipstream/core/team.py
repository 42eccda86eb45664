"""DrafterTeam: several drafters for one stream. The policy chooses which to ask, and for how many tokens."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.stream import Drafter, Observation, Stream
from slipstream.core.tree import DraftTree
from slipstream.errors import UsageError


class DrafterTeam:
    def __init__(self, members: Sequence[Drafter]) -> None:
        if not members:
            raise UsageError("chained needs at least one drafter, for example chained:suffix+model")
        names = [drafter.name for drafter in members]
        if len(set(names)) < len(names):
            raise UsageError(f"chained:{','.join(names)}: each drafter may be named only once")
        self.members = list(members)

    @property
    def name(self) -> str:
        return "chained:" + ",".join(d.name for d in self.members)

    @property
    def is_free(self) -> bool:
        return all(d.is_free for d in self.members)

    def begin(self, stream: Stream) -> None:
        for drafter in self.members:
            drafter.begin(stream)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        """Asked as a whole, the team returns the first non-empty draft."""
        trees = self.members[0].propose(streams, budgets)
        for drafter in self.members[1:]:
            left = [i for i, tree in enumerate(trees) if not tree]
            more = drafter.propose([streams[i] for i in left], [budgets[i] for i in left]) if left else []
            for i, tree in zip(left, more, strict=True):
                trees[i] = tree
        return trees

    def observe(self, observations: Sequence[Observation]) -> None:
        for drafter in self.members:
            drafter.observe(observations)

    def end(self, stream: Stream) -> None:
        """Ends the stream for all members, then raises the first error."""
        errors: list[Exception] = []
        for drafter in self.members:
            try:
                drafter.end(stream)
            except Exception as error:  # raised below: the others have to release the stream first
                errors.append(error)
        if errors:
            raise errors[0]


def members_of(drafter: Drafter | None) -> Sequence[Drafter]:
    """The drafters that can be asked one by one."""
    if drafter is None:
        return ()
    return drafter.members if isinstance(drafter, DrafterTeam) else (drafter,)
