"""AutoPolicy: drafts as much as pays, by measured cost and acceptance, and never makes decoding slower.

It asks one question twice: which number of rows gives the most tokens a second? Before drafting the answer is the
budget of drafters whose proposals cost time; after drafting it is which nodes, over all streams, are worth a row.
Zero is an answer like any other. While a costly drafter is at zero it is tried again now and then, within 2 % of the
time; a free one goes on proposing and is judged, unscored, by what the target then chose.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

from slipstream.core.acceptance import AcceptanceModel
from slipstream.core.cost import RoundCosts
from slipstream.core.policy import FixedPolicy, Ledger, Policy, PolicyReport, RoundCost, fit
from slipstream.core.protocols import Observation
from slipstream.core.stream import Stream
from slipstream.core.tree import DraftTree
from slipstream.errors import UsageError

PROBE_SHARE = 0.02  # of the time, for trying a drafter that does not pay
PROBE_DEPTH = 3
_READING_SHARE = 0.25  # of a drafted token's time, unless measured: a token that a draft model has to read first
DEFAULT_MAX_DRAFT = 16
_LEAST_GAIN = 1.05  # a predicted gain within the noise is none
_CAUTION = 0.2  # gain wanted for each plain round that a draft costs beyond the first: what is lost if it is wrong
_LEAST_ASKED = 4  # tokens of a draft: kernels may take four rows at little more than the price of two
_PATIENCE = 8  # rounds without a draft worth scoring, before drafters are asked half as often
_PLAIN_SAMPLES = 3  # plain rounds measured before anything is drafted
_FEW_SAMPLES = 4
_FIRST_DRAFTS = 2  # a drafter's first drafts prepare what later ones find: their time says nothing
_PLAIN_EVERY = 100  # rounds of drafting for each that it takes to measure a plain one again


class AutoPolicy:
    def __init__(self, max_draft: int = DEFAULT_MAX_DRAFT) -> None:
        if max_draft < 0:
            raise UsageError(f"auto({max_draft}): the longest draft is 0 or more")
        self._max_draft = max_draft
        self._costs = RoundCosts()
        self._acceptance = AcceptanceModel()
        self._ledger = Ledger()
        self._step_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=9))  # a depth of a drafter
        self._reading_share: dict[str, float] = {}  # by drafter, see _READING_SHARE
        self._num_drafts: Counter[str] = Counter()  # by drafter
        self._elapsed_s = 0.0
        self._probe_s = 0.0
        self._last_probe_s = 0.0
        self._probing = False
        self._times_asked: Counter[int] = Counter()  # by stream
        self._kept: dict[int, int] = {}  # by stream: drafted tokens that were worth scoring, last time
        self._in_vain: Counter[int] = Counter()  # by stream: rounds in which nothing was, one after the other
        self._drafted_to: dict[int, int] = {}  # by stream: its length when something was drafted last
        self._until_plain = 0  # rounds of drafting before plain ones are wanted again
        self._plain_rounds = 0  # since one was measured
        self._predicted = 1.0
        self._explain: Callable[[], str] = lambda: "nothing was drafted yet"  # the last choice, told if asked for
        self._drafter = ""  # the last that proposed

    @property
    def name(self) -> str:
        return "auto"

    def expect(
        self, round_s: Mapping[int, float], drafter: str = "", draft_s: Mapping[int, float] | None = None
    ) -> None:
        """What was measured before the first answer, by rows: rounds, and forwards of the model that drafts. It
        weighs as much as having been seen once."""
        self._costs.expect(round_s)
        if draft_s:
            least, most = min(draft_s), max(draft_s)
            self._reading_share[drafter] = draft_s[most] / (most * draft_s[least])
            if least == 1:
                self._step_s[drafter].append(draft_s[1])

    # -- before drafting ------------------------------------------------------------------------------------------

    def budgets(self, streams: Sequence[Stream], caps: Sequence[int]) -> list[int]:
        self._probing = False
        if self._wants_plain_round(len(streams)):
            return [0] * len(streams)
        budgets = [min(cap, self._max_draft, self._wanted(s)) for s, cap in zip(streams, caps, strict=True)]
        for drafter, members in _budgeted(streams).items():
            longest = max(budgets[i] for i in members)
            depth = self._best_depth(drafter, len(streams), len(members), longest)
            if depth == 0 and self._may_probe(drafter, [streams[i] for i in members], len(streams)):
                depth, self._probing = PROBE_DEPTH, True
            for i in members:
                budgets[i] = min(budgets[i], depth)
        return budgets

    def _wanted(self, stream: Stream) -> int:
        """What could be used now: room to double what was kept last time. While nothing pays that is a few tokens,
        enough to see whether they would have been right, and in the long run every other time."""
        self._times_asked[stream.id] += 1
        if self._in_vain[stream.id] >= _PATIENCE and self._times_asked[stream.id] % 2:
            return 0
        return max(_LEAST_ASKED, 2 * self._kept.get(stream.id, 2) + 2)

    def _wants_plain_round(self, num_streams: int) -> bool:
        """Gains are measured against plain rounds, so some have to be seen, and seen again as the context grows."""
        return not self._costs.plain.knows(num_streams, _PLAIN_SAMPLES) or self._until_plain <= 0

    def _best_depth(self, drafter: str, num_streams: int, members: int, limit: int) -> int:
        """The depth at which drafting, scoring and keeping gives the most tokens a second; 0 where none pays."""
        step_s = self._draft_step_s(drafter)
        plain_rate = num_streams / max(self._costs.plain.seconds(num_streams), 1e-9)
        best, best_rate, expected = 0, plain_rate * _LEAST_GAIN, float(num_streams)
        for depth, chance in enumerate(self._acceptance.depth_chances(drafter, limit), start=1):
            rows = num_streams + members * depth
            if rows > self._reach(num_streams):
                break
            expected += members * chance
            rate = expected / max(self._costs.seconds(rows, num_streams, expected) + step_s * depth, 1e-9)
            if rate > best_rate:
                best, best_rate = depth, rate
        self._predicted = best_rate / plain_rate if best else 1.0
        if best == 0:
            first = self._acceptance.depth_chances(drafter, 1)[0]
            self._explain = lambda: (
                f"off: drafting a token takes {step_s * 1e3:.1f} ms and it is accepted {first:.0%} of the time, "
                f"against {1e3 / plain_rate * num_streams:.1f} ms for a plain round"
            )
        return best

    def _could_pay(self, drafter: str, num_streams: int, members: int) -> bool:
        """Whether it would if every token were taken."""
        step_s, plain_s = self._draft_step_s(drafter), self._costs.plain.seconds(num_streams)
        for depth in range(1, self._max_draft + 1):
            rows = num_streams + members * depth
            round_s = self._costs.seconds(rows, num_streams) + step_s * depth
            if rows * plain_s > _LEAST_GAIN * num_streams * round_s:
                return True
        return False

    def _may_probe(self, drafter: str, members: Sequence[Stream], num_streams: int) -> bool:
        """Whether a try is due."""
        if not self._could_pay(drafter, num_streams, len(members)):
            return False
        extra_rows_s = self._costs.seconds(num_streams + PROBE_DEPTH, num_streams)
        extra_rows_s -= self._costs.plain.seconds(num_streams)
        unread = max(len(stream.tokens) - self._drafted_to.get(stream.id, 0) for stream in members)
        steps = PROBE_DEPTH + unread * self._reading_share.get(drafter, _READING_SHARE)
        expected_s = max(self._draft_step_s(drafter) * steps + extra_rows_s, self._last_probe_s)
        return self._probe_s + expected_s <= PROBE_SHARE * self._elapsed_s

    def _draft_step_s(self, drafter: str) -> float:
        samples = self._step_s[drafter]
        typical = median if len(samples) >= _FEW_SAMPLES else min  # one that had to prepare something is no measure
        return typical(samples) if samples else 0.0

    def _reach(self, num_streams: int) -> int:
        """Rows worth trying: unseen sizes are approached by doubling, so that one bad guess costs little."""
        return max(2 * self._costs.largest, num_streams + 2)

    # -- after drafting -------------------------------------------------------------------------------------------

    def select(self, streams: Sequence[Stream], trees: Sequence[DraftTree], max_nodes: int) -> list[DraftTree]:
        """Ranks the nodes of all streams by their chance and keeps as many as pay.

        A draft stays whole where the verifier does not go by the target's own tokens: to leave out a sampled token for
        its own sake would bend the distribution.
        """
        if self._probing or not any(trees):
            return fit(trees, max_nodes)
        whole = [i for i, stream in enumerate(streams) if not stream.verifier.judges_unscored]
        ranked = sorted(
            (-chance, i, node)
            for i, (stream, tree) in enumerate(zip(streams, trees, strict=True))
            if stream.drafter and i not in whole
            for node, chance in enumerate(self._acceptance.node_chances(stream.id, stream.drafter.name, tree))
        )
        kept = {
            i: list(range(len(tree))) for i, tree in zip(whole, fit([trees[i] for i in whole], max_nodes), strict=True)
        }
        num_whole = sum(map(len, kept.values()))
        ranked = ranked[: max_nodes - num_whole]
        count = self._worthwhile([-chance for chance, _, _ in ranked], len(streams), len(streams) + num_whole)
        for _, i, node in ranked[:count]:
            kept.setdefault(i, []).append(node)
            self._in_vain[streams[i].id] = 0
        return [tree.keep(kept.get(i, ())) for i, tree in enumerate(trees)]

    def _worthwhile(self, chances: Sequence[float], num_streams: int, fixed_rows: int) -> int:
        """How many of the nodes, likeliest first, give the most tokens a second."""
        tokens, best, best_value, self._predicted = float(num_streams), 0, _LEAST_GAIN, 1.0
        base_s = self._costs.seconds(fixed_rows, num_streams, tokens)
        if fixed_rows == num_streams:
            base_s = self._costs.plain.seconds(num_streams)
        most = min(len(chances), max(self._reach(num_streams) - fixed_rows, 0))
        for count, chance in enumerate(chances[:most], start=1):
            tokens += chance
            cost = max(self._costs.seconds(fixed_rows + count, num_streams, tokens), 1e-9) / max(base_s, 1e-9)
            gain = tokens / num_streams / cost
            value = gain - _CAUTION * (cost - 1)
            if value > best_value:
                best, best_value, self._predicted = count, value, gain
                self._explain = partial(_why_on, count, tokens / num_streams, cost)
            elif count == 1:
                self._explain = partial(_why_off, chance, cost)
        return best

    # -- after the round ------------------------------------------------------------------------------------------

    def record(self, cost: RoundCost, observations: Sequence[Observation]) -> None:
        self._elapsed_s += cost.total_s
        for o in observations:
            self._in_vain[o.stream.id] = 0 if o.scored else self._in_vain[o.stream.id] + 1
            if o.proposed:
                self._kept[o.stream.id] = len(o.scored)
                self._drafted_to[o.stream.id] = len(o.stream.tokens)
            if o.judged and o.stream.drafter:
                self._drafter = o.stream.drafter.name
                self._acceptance.observe(o.stream.id, self._drafter, o.judged, o.verdict.tokens(o.scored))
        if cost.has_prefill:
            return
        round_s = cost.total_s - _drafting_s(cost, observations)
        if not cost.ran_ahead:
            self._costs.record(cost.rows, cost.num_streams, round_s)
        self._ledger.add(cost, observations)
        self._count_plain(cost, round_s)
        self._record_drafting(cost, observations)

    def _count_plain(self, cost: RoundCost, round_s: float) -> None:
        if cost.rows > cost.num_streams:
            self._until_plain -= 1
            return
        self._plain_rounds += 1
        if not cost.is_stalled:
            self._costs.plain.record(cost.num_streams, round_s)
            self._until_plain = max(self._until_plain, _PLAIN_EVERY * self._plain_rounds)
            self._plain_rounds = 0

    def _record_drafting(self, cost: RoundCost, observations: Sequence[Observation]) -> None:
        for drafter, seconds in cost.draft_s.items():
            drafts = [o.proposed for o in observations if o.stream.drafter and o.stream.drafter.name == drafter]
            depth = max((max(draft.depths(), default=0) for draft in drafts), default=0)
            self._num_drafts[drafter] += 1
            if self._num_drafts[drafter] > _FIRST_DRAFTS:
                self._step_s[drafter].append(seconds / max(depth, 1))
            if drafts and not depth:
                self._acceptance.observe_nothing(drafter)
        if self._probing and cost.draft_s:
            gained = sum(len(o.verdict.path) for o in observations) / max(cost.num_streams, 1)
            plain_s = self._costs.plain.seconds(cost.num_streams)
            self._last_probe_s = max(0.0, cost.total_s - plain_s * (1 + gained))
            self._probe_s += self._last_probe_s
        self._probing = False

    def forget(self, stream: Stream) -> None:
        self._acceptance.forget(stream.id)
        self._kept.pop(stream.id, None)
        self._in_vain.pop(stream.id, None)
        self._drafted_to.pop(stream.id, None)
        self._times_asked.pop(stream.id, None)

    def explain(self) -> PolicyReport:
        return PolicyReport(
            policy=self.name,
            budget=self._ledger.budget(),
            reason=self._explain(),
            predicted_speedup=self._predicted,
            observed_speedup=self._ledger.speedup(self._costs.plain),
            cost_by_rows_s=self._costs.curve(),
            acceptance_by_depth=self._acceptance.depth_chances(self._drafter, 8),
        )


def _why_on(count: int, tokens: float, cost: float) -> str:
    return f"{count} drafted rows: {tokens:.2f} tokens a stream expected for {cost:.2f}x the cost of a plain round"


def _why_off(chance: float, cost: float) -> str:
    return (
        f"off: the likeliest drafted token is accepted {chance:.0%} of the time, "
        f"and a row more costs {cost:.2f}x a plain round"
    )


def _drafting_s(cost: RoundCost, observations: Sequence[Observation]) -> float:
    """What drafters took whose tokens cost time: counted by the token. Free ones are part of the round."""
    free = {o.stream.drafter.name for o in observations if o.stream.drafter and o.stream.drafter.is_free}
    return sum(seconds for drafter, seconds in cost.draft_s.items() if drafter not in free)


def _budgeted(streams: Sequence[Stream]) -> dict[str, list[int]]:
    """Streams whose draft can't be cut afterwards at no loss, by drafter: its tokens cost time, or stay as they are."""
    members: dict[str, list[int]] = defaultdict(list)
    for i, stream in enumerate(streams):
        if stream.drafter and (not stream.drafter.is_free or not stream.verifier.judges_unscored):
            members[stream.drafter.name].append(i)
    return members


def make_policy(spec: str | int | Policy) -> Policy:
    """`auto`, `auto(8)` (the longest draft), `fixed(4)` or just `4`; a Policy is returned as it is."""
    if isinstance(spec, int):
        return FixedPolicy(spec)
    if not isinstance(spec, str):
        return spec
    kind, _, argument = spec.partition("(")
    number = argument.removesuffix(")")
    if kind == "auto" and (not argument or number.isdigit()):
        return AutoPolicy(int(number)) if number else AutoPolicy()
    if kind == "fixed" and number.isdigit():
        return FixedPolicy(int(number))
    if spec.isdigit():
        return FixedPolicy(int(spec))
    raise UsageError(f"unknown policy {spec!r}; expected auto, auto(N), fixed(N) or a number")
