"""Rehearsal: real rounds before the first answer, so that a policy knows what they take.

A device that runs ahead hides the host's work only while rounds are of the same kind. Changing the kind, for example
starting to draft, can cost as much as a small model's forward pass. It is measured at load, so that no answer pays for
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.core.engine import Engine, EngineTokenizer
from slipstream.core.policy import Ask, PolicyReport, RoundOutcome, RoundView
from slipstream.core.protocols import Model
from slipstream.core.stream import Drafter, Limits, Stream, nodes_of_a_step
from slipstream.core.tree import EMPTY_TREE, DraftTree

_REPEATS = 5  # of each kind of round that count
_DEPTHS = (1, 4, 8)  # of drafts: what a step takes, and what a draft takes besides


@dataclass(frozen=True, slots=True)
class RehearsedRound:
    """`depth`: of its draft; 0: a plain round."""

    depth: int
    outcome: RoundOutcome


@dataclass(frozen=True, slots=True)
class _Step:
    depth: int = 0
    goes_on: bool = False  # with a round like it
    counts: bool = True


def rehearse(
    model: Model, tokenizer: EngineTokenizer, drafter: Drafter, clock: Callable[[], float] = time.perf_counter
) -> list[RehearsedRound]:
    """Runs rounds of one throw-away stream: plain ones that the host starts, plain ones that the device starts early,
    and rounds with drafts, which it may start too. All of it twice: the first time warms up, the second is measured.
    Raises CapacityError without room for it.
    """
    steps = [*_steps(counts=False), *_steps(counts=True)]
    script, room = _Script(steps), sum(step.depth + 1 for step in steps) + max(_DEPTHS) * nodes_of_a_step(drafter)
    engine = Engine(model, tokenizer, drafter, script, max_streams=1, clock=clock)
    limits = Limits(max_tokens=min(room, model.info.context_length - 2), ignore_eos=True)
    answer = engine.generate([0], limits=limits)
    while script.left and engine.step():
        pass
    answer.cancel()
    model.forget_prompts()
    if answer.stream.error:
        raise answer.stream.error
    return script.rounds


def _steps(counts: bool) -> list[_Step]:
    """The first round of a kind follows one of another, so it never counts."""
    ahead, waited = _Step(0, True), _Step()
    groups = [[waited] * _REPEATS, [ahead] * _REPEATS, *([_Step(depth, True)] * _REPEATS for depth in _DEPTHS)]
    return [_Step(s.depth, s.goes_on, counts and i > 0) for group in groups for i, s in enumerate(group)]


class _Script:
    """A policy that follows a list of steps."""

    name = "rehearsal"

    def __init__(self, steps: list[_Step]) -> None:
        self.left = steps
        self.rounds: list[RehearsedRound] = []

    def plan(self, view: RoundView) -> _ScriptPlan:
        """Rounds that read the prompt are not in the script."""
        return _ScriptPlan(view, self.left.pop(0) if view.streams and self.left else _Step(counts=False))

    def record(self, outcome: RoundOutcome) -> None:
        plan = outcome.plan
        if isinstance(plan, _ScriptPlan) and plan.step.counts and not outcome.has_prefill:
            self.rounds.append(RehearsedRound(plan.step.depth, outcome))

    def forget(self, stream: Stream) -> None:
        pass

    def explain(self) -> PolicyReport:
        return PolicyReport(self.name, 0.0, "measuring what rounds take", None, None)


class _ScriptPlan:
    def __init__(self, view: RoundView, step: _Step) -> None:
        self.step = step
        self.next_draft: int | None = None
        self._view = view
        self._trees: list[DraftTree] = []

    def asks(self) -> Sequence[Ask]:
        if self._trees or not self.step.depth or self._view.started_plain:
            return ()
        asked = [(s, s.drafter) for s in self._view.streams]
        rooms = [min(room, self._view.max_nodes) for room in self._view.rooms]
        return [
            Ask(stream, drafter, min(self.step.depth * nodes_of_a_step(drafter), room))
            for (stream, drafter), room in zip(asked, rooms, strict=True)
            if drafter and room > 0
        ]

    def receive(self, asks: Sequence[Ask], proposals: Sequence[DraftTree], draft_s: float) -> None:
        self._trees = list(proposals)

    def keep(self) -> list[DraftTree]:
        if self.step.goes_on and bool(self._trees) == bool(self.step.depth):
            self.next_draft = self.step.depth
        return self._trees or [EMPTY_TREE] * len(self._view.streams)
