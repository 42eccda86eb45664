"""The replay: the real engine with a policy, a recording and a machine; gives the decoding speed of each answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from policy_replay.machines import DraftCost, Machine
from policy_replay.recording import RecordedAnswer
from policy_replay.stand_ins import (
    WRONG,
    ChargedClock,
    FreeStandIn,
    ModelStandIn,
    NoText,
    RecordedDrafts,
    Target,
    draft_seconds,
    prompt_of,
)
from slipstream.core.engine import Engine
from slipstream.core.generation import Generation
from slipstream.core.policy import Policy, RoundOutcome
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Drafter, Limits, RequestOptions
from slipstream.core.team import DrafterTeam
from slipstream.policy import AutoPolicy
from slipstream.policy.rehearsal import RehearsedRound

MakePolicy = Callable[[], Policy]
_GREEDY = Sampling()
_HEAD = "head"
DRAFTED = (1, 4) * 5  # steps of the drafts that `slipstream.load` measures on a CPU
REHEARSED = (0, None, 1, 4, 8)  # depths of the drafts of `slipstream.policy.rehearsal`; None: started by the device


@dataclass(frozen=True)
class Case:
    """A machine, a drafter and a number of streams; `queue` are the answers whose speed counts, in order.

    Streams go on with `answers`, from the first, until those of the queue are done: there are always as many.
    """

    machine: Machine
    drafter: str
    num_streams: int
    answers: Sequence[RecordedAnswer]
    num_counted: int

    @property
    def queue(self) -> list[int]:
        return [i % len(self.answers) for i in range(self.num_counted)]

    @property
    def members(self) -> list[str]:
        """The drafters, which are several in a team."""
        return self.drafter.removeprefix("chained:").split(",")

    @cached_property
    def drafts(self) -> dict[str, RecordedDrafts]:
        return {name: RecordedDrafts(self.answers, name, WRONG + i) for i, name in enumerate(self.members)}

    @property
    def goes_on_alone(self) -> bool:
        """Whether the device goes on with rounds of this drafter by itself."""
        return self.machine.runs_ahead and self.drafter == _HEAD

    @property
    def longest(self) -> int:
        """Tokens of the longest proposal that was recorded."""
        return max(drafts.longest for drafts in self.drafts.values())

    def kind(self, number: int) -> str:
        """Of the n-th answer that counts."""
        return self.answers[number % len(self.answers)].kind


@dataclass(slots=True)
class _Playing:
    number: int  # in the queue
    generation: Generation  # whoever drops it cancels the stream
    began_s: float = -1.0  # decoding time when its first token was there


@dataclass(slots=True)
class Speeds:
    """Tokens a second, without the time in which prompts were read: of each answer after its first token, and of all
    streams together."""

    by_answer: dict[int, float] = field(default_factory=dict)
    together: float = 0.0


def replay(case: Case, make_policy: MakePolicy | None) -> Speeds:
    """Decodes the queue. Without a policy there is no drafter: plain decoding."""
    clock = ChargedClock()
    engine = _engine(case, make_policy, clock)
    playing: list[_Playing] = []
    speeds, next_number = Speeds(), 0
    while len(speeds.by_answer) < case.num_counted:
        while len(playing) < case.num_streams:
            playing.append(_start(engine, case, next_number))
            next_number += 1
        engine.step()
        playing = _look(playing, case, clock.decoding_s, speeds)
    speeds.together = (engine.stats.num_tokens - next_number) / clock.decoding_s  # the first tokens are the prompts'
    return speeds


def _engine(case: Case, make_policy: MakePolicy | None, clock: ChargedClock) -> Engine:
    target, policy, drafter = Target(case.machine, clock, case.goes_on_alone), None, None
    if make_policy is not None:
        members = [_drafter(case, name, clock, target) for name in case.members]
        policy, drafter = make_policy(), members[0] if len(members) == 1 else DrafterTeam(members)
        expect(policy, case)
    return Engine(target, NoText(), drafter, policy, max_streams=case.num_streams, clock=clock)  # type: ignore[arg-type]


def _drafter(case: Case, name: str, clock: ChargedClock, target: Target) -> Drafter:
    cost, drafts = case.machine.drafts.get(name), case.drafts[name]
    if cost is None:
        return FreeStandIn(name, drafts, case.machine, clock)
    return ModelStandIn(name, drafts, cost, clock, target if case.goes_on_alone else None)


def expect(policy: Policy, case: Case) -> None:
    """Tells the policy what `slipstream.load` would have measured."""
    if not isinstance(policy, AutoPolicy):
        return
    machine = case.machine
    costs = {name: machine.drafts[name] for name in case.members if name in machine.drafts}
    drafts: dict[str, dict[int, float]] = {}
    head = costs.pop(_HEAD, None)
    for name, cost in costs.items():
        least = 2 if machine.runs_ahead else 1  # there the steps are not waited for one by one
        measured = machine.measured_at_load(cost.forward_s)
        drafts[name] = {rows: seconds for rows, seconds in measured.items() if rows >= least}
    policy.expect(machine.measured_at_load(machine.forward_s), drafts)
    if head and case.goes_on_alone:
        policy.rehearsed(_HEAD, [_rehearsed(case, head, depth) for depth in REHEARSED for _ in range(4)])
    elif head:
        policy.drafted(_HEAD, [(steps, draft_seconds(head, [1], [steps])) for steps in DRAFTED])


def _rehearsed(case: Case, cost: DraftCost, depth: int | None) -> RehearsedRound:
    """A round of one stream that `slipstream.load` would have seen; None: a plain one that the device started."""
    machine, steps = case.machine, depth or 0
    drafting_s = draft_seconds(cost, [2], [steps])
    total_s = machine.forward_s(1 + steps) + drafting_s + (-machine.launch_s if depth != 0 else machine.host(1))
    total_s = max(total_s, machine.host(1))
    draft_s = {case.drafter: drafting_s} if steps else {}
    outcome = RoundOutcome(
        1 + steps, 1, draft_s, 0.0, total_s, has_prefill=False, early_draft=0 if depth is None else depth or None
    )
    return RehearsedRound(steps, outcome)


def _start(engine: Engine, case: Case, number: int) -> _Playing:
    answer = number % len(case.answers)
    limits = Limits(case.answers[answer].num_tokens, ignore_eos=True)
    options = RequestOptions(max_draft=case.longest if case.goes_on_alone else None)
    return _Playing(number, engine.generate(prompt_of(answer), _GREEDY, limits, options=options))


def _look(playing: list[_Playing], case: Case, now_s: float, speeds: Speeds) -> list[_Playing]:
    """After a round: notes who began and who ended; returns those that go on."""
    going_on = []
    for one in playing:
        stream = one.generation.stream
        if one.began_s < 0 and stream.num_answer_tokens:
            one.began_s = now_s
        if not stream.done:
            going_on.append(one)
        elif stream.error:
            raise stream.error
        elif one.number < case.num_counted:
            speeds.by_answer[one.number] = (stream.num_answer_tokens - 1) / (now_s - one.began_s)
    return going_on
