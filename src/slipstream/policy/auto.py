"""AutoPolicy: drafts as many tokens as pay off, by measured cost and acceptance. docs/policy.md explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.core.policy import PlainPlan, PolicyReport, RoundOutcome, RoundPlan, RoundView
from slipstream.core.stream import Stream, stops_early
from slipstream.core.team import members_of
from slipstream.core.tree import ROOT
from slipstream.errors import UsageError
from slipstream.policy.acceptance import JudgedDraft
from slipstream.policy.auto_plan import AutoPlan
from slipstream.policy.constants import MAX_DRAFT
from slipstream.policy.knowledge import Knowledge
from slipstream.policy.ledger import Ledger
from slipstream.policy.reasons import Reason, reason_for
from slipstream.policy.rehearsal import RehearsedRound
from slipstream.policy.round_times import capped_mean


class AutoPolicy:
    name = "auto"

    def __init__(self, max_draft: int = MAX_DRAFT) -> None:
        if max_draft < 0:
            raise UsageError(f"auto({max_draft}): the maximum draft length must be 0 or more")
        self._known = Knowledge(max_draft)
        self._ledger = Ledger()
        self._follows_prompt = False  # the last round read a prompt, so the device could not start this one early
        self._follows_early_draft = False  # the last round had drafts that the device makes and scores without the host
        self._free: set[str] = set()  # names of drafters that take almost no time
        self._last_drafter = ""
        self._reason = Reason()

    def expect(self, round_s: Mapping[int, float], draft_s: Mapping[str, Mapping[int, float]]) -> None:
        """Sets the times of forward passes measured at load, by rows: of the target, and of the draft models by
        drafter.
        """
        self._known.times.expect(round_s)
        for drafter, seconds in draft_s.items():
            self._known.drafters[drafter].times.expect(seconds)

    def rehearsed(self, drafter: str, rounds: Sequence[RehearsedRound]) -> None:
        """Learns round and draft times from rehearsed rounds, not acceptance."""
        for one in rounds:
            if not one.outcome.early_draft:
                self._learn_times(one.outcome, is_plain=not one.depth)
        made = [one for one in rounds if drafter in one.outcome.draft_s]
        self.drafted(drafter, [(one.depth, self._draft_seconds(one.outcome, drafter)) for one in made])
        for one in made:
            if one.outcome.early_draft:
                self._learn_early_draft(drafter, one.outcome)

    def _draft_seconds(self, outcome: RoundOutcome, drafter: str) -> float:
        """The time of this drafter's draft. In a round that the device started, the host sees only its end: there it is
        the time of the round beyond its forward pass.
        """
        if not outcome.early_draft:
            return outcome.draft_s[drafter]
        times = self._known.times
        return max(0.0, outcome.total_s - times.seconds(outcome.rows) + times.head_start(outcome.num_streams))

    def drafted(self, drafter: str, drafts: Sequence[tuple[int, float]]) -> None:
        """Learns from drafts timed at load, for one stream: steps and seconds of each."""
        if drafts:
            self._known.drafters[drafter].times.rehearse(drafts)

    def plan(self, view: RoundView) -> RoundPlan:
        """After no draft was found to pay, some rounds are not planned."""
        known = self._known
        if known.plain_rounds_left and not view.reads_prompts and view.started_plain == view.can_run_ahead:
            known.rest()
            return PlainPlan(view)
        return AutoPlan(known, view)

    def forget(self, stream: Stream) -> None:
        self._known.streams.pop(stream.id, None)

    # -- learning from a round --------------------------------------------------------------------------------------

    def record(self, outcome: RoundOutcome) -> None:
        plan, early_drafter = outcome.plan, None
        if isinstance(plan, AutoPlan):
            early_drafter = plan.early_drafter
            drafting_s = self._usual_drafting_s(plan, outcome)
            self._charge(plan, outcome, drafting_s)
            self._learn_acceptance(plan, outcome)
            self._learn_drafting(plan, outcome)
            self._reason = reason_for(plan, outcome.num_drafted, drafting_s, self._known.times, self._reason)
        if not outcome.has_prefill:
            self._ledger.add(outcome)
            if early_drafter:
                self._learn_early_draft(early_drafter, outcome)
            elif not self._follows_early_draft:  # the first round of another kind takes longer than those after it
                self._learn_times(outcome, is_plain=not outcome.num_drafted)
        self._follows_prompt, self._follows_early_draft = outcome.has_prefill, early_drafter is not None

    def _learn_acceptance(self, plan: AutoPlan, outcome: RoundOutcome) -> None:
        """A free drafter that proposed nothing cost nothing; a costly one that proposed nothing counts as wrong."""
        judged: dict[str, list[JudgedDraft]] = {}  # by drafter
        for o in outcome.observations if plan.offers.was_asked else ():
            stream, offered = self._known.streams[o.stream.id], plan.offers.of_stream(o.stream)
            for drafter in members_of(o.stream.drafter):
                name, is_free = drafter.name, drafter.is_free
                if is_free:
                    self._free.add(name)
                tree = offered.get(name)
                if tree is None:
                    continue
                known = self._known.drafters[name]
                is_right = tree.child(ROOT, o.tokens[0]) is not None
                if stream.was_right.get(name) is False:  # a draft after one whose first token was wrong
                    known.add_recovery(is_right)
                stream.was_right[name] = is_right
                if tree or not is_free:
                    self._last_drafter = name
                    draft = tree if o.stream.verifier.judges_unscored else o.scored
                    of_drafter = judged.setdefault(name, [])
                    of_drafter.append(JudgedDraft(draft, o.tokens, stream.recent, stops_early(drafter)))
        for name, drafts in judged.items():
            self._known.drafters[name].acceptance.observe(drafts)

    def _learn_drafting(self, plan: AutoPlan, outcome: RoundOutcome) -> None:
        known = self._known
        if outcome.draft_s:
            known.asking_s = capped_mean(known.asking_s, outcome.plan_s / len(outcome.draft_s))
        unread: dict[str, list[int]] = {}  # by drafter: tokens of each stream that it was asked for
        for stream in plan.view.streams if plan.offers.was_asked else ():
            read_to, num_tokens = known.streams[stream.id].read_to, len(stream.tokens)
            for name in plan.offers.of_stream(stream):
                unread.setdefault(name, []).append(num_tokens - read_to.get(name, 0))
                read_to[name] = num_tokens
        for name, drafter in known.drafters.items():
            drafter.rounds_since = 0 if name in unread else drafter.rounds_since + 1
            if name in unread:
                is_free = name in self._free
                num_steps = 1 if is_free else plan.offers.depth_of(name)  # the length of a free draft does not matter
                if name != plan.early_drafter:
                    num_asked, most = len(unread[name]), max(unread[name])
                    drafter.times.record(num_asked, num_steps, outcome.draft_s[name], most, is_free=is_free)
                if is_free and outcome.early_draft != 0:
                    drafter.add_worth(self._saved_rounds(plan, outcome, name))

    def _saved_rounds(self, plan: AutoPlan, outcome: RoundOutcome, drafter: str) -> float:
        """Plain rounds saved by this drafter's tokens, less the time of their rows."""
        times, num_streams = self._known.times, len(plan.view.streams)
        num_nodes, num_accepted = plan.offers.credit_of(drafter, outcome.observations)
        rows_s = times.seconds(num_streams + num_nodes) - times.seconds(num_streams)
        return num_accepted / num_streams - rows_s / plan.plain.seconds

    def _usual_drafting_s(self, plan: AutoPlan, outcome: RoundOutcome) -> float:
        """The usual time of such drafts. One draft that had to compile kernels must not reduce drafting later."""
        usual_s = 0.0
        for name, seconds in outcome.draft_s.items():
            if name not in self._free and name != plan.early_drafter:
                times = self._known.drafters[name].times
                seconds = min(seconds, times.seconds(len(plan.view.streams), plan.offers.depth_of(name), 0))
            usual_s += seconds
        return self._known.times.drafting(len(plan.view.streams), usual_s)

    def _charge(self, plan: AutoPlan, outcome: RoundOutcome, drafting_s: float) -> None:
        """Charges the budget with the time beyond a plain round, as the cost model has it, less the tokens gained."""
        num_streams, times = len(plan.view.streams), self._known.times
        if plan.early_drafter and outcome.num_drafted:
            extra_s = self._usual_early_s(plan.early_drafter, outcome) - plan.plain.seconds
        elif outcome.early_draft == 0:
            extra_s = times.asking(num_streams) if outcome.draft_s else 0.0
        elif not outcome.draft_s and (self._follows_early_draft or not plan.was_awaited):
            extra_s = 0.0  # also after early rounds with drafts: the first of them was charged with the change back
        else:
            extra_s = times.seconds(num_streams + outcome.num_drafted) + drafting_s - plan.plain.seconds
            if outcome.has_prefill or self._follows_prompt:  # the device could not have started it early
                extra_s -= times.head_start(num_streams)
        self._known.budget.record(outcome.num_accepted / num_streams - extra_s / plan.plain.seconds)

    def _usual_early_s(self, drafter: str, outcome: RoundOutcome) -> float:
        """The usual time of a round whose drafts the device makes by itself. The first of them is also charged
        with the later change back to plain rounds.
        """
        known, num_streams = self._known, outcome.num_streams
        early, parts_s = known.drafters[drafter].early, self._parts_s(drafter, outcome)
        change_s = 0.0 if outcome.early_draft else early.start_s + known.times.head_start(num_streams)
        return parts_s + early.extra_s(num_streams, 0) + change_s

    def _parts_s(self, drafter: str, outcome: RoundOutcome) -> float:
        return self._known.early_round_s(drafter, outcome.num_streams, outcome.rows // outcome.num_streams - 1)

    def _learn_early_draft(self, drafter: str, outcome: RoundOutcome) -> None:
        """Learns from a round whose drafts the device makes by itself, no matter whether device or host started it."""
        if outcome.rows > outcome.num_streams:
            early = self._known.drafters[drafter].early
            learn = early.record if outcome.early_draft else early.record_first
            learn(outcome.num_streams, outcome.total_s, self._parts_s(drafter, outcome))

    def _learn_times(self, outcome: RoundOutcome, is_plain: bool) -> None:
        times = self._known.times
        if outcome.early_draft == 0:
            times.record_ahead(outcome.num_streams, outcome.total_s, bool(outcome.draft_s))
        else:
            scoring_s = outcome.total_s - times.drafting(outcome.num_streams, outcome.drafting_s)
            times.record(outcome.rows, scoring_s, is_plain=is_plain)

    def explain(self) -> PolicyReport:
        known = self._known
        chances = known.drafters[self._last_drafter].acceptance.of_depths(8, []) if self._last_drafter else []
        return PolicyReport(
            policy=self.name,
            budget=self._ledger.drafted_per_step(),
            reason=str(self._reason),
            predicted_speedup=self._reason.speedup,
            observed_speedup=self._ledger.speedup(known.times.plain),
            cost_by_rows_s=known.times.curve(),
            acceptance_by_depth=[chance.p for chance in chances],
        )
