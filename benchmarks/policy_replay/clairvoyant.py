"""The best possible choice per round of several streams, knowing how many leading tokens of each proposal are right.

Only right tokens are drafted, and as many as raise the tokens a second of the whole: a round is worth its tokens less
its seconds times the rate that is reached overall, which is found by repeating (Dinkelbach). It is an estimate, not a
bound: a choice is not weighed by where it leaves the next round.
"""

from __future__ import annotations

from dataclasses import dataclass

from policy_replay.machines import Machine
from policy_replay.replay import Case, Speeds
from policy_replay.stand_ins import PROMPT_TOKENS, draft_seconds

_REPEATS = 3
_DEEPEST = 16


@dataclass(slots=True)
class _Playing:
    number: int
    answer: int
    num_tokens: int
    known: int = 1
    began_s: float = 0.0
    read_to: int = PROMPT_TOKENS - 1  # tokens of its text that a draft model has read

    @property
    def unread(self) -> int:
        length = PROMPT_TOKENS + self.known
        return length - min(self.read_to, length - 1)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Drafted tokens of each stream, and the seconds of the round."""

    lengths: list[int]
    seconds: float


def clairvoyant(case: Case, plain: Speeds) -> Speeds:
    """The best of some repeats, and of plain decoding, which is a choice too."""
    best, rate = plain, plain.together
    for _ in range(_REPEATS):
        found = _Run(case, rate).play()
        rate = found.together
        best = max(best, found, key=lambda speeds: speeds.together)
    return best


class _Run:
    def __init__(self, case: Case, rate: float) -> None:
        self._case = case
        self._rate = rate
        self._next = 0
        self._now_s = 0.0
        self._was_plain = False  # the round before, so that a device that runs ahead is at this one already
        self._playing = [self._start() for _ in range(case.num_streams)]

    def play(self) -> Speeds:
        speeds, num_tokens = Speeds(), 0
        while len(speeds.by_answer) < self._case.num_counted:
            choice = self._choose([self._right(one) for one in self._playing])
            self._now_s += choice.seconds
            self._was_plain = not any(choice.lengths)
            for i, length in enumerate(choice.lengths):
                num_tokens += length + 1
                self._playing[i] = self._advance(self._playing[i], length, speeds)
        speeds.together = num_tokens / self._now_s
        return speeds

    def _start(self) -> _Playing:
        answer = self._next % len(self._case.answers)
        self._next += 1
        return _Playing(self._next - 1, answer, self._case.answers[answer].num_tokens, began_s=self._now_s)

    def _right(self, one: _Playing) -> int:
        right = max(drafts.num_right(one.answer, one.known) for drafts in self._case.drafts.values())
        return max(0, min(right, one.num_tokens - one.known - 1, _DEEPEST))

    def _advance(self, one: _Playing, length: int, speeds: Speeds) -> _Playing:
        if length:
            one.read_to = PROMPT_TOKENS + one.known + length - 1
        one.known += length + 1
        if one.known < one.num_tokens:
            return one
        if one.number < self._case.num_counted:
            speeds.by_answer[one.number] = (one.num_tokens - 1) / max(self._now_s - one.began_s, 1e-12)
        self._was_plain = False  # the next stream's prompt is read
        return self._start()

    def _choose(self, right: list[int]) -> _Choice:
        cost = self._case.machine.drafts.get(self._case.drafter)
        best = _Choice([0] * len(right), self._plain_s(len(right)))
        best_value = len(right) - self._rate * best.seconds
        for depth in range(1, max(right) + 1) if cost else ([max(right)] if any(right) else []):
            lengths = [min(n, depth) for n in right]
            drafting_s = self._case.machine.free_draft(len(right))
            if cost:
                drafting_s = draft_seconds(cost, [one.unread for one in self._playing], lengths)
            total, seconds, value = _rows(self._case.machine, lengths, drafting_s, self._rate)
            if value > best_value:
                best, best_value = _Choice(_cut(lengths, total), seconds), value
        return best

    def _plain_s(self, num_streams: int) -> float:
        machine = self._case.machine
        forward_s, host_s = machine.forward_s(num_streams), machine.host(num_streams)
        if machine.runs_ahead and self._was_plain:
            return max(forward_s - machine.launch_s, host_s)
        return forward_s + host_s


def _rows(machine: Machine, lengths: list[int], drafting_s: float, rate: float) -> tuple[int, float, float]:
    """The number of right tokens that is worth most, the seconds of that round, and its worth."""
    streams = len(lengths)
    other_s = machine.host(streams) + drafting_s
    choices = (
        (streams + count - rate * (other_s + machine.forward_s(streams + count)), count)
        for count in range(1, min(sum(lengths), 512 - streams) + 1)
    )
    value, count = max(choices)
    return count, other_s + machine.forward_s(streams + count), value


def _cut(lengths: list[int], total: int) -> list[int]:
    """Takes tokens from the longest drafts until there are `total`."""
    lengths = list(lengths)
    while sum(lengths) > total:
        lengths[lengths.index(max(lengths))] -= 1
    return lengths
