"""Early rounds: a device that runs ahead starts the next round before the host asks for it."""

from __future__ import annotations

from typing import NamedTuple

from slipstream.core.protocols import ScoreRequest
from slipstream.core.round_parts import StreamPart
from slipstream.core.stream import drafts_early
from slipstream.core.team import members_of


class EarlyRound(NamedTuple):
    """A round that the device has started, for these streams alone."""

    draft: int  # tokens drafted for each stream; 0: a plain round
    stream_ids: list[int]

    def draft_for(self, parts: list[StreamPart]) -> int | None:
        """`draft`, if these parts are the round that was started, else None."""
        return self.draft if self.stream_ids == [part.stream.id for part in parts] else None


def next_draft(part: StreamPart, planned: int | None, is_alone: bool) -> int | None:
    """Tokens that this stream drafts next, if the device may start that round now; None if only the host can tell.
    `planned`: for streams that have a drafter. `is_alone`: it is the only stream, so a round that is started although
    the answer ends in this one delays no other."""
    stream = part.stream
    draft = planned and stream.drafted_at_most(planned) if stream.drafter else 0
    if draft is None or part.is_prefill or stream.needs_logits or not stream.verifier.couples:
        return None
    if not stream.verifier.judges_unscored and (part.tree or draft):
        return None  # the device can't tell which tokens are accepted
    most_tokens = 1 if is_alone else len(part.tree) + 1  # that this round adds
    return draft if stream.max_answer_tokens - stream.num_answer_tokens > most_tokens else None


def started_early(parts: list[StreamPart], requests: list[ScoreRequest]) -> EarlyRound | None:
    """The round that a device that runs ahead starts after this one. None where only the host knows what follows."""
    draft, *others = {request.next_draft for request in requests}
    if others or draft is None:
        return None
    is_alike = all(map(_has_device_draft, parts)) if draft else not any(part.tree for part in parts)
    return EarlyRound(draft, [part.stream.id for part in parts]) if is_alike else None


def _has_device_draft(part: StreamPart) -> bool:
    """Whether its draft is one whose successor the device makes without the host."""
    own = {drafter.name for drafter in members_of(part.stream.drafter) if drafts_early(drafter)}
    return bool(part.tree) and any(offer.tree is part.tree and offer.drafter in own for offer in part.offers)
