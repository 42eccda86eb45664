"""The parts that streams have in a round: who decodes, who reads how much of a prompt, and what the target is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slipstream.core.prompt_pace import PromptPace
from slipstream.core.protocols import KVSequence, ScoreRequest
from slipstream.core.stream import Offer, Stream, drafts_early
from slipstream.core.team import members_of
from slipstream.core.tree import EMPTY_TREE, DraftTree


@dataclass(slots=True)
class StreamPart:
    """One stream's part in a round."""

    stream: Stream
    sequence: KVSequence
    pending: list[int]
    is_prefill: bool
    chooses: bool = True  # the pending tokens reach the end of the stream, so the target chooses the next one
    tree: DraftTree = EMPTY_TREE  # the draft that is scored
    offers: Sequence[Offer] = ()  # of which it was made

    @property
    def num_rows(self) -> int:
        return len(self.pending) + len(self.tree)

    @property
    def drafts_early(self) -> bool:
        """Whether its draft is one whose successor the device makes without the host."""
        own = {drafter.name for drafter in members_of(self.stream.drafter) if drafts_early(drafter)}
        return bool(self.tree) and any(offer.tree is self.tree and offer.drafter in own for offer in self.offers)

    def request(self, planned: int | None, is_alone: bool) -> ScoreRequest:
        """Without `sampling` the device chooses nothing: more of the prompt follows, or the host needs the logits."""
        stream = self.stream
        sampling = stream.sampling if self.chooses and not stream.needs_logits else None
        next_draft = self._next_draft(planned, is_alone)
        return ScoreRequest(self.sequence, self.pending, self.tree, sampling, stream.num_answer_tokens, next_draft)

    def _next_draft(self, planned: int | None, is_alone: bool) -> int | None:
        """Tokens that this stream drafts next, if the device may start that round now. None if only the host can tell.

        `planned`: for streams that have a drafter. `is_alone`: it is the only stream, so a round started for nothing,
        because the answer ended in this one, delays no other.
        """
        stream = self.stream
        draft = planned and stream.drafted_at_most(planned) if stream.drafter else 0
        if draft is None or self.is_prefill:
            return None
        if not stream.verifier.judges_unscored and (self.tree or draft):
            return None  # the device can't tell which tokens are accepted
        return draft if stream.continues_after(1 if is_alone else len(self.tree) + 1) else None

    def prepare_constraint(self) -> None:
        """If it fails, the stream ends; its rows are still in this forward pass, and are ignored."""
        constraint = self.stream.options.constraint if self.chooses else None
        try:
            if constraint:
                constraint.prepare(self.stream.answer, self.tree)
        except Exception as error:
            self.stream.finish("error", error)


def schedule(streams: Iterable[Stream], max_rows: int, chunk: int, pace: PromptPace) -> list[StreamPart]:
    """Decoding streams first, then prompts for as many rows as are left, and as don't hold up the others; at most
    `chunk` of each."""
    parts: list[StreamPart] = []
    prompts: list[Stream] = []
    for stream in streams:
        assert stream.sequence is not None
        if stream.num_unread > 1:
            prompts.append(stream)
        elif len(parts) < max_rows:
            parts.append(StreamPart(stream, stream.sequence, stream.tokens[-1:], is_prefill=False))
    rows_left = max_rows - len(parts)
    if parts and prompts:
        rows_left = min(rows_left, pace.rows(rows_left))
    for stream in prompts:
        assert stream.sequence is not None
        if not rows_left:
            break
        start, count = stream.sequence.length, min(chunk, rows_left, stream.num_unread)
        pending, is_last = stream.tokens[start : start + count], count == stream.num_unread
        parts.append(StreamPart(stream, stream.sequence, pending, is_prefill=True, chooses=is_last))
        rows_left -= count
    return parts
