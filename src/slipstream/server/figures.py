"""The figures of one answer: tokens used, and what speculation did for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.core.policy import PolicyReport
from slipstream.core.stats import Stats
from slipstream.server.scheduler import Job


def usage(jobs: Sequence[Job], num_prompts: int) -> dict[str, Any]:
    """As in OpenAI's API. The choices of one prompt share it, so it counts once."""
    stats = [job.stream.stats for job in jobs if job.stream]
    per_prompt = stats[:: max(1, len(jobs) // num_prompts)]
    prompt = sum(one.num_prompt_tokens for one in per_prompt)
    answers = sum(one.num_tokens for one in stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answers,
        "total_tokens": prompt + answers,
        "prompt_tokens_details": {"cached_tokens": sum(one.num_reused for one in per_prompt)},
    }


def speculation(jobs: Sequence[Job], report: PolicyReport) -> dict[str, Any]:
    """The extension field `slipstream`, over all choices of the answer."""
    total = _sum([job.stream.stats for job in jobs if job.stream])
    deepest = max(total.drafted_at, default=0)
    return {
        "drafted": total.num_drafted,
        "accepted": total.num_accepted,
        "rounds": total.rounds,
        "mean_accepted_length": round(total.mean_accepted_length, 3),
        "accepted_by_position": [total.accepted_at[depth] for depth in range(1, deepest + 1)],
        "drafted_by_position": [total.drafted_at[depth] for depth in range(1, deepest + 1)],
        "tokens_per_second": round(total.tokens_per_s, 2),
        "speedup_estimate": _speedup(total, report),
        "policy": _reason(jobs, total, report),
    }


def _sum(parts: Sequence[Stats]) -> Stats:
    if len(parts) == 1:
        return parts[0]
    total = Stats()
    for name in ("num_tokens", "rounds", "num_drafted", "num_accepted", "draft_s", "score_s", "rest_s"):
        setattr(total, name, sum(getattr(part, name) for part in parts))
    for part in parts:
        total.drafted_at.update(part.drafted_at)
        total.accepted_at.update(part.accepted_at)
        total.drafter_error = total.drafter_error or part.drafter_error
    total.ttft_s = min((part.ttft_s for part in parts), default=0.0)
    total.total_s = max((part.total_s for part in parts), default=0.0)
    return total


def _speedup(total: Stats, report: PolicyReport) -> float | None:
    """Over plain decoding. None if the policy has not measured it."""
    if not total.num_drafted:
        return 1.0
    estimate = report.observed_speedup or report.predicted_speedup
    return round(estimate, 3) if estimate else None


def _reason(jobs: Sequence[Job], total: Stats, report: PolicyReport) -> str:
    if jobs[0].call.drafter is None:
        return "speculation is off for this request"
    return total.drafter_error or report.reason
