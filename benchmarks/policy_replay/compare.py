"""What is compared: plain decoding, the policy, fixed lengths and the best possible choice, in many settings."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial

from policy_replay.best_path import best_path
from policy_replay.clairvoyant import clairvoyant
from policy_replay.machines import machines
from policy_replay.recording import RecordedAnswer, Recording, read_recording
from policy_replay.replay import Case, Speeds, replay
from slipstream.loading import make_policy  # type: ignore[attr-defined]  # wherever it is defined

STREAMS = (1, 4, 16, 64)
FIXED = tuple(range(1, 9))
_FIXED_FOR_MANY = frozenset({1, 2, 4, 8})  # lengths that are tried with several streams
_FREE = ("suffix", "ngram")


@dataclass(frozen=True, slots=True)
class Setting:
    """One replay: a machine by name, a drafter, a number of streams, and the answers of each kind that are used."""

    machine: str
    drafter: str
    streams: int
    of_each_kind: int
    fixed: tuple[int, ...] = FIXED  # lengths to compare with; without any the best choices are left out too


@dataclass(frozen=True, slots=True)
class Cell:
    """Speeds over plain decoding: medians over the answers of one kind, or all streams of a load together."""

    machine: str
    drafter: str
    streams: int
    kind: str  # of prompt; with several streams the load: "mixed", or the easy or hard half of the answers
    plain_tokens_per_s: float
    auto: float
    best_fixed: float  # the best length for each answer, 0 included
    possible: float  # by the best choice per round

    @property
    def key(self) -> str:
        return f"{self.machine}/{self.drafter}/{self.streams}/{self.kind}"

    def to_dict(self) -> dict[str, object]:
        return {name: round(v, 4) if isinstance(v, float) else v for name, v in asdict(self).items()}


@cache
def _recording(name: str) -> Recording:
    return read_recording(name)


def settings(
    names: Iterable[str], streams: Sequence[int], of_each_kind: int, fixed: Sequence[int] = FIXED
) -> list[Setting]:
    """All replays on these machines, the long ones first."""
    found = []
    for name in names:
        machine = machines()[name]
        recorded = _recording(machine.recording).answers[0].proposals
        drafters = [*(free for free in _FREE if free in recorded), *machine.drafts, *machine.teams]
        found += [Setting(name, d, s, of_each_kind, tuple(fixed)) for d in drafters for s in streams]
    return sorted(found, key=lambda setting: -setting.streams)


def answers_of(recording: Recording, of_each_kind: int) -> list[RecordedAnswer]:
    """The first answers of each kind, in the order in which they were recorded."""
    seen: dict[str, int] = defaultdict(int)
    taken = []
    for answer in recording.answers:
        seen[answer.kind] += 1
        if seen[answer.kind] <= of_each_kind:
            taken.append(answer)
    return taken


def run(setting: Setting) -> list[Cell]:
    """With one stream a cell for each kind of prompt, and one for each load with several."""
    machine = machines()[setting.machine]
    answers = answers_of(_recording(machine.recording), setting.of_each_kind)
    if setting.streams == 1:
        return _by_kind(Case(machine, setting.drafter, 1, answers, len(answers)), setting.fixed)
    counted = max(len(answers), setting.streams * 3 // 2)
    fixed = [length for length in setting.fixed if length in _FIXED_FOR_MANY]
    loads = {"mixed": answers, **_halves(answers, setting.drafter.rpartition(",")[2])}
    return [
        _together(Case(machine, setting.drafter, setting.streams, load, counted), fixed, name)
        for name, load in loads.items()
    ]


def _halves(answers: Sequence[RecordedAnswer], drafter: str) -> dict[str, list[RecordedAnswer]]:
    """Of the answers, by how often this drafter's first token is right in them."""

    def share_right(answer: RecordedAnswer) -> float:
        proposals = answer.proposals[drafter]
        return sum(p.num_right > 0 for p in proposals) / max(len(proposals), 1)

    order = sorted(range(len(answers)), key=lambda i: share_right(answers[i]))
    hard = set(order[: len(order) // 2])
    return {
        "easy half": [answer for i, answer in enumerate(answers) if i not in hard],
        "hard half": [answer for i, answer in enumerate(answers) if i in hard],
    }


def _replays(case: Case, fixed: Sequence[int]) -> tuple[Speeds, Speeds, list[Speeds]]:
    """Plain decoding, the policy, and the fixed lengths with 0 among them."""
    plain, auto = replay(case, None), replay(case, partial(make_policy, "auto"))
    return plain, auto, [plain, *(replay(case, partial(make_policy, f"fixed({length})")) for length in fixed)]


def _together(case: Case, fixed: Sequence[int], load: str) -> Cell:
    plain, auto, lengths = _replays(case, fixed)
    return Cell(
        machine=case.machine.name,
        drafter=case.drafter,
        streams=case.num_streams,
        kind=load,
        plain_tokens_per_s=plain.together,
        auto=auto.together / plain.together,
        best_fixed=max(speeds.together for speeds in lengths) / plain.together,
        possible=(clairvoyant(case, plain) if fixed else plain).together / plain.together,
    )


def _by_kind(case: Case, fixed: Sequence[int]) -> list[Cell]:
    plain, auto, lengths = _replays(case, fixed)
    possible = best_path(case) if fixed else plain
    kinds: dict[str, list[int]] = defaultdict(list)
    for number in range(case.num_counted):
        kinds[case.kind(number)].append(number)

    def over_plain(runs: Sequence[Speeds], numbers: list[int]) -> float:
        """The best of the runs for each answer."""
        return statistics.median(max(run.by_answer[n] for run in runs) / plain.by_answer[n] for n in numbers)

    return [
        Cell(
            machine=case.machine.name,
            drafter=case.drafter,
            streams=1,
            kind=kind,
            plain_tokens_per_s=statistics.median(plain.by_answer[n] for n in numbers),
            auto=over_plain([auto], numbers),
            best_fixed=over_plain(lengths, numbers),
            possible=over_plain([possible], numbers),
        )
        for kind, numbers in sorted(kinds.items())
    ]
