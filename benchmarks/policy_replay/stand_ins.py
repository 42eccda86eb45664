"""Stand-ins for a target, its drafters and its clock: they say what was recorded and charge what a machine would take.

Token ids are made up: every token of every answer is RIGHT, and what a drafter got wrong is WRONG, or for the second
of a team the id behind that. A prompt's first id says which answer follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import mul

import numpy as np
import numpy.typing as npt

from policy_replay.machines import MAX_ROWS, DraftCost, Machine
from policy_replay.recording import RecordedAnswer
from slipstream.core.protocols import ModelInfo, ScoreRequest
from slipstream.core.stream import Observation, Stream
from slipstream.core.tree import DraftTree
from slipstream.measurement.replay import KnownPlace

RIGHT, WRONG = 0, 1
_FIRST_ID = 9  # of the first answer's prompt, behind what the members of a team get wrong
_VOCABULARY = 100_000
_CATCH_UP = 8  # unread tokens that ride along with a draft model's first step (drafters/draft_cache.py)
PROMPT_TOKENS = 4


@dataclass(slots=True)
class ChargedClock:
    """Seconds that were charged. Those for prompts are counted apart as well: they are no decoding."""

    now_s: float = 0.0
    prefill_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def charge(self, seconds: float) -> None:
        self.now_s += seconds

    def charge_prefill(self, seconds: float) -> None:
        self.now_s += seconds
        self.prefill_s += seconds

    @property
    def decoding_s(self) -> float:
        return self.now_s - self.prefill_s


class AllRight:
    """Scores of a target whose tokens are all RIGHT."""

    def argmax(self, node: int) -> int:
        return RIGHT

    def chosen(self, node: int) -> int | None:
        return RIGHT

    def row(self, node: int) -> npt.NDArray[np.float32]:
        row = np.zeros(_VOCABULARY, np.float32)
        row[RIGHT] = 1e6
        return row


_ALL_RIGHT = AllRight()


class Target:
    """Charges each forward, and the host's time of its round. Where the device runs ahead, a round that the one before
    announced has been under way since that one ended."""

    def __init__(self, machine: Machine, clock: ChargedClock, repeats: bool = False) -> None:
        """`repeats`: rounds with drafts too."""
        self._repeats = repeats
        self.info = ModelInfo(
            name=machine.name, backend="replay", device="replay", dtype="none", vocab_size=_VOCABULARY,
            context_length=1_000_000, weight_bytes=1, batch_invariant=True, max_rows=MAX_ROWS,
            runs_ahead=machine.runs_ahead, decoding_rows=machine.decoding_rows,
        )  # fmt: skip
        self._machine = machine
        self._clock = clock
        self._under_way: list[int] = []  # places whose next row the device is at
        self._started_s = 0.0  # when it started on them
        self._repeated: list[tuple[int, int]] = []  # places, and how long their next drafts are, that it is at
        self._drafting_s = 0.0  # of these drafts

    def open(self, tokens: Sequence[int] = (), reserve: int = 0) -> KnownPlace:
        return KnownPlace()

    def can_open(self, reserve: int) -> bool:
        return True

    def forget_prompts(self) -> None:
        pass

    def diagnose(self) -> str:
        return "these are recorded answers"

    def score(self, requests: Sequence[ScoreRequest]) -> list[AllRight]:
        rows = prefill_rows = num_decoding = 0
        for request in requests:
            request.sequence.num_pending = len(request.pending)  # type: ignore[attr-defined]
            rows += len(request.pending) + len(request.tree)
            if len(request.pending) > 1:
                prefill_rows += len(request.pending)
            else:
                num_decoding += 1
        self._charge(requests, rows - prefill_rows, prefill_rows, num_decoding)
        return [_ALL_RIGHT] * len(requests)

    def _charge(self, requests: Sequence[ScoreRequest], rows: int, prefill_rows: int, num_decoding: int) -> None:
        clock, machine = self._clock, self._machine
        places = [id(request.sequence) for request in requests]
        is_plain = not prefill_rows and rows == len(requests)
        host_s = machine.host(num_decoding) if num_decoding else 0.0
        forward_s = machine.forward_s(rows)
        drafts = [(id(request.sequence), len(request.tree)) for request in requests]
        late_s = 0.0  # of the host, while the device is at the next round
        if (is_plain and self._under_way == places) or (rows > len(requests) and self._repeated == drafts):
            ends_s = self._started_s + self._drafting_s + forward_s - machine.launch_s
            late_s = 0.0 if is_plain else host_s
            clock.now_s = max(clock.now_s + host_s - late_s, ends_s)
        else:
            clock.charge(host_s + forward_s)
            clock.charge_prefill(machine.forward_s(rows + prefill_rows) - forward_s)
        self._started_s = clock.now_s
        clock.charge(late_s)
        following = {request.next_draft for request in requests} if machine.runs_ahead and not prefill_rows else {None}
        self._under_way = places if is_plain and following == {0} else []
        self._repeated = []
        if self._repeats and not is_plain and following.isdisjoint({0, None}):
            self._repeated = [(id(request.sequence), request.next_draft or 0) for request in requests]
        self._drafting_s = 0.0

    def drafting(self, streams: Sequence[Stream], lengths: Sequence[int], seconds: float) -> float:
        """When a draft that takes so many seconds is there, if the device drafts by itself."""
        if self._repeated != [(id(s.sequence), length) for s, length in zip(streams, lengths, strict=True)]:
            begins_s = self._clock.now_s
            if self._repeated:  # it first ends what it is at, with about as long a draft
                rows = sum(length + 1 for _, length in self._repeated)
                begins_s = max(begins_s, self._started_s + seconds + self._machine.forward_s(rows))
            self._repeated = []
            return begins_s + seconds
        self._drafting_s = seconds
        return self._started_s + seconds


class RecordedDrafts:
    """Trees of recorded proposals, cut to a length; made once."""

    def __init__(self, answers: Sequence[RecordedAnswer], drafter: str, wrong: int = WRONG) -> None:
        self._answers = answers
        self._drafter = drafter
        self._wrong = wrong
        self._trees: dict[tuple[int, int, int], DraftTree] = {}

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest proposal that was recorded."""
        return max(len(proposal.confidence) for one in self._answers for proposal in one.proposals[self._drafter])

    def num_right(self, answer: int, known: int) -> int:
        return self._answers[answer].proposal(self._drafter, known).num_right

    def tree(self, answer: int, known: int, budget: int, least_chance: float = 0.0) -> DraftTree:
        """With `least_chance` it goes on while its tokens together are as likely as this."""
        proposal = self._answers[answer].proposal(self._drafter, known)
        length = min(budget, len(proposal.confidence))
        together = accumulate(proposal.confidence[:length], mul)
        length = next((count for count, p in enumerate(together, start=1) if p < least_chance), length)
        key = (answer, known, length)
        tree = self._trees.get(key)
        if tree is None:
            right = min(proposal.num_right, length)
            tokens = [RIGHT] * right + [self._wrong] * (length - right)
            tree = self._trees[key] = DraftTree.chain(tokens, proposal.confidence[:length])
        return tree


def prompt_of(answer: int) -> list[int]:
    return [answer + _FIRST_ID, *[WRONG] * (PROMPT_TOKENS - 1)]


def answer_of(stream: Stream) -> int:
    return stream.tokens[0] - _FIRST_ID


class FreeStandIn:
    """A drafter whose proposals take next to nothing."""

    is_free = True

    def __init__(self, name: str, drafts: RecordedDrafts, machine: Machine, clock: ChargedClock) -> None:
        self.name = name
        self._drafts = drafts
        self._machine = machine
        self._clock = clock

    def begin(self, stream: Stream) -> None:
        pass

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        self._clock.charge(self._machine.free_draft(len(streams)))
        tree = self._drafts.tree
        return [tree(answer_of(s), s.num_answer_tokens, n) for s, n in zip(streams, budgets, strict=True)]

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def end(self, stream: Stream) -> None:
        pass


@dataclass(slots=True)
class ModelStandIn:
    """A drafter that runs a model: a forward a depth, the first of which reads what it has not read yet."""

    name: str
    drafts: RecordedDrafts
    cost: DraftCost
    clock: ChargedClock
    target: Target | None = None  # if it drafts on by itself
    is_free: bool = False
    _read_to: dict[int, int] = field(default_factory=dict)  # by stream: tokens of its text that the model has read

    @property
    def drafts_early(self) -> bool:
        return self.target is not None

    @property
    def stops_early(self) -> bool:
        return self.cost.stops_early

    def begin(self, stream: Stream) -> None:
        self.clock.charge_prefill(self.cost.forward_s(PROMPT_TOKENS - 1))
        self._read_to[stream.id] = PROMPT_TOKENS - 1

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        trees = [
            self.drafts.tree(answer_of(s), s.num_answer_tokens, n, s.least_chance if self.stops_early else 0.0)
            for s, n in zip(streams, budgets, strict=True)
        ]
        unread = [len(s.tokens) - min(self._read_to[s.id], len(s.tokens) - 1) for s in streams]
        lengths = [len(tree) for tree in trees]
        seconds = draft_seconds(self.cost, unread, lengths)
        if self.target:
            self.clock.now_s = max(self.clock.now_s, self.target.drafting(streams, lengths, seconds))
        else:
            self.clock.charge(seconds)
        for stream, tree in zip(streams, trees, strict=True):
            if tree:
                right = self.drafts.num_right(answer_of(stream), stream.num_answer_tokens)
                self._read_to[stream.id] = len(stream.tokens) + min(right, len(tree) - 1)
        return trees

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def end(self, stream: Stream) -> None:
        self._read_to.pop(stream.id, None)


def draft_seconds(cost: DraftCost, unread: Sequence[int], lengths: Sequence[int]) -> float:
    """Of drafts of these lengths for streams of which the model has not read so many tokens (1 at least)."""
    seconds, first_rows, late_rows = cost.call_s, 0, 0
    for rows, length in zip(unread, lengths, strict=True):
        if length and rows > _CATCH_UP:
            late_rows += rows - 1
            rows = 1
        first_rows += rows if length else 0
    while late_rows > 0:  # read before the first step, as many in one forward as the model takes
        seconds += cost.forward_s(min(late_rows, MAX_ROWS))
        late_rows -= MAX_ROWS
    if not first_rows:
        return 0.0
    seconds += cost.forward_s(first_rows)
    for depth in range(2, max(lengths) + 1):
        seconds += cost.forward_s(sum(length >= depth for length in lengths))
    return seconds


class NoText:
    """A tokenizer that the engine can live with: ids have no text."""

    eos_ids: frozenset[int] = frozenset()

    def prompt_ids(self, text: str) -> list[int]:
        return [WRONG]

    def chat_ids(self, messages: object) -> list[int]:
        return [WRONG]

    def stream_decoder(self) -> NoText:
        return self

    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""
