"""The parts that streams have in a round: who decodes, who reads how much of a prompt, and what the target is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slipstream.core.prompt_pace import PromptPace
from slipstream.core.protocols import KVSequence, ScoreRequest
from slipstream.core.stream import Offer, Stream
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
    offers: Sequence[Offer] = ()  # from which it was made

    @property
    def num_rows(self) -> int:
        return len(self.pending) + len(self.tree)

    def request(self, next_draft: int | None) -> ScoreRequest:
        """Without `sampling` the device chooses nothing: more of the prompt follows, or the host needs the logits."""
        stream = self.stream
        sampling = stream.sampling if self.chooses and not stream.needs_logits else None
        return ScoreRequest(self.sequence, self.pending, self.tree, sampling, stream.num_answer_tokens, next_draft)

    def prepare_constraint(self) -> None:
        """If it fails, the stream ends; its rows are still in this forward pass, and are ignored."""
        constraint = self.stream.options.constraint if self.chooses else None
        try:
            if constraint:
                constraint.prepare(self.stream.answer, self.tree)
        except Exception as error:
            self.stream.finish("error", error)


def schedule(streams: Iterable[Stream], max_rows: int, chunk: int, pace: PromptPace) -> list[StreamPart]:
    """Decoding streams first, then prompts, in the rows that are left and as far as the others are not delayed too
    long; at most `chunk` tokens of each prompt."""
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
