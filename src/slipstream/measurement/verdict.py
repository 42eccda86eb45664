"""The verdict in words: does it pay, and why or why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slipstream.measurement.results import ALL_KINDS, PLAIN, BenchVerdict, RowCost, Run

_NOISE = 0.02  # a gain that a steady machine can tell
_LOW_ACCEPTANCE = 0.35
_HIGH_DRAFT_SHARE = 0.25
_ONE_BY_ONE = (
    "target forwards >= tokens ({run.target_forwards} for {run.num_tokens}) although {run.num_accepted} drafted tokens "
    "were accepted: they are verified one by one instead of in one pass"
)
_FORCED = "acceptance was forced, so the text is not comparable"
_STEEP_ROWS = 1.6  # four rows over one: beyond it the target is not memory-bound here


def judge(run: Run, cost_by_rows: Sequence[RowCost], reading_forwards: int = 0) -> Run:
    """The run with its verdict. `reading_forwards`: the target's forwards that only read prompts."""
    if run.drafter == PLAIN:
        return run
    if _is_one_by_one(run, reading_forwards):
        return replace(run, verdict=BenchVerdict("broken", _ONE_BY_ONE.format(run=run)))
    why = _why(run, cost_by_rows)
    return replace(run, verdict=BenchVerdict(_word(run), f"{why}; {_FORCED}" if run.same_text is None else why))


def _word(run: Run) -> str:
    if run.same_text is False:
        return "broken"
    if run.speedup.low > 1.0 and run.speedup.value >= 1 + _NOISE:
        return "pays"
    if run.speedup.high < 1.0 and run.speedup.value <= 1 - _NOISE:
        return "does not pay"
    return "no difference"


def _is_one_by_one(run: Run, reading_forwards: int) -> bool:
    """The tell-tale of a verifier that checks drafted tokens one at a time; a handful of tokens proves nothing."""
    is_evidence = run.num_accepted >= max(3, run.num_tokens // 8)
    return is_evidence and run.target_forwards - reading_forwards >= run.num_tokens


def _why(run: Run, cost_by_rows: Sequence[RowCost]) -> str:
    if run.same_text is False:
        return "the text differs from plain decoding: run slipstream audit for the position and the cause"
    if not run.num_drafted:
        return "nothing was drafted: the drafter had no idea, or the policy found that no draft pays"
    if _word(run) == "pays":
        return (
            f"{run.mean_accepted_length:.2f} tokens a round, {run.acceptance_rate:.0%} of the drafts accepted, "
            f"{run.draft_share:.0%} of the time drafting"
        )
    if _word(run) == "no difference" and run.speedup.value >= 1.1:
        return f"it looks like a gain, but {run.num_prompts} prompts vary too much to tell: measure more"
    causes = _causes(run, cost_by_rows)
    return "; ".join(causes) if causes else "gain and cost are about even"


def _causes(run: Run, cost_by_rows: Sequence[RowCost]) -> list[str]:
    causes = []
    if run.acceptance_rate < _LOW_ACCEPTANCE:
        causes.append(f"acceptance too low: {run.acceptance_rate:.0%} of the drafted tokens are taken")
    if run.draft_share > _HIGH_DRAFT_SHARE:
        causes.append(f"the draft is too costly: {run.draft_share:.0%} of the time goes into drafting")
    four = next((c for c in cost_by_rows if c.rows == 4), None)
    if four and four.over_one > _STEEP_ROWS:
        causes.append(
            f"scoring rows is too costly: 4 rows take {four.over_one:.1f}x one row (it is not memory-bound here)"
        )
    if run.num_drafted < run.num_tokens / 20:
        causes.append("hardly anything was drafted")
    return causes


def overall(runs: Sequence[Run]) -> BenchVerdict:
    """The sentence on top: the best drafter over all kinds, and the kinds it pays for."""
    totals = [r for r in runs if r.drafter != PLAIN and (r.kind == ALL_KINDS or _only_kind(runs))]
    if not totals:
        return BenchVerdict("no difference", "nothing was compared with plain decoding")
    broken = next((r for r in runs if r.verdict.word == "broken"), None)
    if broken:
        return BenchVerdict("broken", f"{broken.drafter} on {broken.kind}: {broken.verdict.why}")
    best = max(totals, key=lambda r: r.speedup.value)
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
