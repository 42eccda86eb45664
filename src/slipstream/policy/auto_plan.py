"""AutoPlan: the decisions of one round of `auto`. Each picks the option with the most expected tokens per second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from slipstream.core.policy import Ask, RoundView, fit
from slipstream.core.stream import Drafter, drafts_early, nodes_of_a_step, stops_early
from slipstream.core.tree import EMPTY_TREE, DraftTree
from slipstream.policy.acceptance import Chance, quantile
from slipstream.policy.constants import CAUTION, CHANGE, HOLD, LOSS_SHARE, MEMORY, PRIOR, STAY, UNKNOWN
from slipstream.policy.groups import DrafterGroup, DraftOption, Rivals, group_by_drafter
from slipstream.policy.knowledge import Decision, Knowledge
from slipstream.policy.objective import RoundOption, best_prefix
from slipstream.policy.offers import Choice, Offers


class AutoPlan:
    def __init__(self, known: Knowledge, view: RoundView) -> None:
        self.next_draft: int | None = None
        self.view = view
        self.offers = Offers(view.streams, view.rooms)
        self.plain = RoundOption(0, len(view.streams), max(known.times.plain(len(view.streams)), 1e-12))
        self.chosen = self.plain
        self.early_drafter: str | None = None  # whose drafts the device makes by itself, if this round is timed as such
        self.was_awaited = known.is_waiting  # the device was not allowed to start this round early, because of a draft
        # For the report alone:
        self.likeliest: float | None = None  # the highest probability of any drafted token, if one was considered
        self.shortest_s = 0.0  # what a round with one token of a costly draft would take, if one was considered
        self._known = known
        self._drafting_s = 0.0
        self._saves = False  # a costly draft is expected to pay off, but the budget is overdrawn
        self._device_drafter: str | None = None  # whose drafts the device scores by itself, in this round or the next
        self._next_round = self.plain  # the round that the device starts after this one
        self._head_start_s = 0.0
        if view.reads_prompts:  # the device can't run ahead anyway, so that is not a cost of the draft
            self._head_start_s = known.times.head_start(len(view.streams))
        self._groups = [] if self._has_to_see_plain() or not view.max_nodes else group_by_drafter(view, known)
        self._drafts: dict[str, DraftOption | None] = {}  # of the costly drafters that were considered
        self._questions = self._ask_in_turn()

    def _has_to_see_plain(self) -> bool:
        """Whether plain rounds have to be measured first: on a device that runs ahead, also one that it started."""
        times, view = self._known.times, self.view
        return not times.is_known or (view.can_run_ahead and not view.reads_prompts and not times.is_ahead_known)

    # -- before drafting: which drafters to ask ---------------------------------------------------------------------

    @property
    def _pays(self) -> bool:
        """Whether a costly draft is expected to pay off, so that the next round will have one too."""
        return any(draft.pays for draft in self._drafts.values() if draft)

    def asks(self) -> list[Ask]:
        return next(filter(None, self._questions), [])

    def _ask_in_turn(self) -> Iterator[list[Ask]]:
        """Free drafters come first: their proposals decide whether the others are worth their time."""
        yield [ask for group in self._groups for ask in self._ask_free(group)]
        yield [ask for group in self._groups for ask in self._ask_costly(group)]

    def receive(self, asks: Sequence[Ask], proposals: Sequence[DraftTree], draft_s: float) -> None:
        self._drafting_s = self._known.times.drafting(len(self.view.streams), self._drafting_s + draft_s)
        for ask, tree in zip(asks, proposals, strict=True):
            self.offers.add(ask.stream, ask.drafter, tree)
        if not self._device_drafter:
            self.offers.weigh(self._known)

    def _ask_free(self, group: DrafterGroup) -> list[Ask]:
        """Asks a free drafter while its drafts save more time than asking takes, otherwise as often as `LOSS_SHARE`
        allows, and always if the device waited for it. `keep` then chooses what to score, so the budget is twice what
        was scored last time, and a few more.
        """
        if not group.is_cut_later:
            return []
        known = self._known
        drafter = known.drafters[group.drafter.name]
        asking_s = drafter.times.seconds(len(group.members), 1, 0) + (known.asking_s or 0.0)
        if self.view.started_plain:
            asking_s = known.times.asking(len(self.view.streams))
        affordable = LOSS_SHARE * (drafter.rounds_since + 1) if known.budget.allows(0.0) else 0.0
        if asking_s > max(affordable, drafter.worth) * self.plain.seconds and not known.is_waiting:
            return []
        states, rooms = known.streams, self.view.rooms
        return [
            Ask(stream, group.drafter, min(2 * (states[stream.id].num_scored + 2), rooms[i], known.max_draft))
            for stream, i in zip(group.streams, group.members, strict=True)
        ]

    def _ask_costly(self, group: DrafterGroup) -> list[Ask]:
        view, drafter = self.view, group.drafter
        draft = None if group.is_cut_later or view.started_plain else self._worthwhile_draft(group)
        if self._device_can_draft(drafter):
            self._note_early_drafts(group, draft)
            if view.early_draft:  # this draft is already made: what was just decided is the next
                return [Ask(view.streams[i], drafter, min(view.early_draft, view.rooms[i])) for i in group.members]
        if draft is None:
            return []
        width, depth, least = nodes_of_a_step(drafter), draft.round.size, 0.0
        if stops_early(drafter):
            depth, least = group.longest, self._least_chance(group, draft)
        return [Ask(view.streams[i], drafter, min(depth * width, view.rooms[i]), least) for i in draft.members]

    def _note_early_drafts(self, group: DrafterGroup, draft: DraftOption | None) -> None:
        """Notes what the device drafts and scores without the host, in this round and in the next. `draft`: the one
        that was just decided on."""
        view, known, name = self.view, self._known, group.drafter.name
        is_for_all = draft is not None and len(draft.members) == len(view.streams)
        if draft and draft.pays and is_for_all:
            self._device_drafter, self._next_round = name, draft.round
        elif view.early_draft:
            self._device_drafter = name
        if view.early_draft or (is_for_all and known.drafters[name].early.has_seen(len(view.streams))):
            self.early_drafter = name if known.times.is_known else None

    def _device_can_draft(self, drafter: Drafter) -> bool:
        """Whether the device can start the next round with this drafter's drafts."""
        view = self.view
        return view.can_run_ahead and drafts_early(drafter) and all(s.verifier.judges_unscored for s in view.streams)

    def _start_cost(self, drafter: Drafter) -> float:
        """Plain rounds lost by changing to rounds with drafts that the device starts early, and by changing back."""
        if not self._device_can_draft(drafter):
            return 0.0
        start_s = self._known.drafters[drafter.name].early.start_s
        return (start_s + self._known.times.head_start(len(self.view.streams))) / self.plain.seconds if start_s else 0.0

    def _least_chance(self, group: DrafterGroup, draft: DraftOption) -> float:
        """How sure a drafter has to be of a whole draft, in its own terms, to make it a token longer: that token costs
        a step and a row, and is right in `UNKNOWN` of cases."""
        times, num_streams = self._known.times, len(self.view.streams)
        num_rows = draft.round.size * len(draft.members) * nodes_of_a_step(group.drafter)
        row_s = (times.seconds(num_streams + num_rows) - times.seconds(num_streams)) / num_rows
        drafter = self._known.drafters[group.drafter.name]
        more_s = row_s + drafter.times.step(len(group.members)) / len(draft.members)
        return drafter.acceptance.as_expected(min(draft.round.rate * more_s / UNKNOWN, 1.0))

    def _worthwhile_draft(self, group: DrafterGroup) -> DraftOption | None:
        name = group.drafter.name
        if name not in self._drafts:
            draft = self._held_draft(group)
            if draft is None:
                draft = self._find_draft(group)
                self._known.decision = Decision(name, draft.round, HOLD) if draft and draft.pays else None
            self._drafts[name] = draft
        return self._drafts[name]

    def _held_draft(self, group: DrafterGroup) -> DraftOption | None:
        """The draft decided on in an earlier round, while the device continues and the budget is not overdrawn."""
        held, view = self._known.decision, self.view
        if not held or not view.early_draft or held.drafter != group.drafter.name or not held.rounds_left:
            return None
        if len(group.members) < len(view.streams) or group.longest < held.round.size:
            return None
        if not self._known.budget.allows(0.0):
            return None
        held.rounds_left -= 1
        return DraftOption(group.members, held.round, pays=True)

    def _find_draft(self, group: DrafterGroup) -> DraftOption | None:
        """The draft that pays off by the expected p; while the budget is overdrawn, by observations alone. A draft that
        pays off only by the upper p is a trial: it is made if the budget covers the expected loss.
        """
        known, name = self._known, group.drafter.name
        if not known.drafters[name].times.is_known:  # a few short drafts show how long it takes
            short = DraftOption(group.members, RoundOption(1, self.plain.tokens, self.plain.seconds))
            return short if known.budget.allows(0.0) else None
        offered = self._choose(self.plain, 0)
        chances = known.chances(name, group.streams, group.longest)
        self._consider(chances[0].p)
        expected = self._best_draft(group, chances, 0.0, offered)
        if expected:
            start_cost = 0.0 if self.view.early_draft else self._start_cost(group.drafter)
            known.budget.save_for(start_cost)
            if not known.budget.allows(start_cost - LOSS_SHARE):  # the cost changes a little from round to round
                # By observations alone, two wrong drafts would end lasting ones: there a part of the prior stays.
                is_lasting = self._device_can_draft(group.drafter) or stops_early(group.drafter)
                seen = known.chances(name, group.streams, group.longest, PRIOR / 2 if is_lasting else 0.0)
                self._saves = True
                expected = expected if self._best_draft(group, seen, 0.0, offered, fades=False) else None
            return expected and replace(expected, pays=True)
        trial = self._best_draft(group, chances, CAUTION, offered)
        if trial is None:
            return None
        hoped = sum(quantile(*chance, CAUTION) - chance.p for chance in chances[: trial.round.size])
        likely_tokens = trial.round.tokens - hoped * len(trial.members)
        lost_rounds = trial.round.seconds / self.plain.seconds - likely_tokens / self.plain.tokens
        return trial if known.budget.allows(lost_rounds) else None

    def _best_draft(
        self, group: DrafterGroup, chances: Sequence[Chance], z: float, offered: Choice, *, fades: bool = True
    ) -> DraftOption | None:
        """The best depth, with each p at its quantile `z`. None if no draft is better than `offered`. `fades`: what
        rounds took that the device started by itself counts less, the longer ago it was."""
        times, num_streams = self._known.drafters[group.drafter.name].times, len(self.view.streams)
        under_way = self.view.early_draft if self._device_can_draft(group.drafter) else 0
        everybody, width = len(group.members), nodes_of_a_step(group.drafter)
        rivals = Rivals(group, self.offers.gains(offered.places))
        step_s, other_s = 0.0 if group.drafter.is_free else times.step(everybody), self._other_s(group, fades)
        most_nodes = min(self.view.max_nodes, len(chances) * everybody * width + len(offered.places))
        found, rate, gain = None, offered.round.rate, 0.0
        for depth, chance in enumerate(chances, start=1):
            gain += quantile(*chance, z) if z else chance.p
            rivals.compare(gain)
            members = rivals.members
            num_nodes = len(members) * depth * width + rivals.kept_nodes
            gained = len(members) * gain + rivals.kept_tokens
            if num_nodes > most_nodes:
                break
            round_s = self._known.times.seconds(num_streams + num_nodes) + other_s + step_s * depth
            if under_way and depth != under_way:
                round_s *= 1 + CHANGE / HOLD
            self.shortest_s = round_s if depth == 1 else self.shortest_s
            if members and num_streams + gained > rate * round_s:
                option = RoundOption(depth, num_streams + gained, round_s)
                found, rate = DraftOption(members, option), option.rate
        return found

    def _other_s(self, group: DrafterGroup, fades: bool) -> float:
        """Seconds of a round with the group's drafts beyond its rows and steps, less its head start."""
        known, num_streams, is_free = self._known, len(self.view.streams), group.drafter.is_free
        state = known.drafters[group.drafter.name]
        other_s = self._drafting_s + state.times.seconds(len(group.members), int(is_free), group.num_unread)
        if not self._device_can_draft(group.drafter):
            return other_s - self._head_start_s
        other_s += state.early.extra_s(num_streams, state.rounds_since if fades else 0)
        start_s = self._start_cost(group.drafter) * self.plain.seconds * (1 - MEMORY)  # of each that follows
        other_s += -STAY * start_s if self.view.early_draft else start_s
        return other_s - known.times.head_start(num_streams)

    # -- after drafting: what to score ------------------------------------------------------------------------------

    def keep(self) -> list[DraftTree]:
        """Ranks the nodes of all streams by p and keeps the best number of them. Also decides whether the device may
        start the next round early.

        A draft is not cut if the verifier uses the drafter's distribution: leaving out a sampled token would change the
        target's distribution. Nor is one that the device scores by itself.
        """
        if self._device_drafter:
            if uncut := self.offers.of_drafter(self._device_drafter):
                return self._keep_device_drafts(self._device_drafter, uncut)
            self.offers.weigh(self._known)
        view, known = self.view, self._known
        uncuttable = fit(self.offers.uncuttable() if self.offers.was_asked else [], view.max_nodes)
        num_uncuttable = sum(map(len, uncuttable))
        tokens, start_s = self.plain.tokens, self.plain.seconds
        if self._pays:  # the device waits for the next draft, whether this one is scored or not
            start_s = known.times.seconds(len(view.streams)) - self._head_start_s
        if num_uncuttable:
            tokens += sum(self.offers.uncuttable_gain(i, tree, known) for i, tree in enumerate(uncuttable) if tree)
            start_s = known.times.seconds(len(view.streams) + num_uncuttable) - self._head_start_s
        choice = self._choose(RoundOption(0, tokens, start_s + self._drafting_s), num_uncuttable)
        self.chosen = choice.round
        kept = plain = [EMPTY_TREE] * len(view.streams)
        if self.offers.was_asked:
            kept = [tree or own for tree, own in zip(uncuttable, self.offers.trees(choice.places), strict=True)]
            for stream, tree in zip(view.streams, kept, strict=True):
                if self.offers.of_stream(stream):
                    known.streams[stream.id].num_scored = len(tree)
        known.is_waiting = view.can_run_ahead and self._is_worth_waiting()
        known.plain_rounds_left = HOLD if self._is_off() else 0
        self.next_draft = 0 if view.can_run_ahead and known.times.is_known and not known.is_waiting else None
        return plain if view.started_plain else kept

    def _keep_device_drafts(self, drafter: str, drafts: list[DraftTree]) -> list[DraftTree]:
        """Drafts that the device scores already: they can't be cut, however likely their tokens are."""
        known, view = self._known, self.view
        for stream, tree in zip(view.streams, drafts, strict=True):
            known.streams[stream.id].num_scored = len(tree)
        self.chosen, self.next_draft = self._next_round, self._next_round.size or None
        if not self.next_draft:  # no such round follows: the report has what is expected of this one
            size, num_streams = len(drafts[0]), len(view.streams)
            gained = sum(chance.p for chance in known.chances(drafter, view.streams, size)) * num_streams
            seconds = known.times.seconds(num_streams * (1 + size)) + self._drafting_s
            self.chosen = RoundOption(size, self.plain.tokens + gained, seconds)
        known.is_waiting = not self.next_draft
        return drafts

    def _choose(self, start: RoundOption, num_uncuttable: int) -> Choice:
        """The best number of offered nodes: by the expected p if the budget covers the loss when all of them are
        rejected, else by the lower p."""
        choice = Choice(start, [])
        for cautiously in (False, True) if self.offers else ():
            order, chances = self.offers.ranked(self.view.max_nodes - num_uncuttable, cautiously=cautiously)
            best = self._best_prefix(start, chances, num_uncuttable, 0.0)
            choice = Choice(best, order[: best.size])
            if not best.size or self._known.budget.allows(best.seconds / self.plain.seconds - 1):
                break
        return choice

    def _best_prefix(
        self, start: RoundOption, chances: Sequence[float], num_uncuttable: int, more_s: float
    ) -> RoundOption:
        """The best number of offered nodes, of which `chances` has the likeliest first."""
        if not chances:
            return start
        self._consider(chances[0])
        rows = len(self.view.streams) + num_uncuttable
        seconds = self._known.times.each(rows, rows + len(chances))
        return best_prefix(start, chances, seconds, self._drafting_s - self._head_start_s + more_s)

    def _is_off(self) -> bool:
        """Whether costly drafters were considered, and none is worth asking. False where a prompt is read (nothing is
        known of that stream) and for a draft model on a device that runs ahead: a kind of text lost 4 % in the replay.
        """
        if self.view.can_run_ahead and not any(self._device_can_draft(group.drafter) for group in self._groups):
            return False
        is_asked = self.offers.was_asked or self._known.is_waiting or any(self._drafts.values())
        return bool(self._drafts) and not (is_asked or self._saves or self.view.reads_prompts)

    def _is_worth_waiting(self) -> bool:
        """Whether to wait for the next round, so that drafts can be scored in it, instead of letting the device start.

        This round already gives the first offered token, so the gain is in the tokens after it, and in what is offered
        instead where it is wrong. The host also has to wait for the round after the next.
        """
        times = self._known.times
        if self._pays or not times.is_ahead_known:
            return times.is_ahead_known
        back_s = times.seconds(len(self.view.streams)) + self._drafting_s - self.plain.seconds
        chances = self.offers.expected_next(self.view.max_nodes) if self.offers else []
        if self._best_prefix(self.plain, chances, 0, back_s).size:
            return True
        return any(map(self._worthwhile_draft, [group for group in self._groups if not group.is_cut_later]))

    def _consider(self, chance: float) -> None:
        self.likeliest = max(self.likeliest or 0.0, chance)
