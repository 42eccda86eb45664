"""The verdict: whether speculation pays off, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slipstream.measurement.ratio import ratio
from slipstream.measurement.results import (
    ALL_KINDS,
    NO_COUNTERS,
    NOTHING_DRAFTED,
    NOTHING_SHOWN,
    PLAIN,
    BenchVerdict,
    RowCost,
    Run,
    VerdictWord,
)

_NOISE = 0.02  # the smallest gain that a quiet machine can measure
_LOW_ACCEPTANCE = 0.35
_HIGH_DRAFT_SHARE = 0.25
_ONE_BY_ONE = (
    "the target ran {run.target_forwards} times for {run.num_tokens} tokens although {run.num_accepted} drafted "
    "tokens were accepted: drafts are verified one token at a time instead of in one pass"
)
_FORCED = "acceptance was forced, so the text can't be compared"
_STEEP_ROWS = 1.6  # time of four rows over one; above it the target is not memory-bound here


def judge(run: Run, cost_by_rows: Sequence[RowCost], reading_forwards: int = 0) -> Run:
    """The run with its verdict. `reading_forwards`: the target's forward passes that only read prompts."""
    if run.drafter == PLAIN:
        return run
    if _is_one_by_one(run, reading_forwards):
        return replace(run, verdict=BenchVerdict("broken", _ONE_BY_ONE.format(run=run)))
    word = _word(run)
    why = _why(run, word, cost_by_rows)
    return replace(run, verdict=BenchVerdict(word, f"{why}; {_FORCED}" if run.same_text is None else why))


def _word(run: Run) -> VerdictWord:
    if run.same_text is False:
        return "broken"
    if run.drafted is False:
        return NOTHING_DRAFTED
    if run.speedup.low > 1.0 and run.speedup.value >= 1 + _NOISE:
        return "pays"
    if run.speedup.high < 1.0 and run.speedup.value <= 1 - _NOISE:
        return "does not pay"
    return "no difference"


def _is_one_by_one(run: Run, reading_forwards: int) -> bool:
    """Whether drafted tokens are verified one at a time. A few tokens are not enough to tell."""
    is_evidence = run.num_accepted >= max(3, run.num_tokens // 8)
    return is_evidence and run.target_forwards - reading_forwards >= run.num_tokens


def _why(run: Run, word: VerdictWord, cost_by_rows: Sequence[RowCost]) -> str:
    if run.same_text is False:
        return "the text differs from plain decoding: slipstream audit shows where and why"
    if run.drafted is None:
        return NO_COUNTERS
    if not run.drafted:
        return f"{NOTHING_SHOWN}; the drafter proposed nothing, or the policy found that drafting does not pay off"
    if word == "pays":
        return (
            f"{run.mean_accepted_length:.2f} tokens per step, {run.acceptance_rate:.0%} of drafted tokens accepted, "
            f"{run.draft_share:.0%} of the time spent drafting"
        )
    if word == "no difference" and run.speedup.value >= 1.1:
        return (
            f"probably faster, but the prompts vary too much to be sure (measured: {run.num_prompts}): measure more "
            "prompts"
        )
    causes = _causes(run, cost_by_rows)
    return "; ".join(causes) if causes else _balance(run, word)


def _balance(run: Run, word: VerdictWord) -> str:
    """What a step gives and takes, if no single cause stands out."""
    if word != "does not pay":
        return "the gain is about as large as the cost"
    took = ratio(run.mean_accepted_length, run.speedup.value)
    return f"a step gives {run.mean_accepted_length:.2f} tokens and takes {took:.1f}x as long as a plain one"


def _causes(run: Run, cost_by_rows: Sequence[RowCost]) -> list[str]:
    causes = []
    if run.acceptance_rate < _LOW_ACCEPTANCE:
        causes.append(f"acceptance too low: {run.acceptance_rate:.0%} of drafted tokens are accepted")
    if run.draft_share > _HIGH_DRAFT_SHARE:
        causes.append(f"drafting takes too long: {run.draft_share:.0%} of the time")
    four = next((c for c in cost_by_rows if c.rows == 4), None)
    if four and four.over_one > _STEEP_ROWS:
        causes.append(
            f"verifying takes too long: 4 tokens take {four.over_one:.1f}x as long as one (decoding is not "
            "memory-bound here)"
        )
    if run.num_drafted < run.num_tokens / 20:
        causes.append("very few tokens were drafted")
    return causes


def overall(runs: Sequence[Run]) -> BenchVerdict:
    """The overall verdict: the best drafter over all kinds of text, and the kinds for which it pays off. One that pays
    for sure is better than one that may be faster."""
    totals = [r for r in runs if r.drafter != PLAIN and (r.kind == ALL_KINDS or _only_kind(runs))]
    if not totals:
        return BenchVerdict("no difference", "nothing was compared with plain decoding")
    broken = next((r for r in runs if r.verdict.word == "broken"), None)
    if broken:
        return BenchVerdict("broken", f"{broken.drafter} on {broken.kind}: {broken.verdict.why}")
    showing = [r for r in totals if r.drafted is not False]
    if not showing:
        return BenchVerdict(NOTHING_DRAFTED, totals[0].verdict.why)
    best = max(showing, key=lambda r: (r.verdict.word == "pays", r.speedup.value))
    kinds = [r for r in runs if r.drafter == best.drafter and r.kind != ALL_KINDS]
    paying = [f"{r.kind} {r.speedup.value:.2f}x" for r in kinds if r.verdict.word == "pays"]
    losing = [f"{r.kind} {r.speedup.value:.2f}x" for r in kinds if r.verdict.word == "does not pay"]
    gain = f"{best.drafter}: {best.speedup.value:.2f}x ({best.speedup.low:.2f}–{best.speedup.high:.2f}) over all"
    details = [gain, best.verdict.why]
    if paying:
        details.append("pays for " + ", ".join(paying))
    if losing:
        details.append("does not pay for " + ", ".join(losing))
    return BenchVerdict(best.verdict.word, "; ".join(details))


def _only_kind(runs: Sequence[Run]) -> bool:
    return len({r.kind for r in runs}) == 1
