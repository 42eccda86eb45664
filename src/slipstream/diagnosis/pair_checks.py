"""Checks of a pair: whether target, draft, workload and machine fit together."""

from __future__ import annotations

from slipstream.core.sampling import Sampling
from slipstream.findings import Finding, rule
from slipstream.model_files.model_facts import ModelFacts
from slipstream.predict.forecast import Forecast
from slipstream.predict.sizes import Sizes, is_too_large
from slipstream.predict.speed import WORTH_IT, largest_paying_batch

SHORT_CONTEXT = rule(
    "fit-draft-context", "slows", "The draft was trained for a shorter context than the workload",
    "Beyond {draft_context:,} tokens the draft is used at positions it was not trained for: almost no drafted token "
    "is accepted, but drafting still takes time. The text stays correct.",
    "Use a draft with a context of {context:,} or more, or limit the context to {draft_context:,}. Extending it with "
    "rope scaling (llama.cpp: --rope-scaling, TabbyAPI: draft_rope_alpha) helps in part.",
)  # fmt: skip
TARGET_CONTEXT = rule(
    "fit-target-context", "blocks", "The workload is longer than the target's context",
    "The target's context is {limit:,} tokens.",
    "Request at most {limit:,} tokens, or use a model with a longer context.",
)  # fmt: skip
DRAFT_TOO_LARGE = rule(
    "fit-draft-too-large", "slows", "The draft is too slow for its target",
    "A drafted token takes {ratio:.0%} of the time of a target token, so even at {acceptance:.0%} acceptance the "
    "expected speed-up is {speedup:.2f}x.",
    "Use a smaller draft (a tenth of the target or less), or a smaller quantisation of it, or draft without a model: "
    "--drafter suffix.",
)  # fmt: skip
NO_GAIN = rule(
    "fit-no-gain", "slows", "The predicted speed-up is below 5 %",
    "Predicted: {plain:.1f} tokens/s plain and {speculative:.1f} tokens/s with {n_draft} drafted tokens per step. "
    "Drafting and verifying take about as much time as they save.",
    "Run without this draft; the doctor's notes list what helps here. Measure before you decide: slipstream bench",
)  # fmt: skip
HOT_SAMPLING = rule(
    "fit-high-temperature", "slows", "A high temperature lowers acceptance",
    "At a higher temperature, two models choose the same token less often.",
    "If the task allows it, use a temperature of 0.7 or less, or --top-p 0.9. Draft fewer tokens per step.",
)  # fmt: skip
PENALTIES = rule(
    "fit-penalties", "slows", "Penalties lower acceptance",
    "Penalties change the target's choice with every generated token. A draft without the same penalties proposes "
    "tokens that the target now avoids.",
    "Leave penalties at 1 (repetition) and 0 (presence, frequency), or set the same penalties for the draft if the "
    "engine supports it.",
)  # fmt: skip
BATCH = rule(
    "fit-batch-size", "slows", "Too many concurrent streams for speculation",
    "With {batch} streams the machine has no spare compute for drafted tokens: speculation is expected to pay off up "
    "to about {limit} streams here.",
    "Turn speculation off above {limit} streams, or use a policy that does so automatically (Slipstream: --policy "
    "auto).",
)  # fmt: skip


ROPE = rule(
    "fit-rope-scaling",
    "note",
    "The workload is longer than a model's original context",
    "{name} was trained for {original:,} tokens and extended by rope scaling ({scaling}). Beyond {original:,} tokens "
    "its predictions get worse: as a draft it is accepted less often.",
    "Nothing to do. Measure with texts of that length (slipstream bench --prompts FILE), or use a model that was "
    "trained for it.",
)


def check_rope(facts: ModelFacts, context: int) -> list[Finding]:
    """Whether a text of `context` tokens needs the model's rope scaling."""
    original = facts.original_context_length
    if not facts.rope_scaling or original is None or context <= original:
        return []
    evidence = f"{facts.name}: {context:,} tokens needed, {original:,} before scaling"
    return [ROPE.finding(evidence, name=facts.name, original=original, scaling=facts.rope_scaling)]


def check_context(target: Sizes, draft: Sizes | None, context: int) -> list[Finding]:
    """Compares the workload's context with those of both models. A context of 0 is unknown and passes."""
    findings = []
    if 0 < target.context_length < context:
        evidence = f"{target.name}: {target.context_length:,} tokens; the workload needs {context:,}"
        findings.append(TARGET_CONTEXT.finding(evidence, limit=target.context_length))
    if draft and 0 < draft.context_length < context:
        evidence = f"{draft.name}: trained for {draft.context_length:,} tokens; the workload has {context:,}"
        findings.append(SHORT_CONTEXT.finding(evidence, draft_context=draft.context_length, context=context))
    return findings


def check_pair(target: Sizes, draft: Sizes, expected: Forecast) -> list[Finding]:
    """Whether the draft is small enough to pay off."""
    prediction = expected.prediction
    if prediction is None or expected.draft is None:
        return []
    if prediction.speedup >= WORTH_IT and not is_too_large(target, draft):
        return []
    ours, theirs = expected.target, expected.draft
    ratio = theirs.forward_s(1) / ours.forward_s(1)
    evidence = f"{draft.name} {_gb(theirs.weight_bytes)}, {target.name} {_gb(ours.weight_bytes)}"
    if ratio > 0.4 or is_too_large(target, draft):
        return [
            DRAFT_TOO_LARGE.finding(evidence, ratio=ratio, acceptance=prediction.acceptance, speedup=prediction.speedup)
        ]
    return [
        NO_GAIN.finding(
            evidence, plain=prediction.plain_tokens_per_s, speculative=prediction.tokens_per_s,
            n_draft=prediction.n_draft,
        )
    ]  # fmt: skip


def check_sampling(sampling: Sampling) -> list[Finding]:
    """Settings that lower acceptance."""
    findings = []
    if sampling.temperature > 1.0:
        findings.append(HOT_SAMPLING.finding(f"temperature {sampling.temperature}"))
    if sampling.uses_history:
        findings.append(
            PENALTIES.finding(
                f"repetition {sampling.repetition_penalty}, presence {sampling.presence_penalty}, "
                f"frequency {sampling.frequency_penalty}"
            )
        )
    return findings


def check_batch(target: Sizes, draft: Sizes, expected: Forecast, batch: int) -> list[Finding]:
    """Whether speculation still pays off with this many streams at the same time."""
    if expected.prediction is None or expected.draft is None:
        return []
    limit = largest_paying_batch(expected.target, expected.draft, expected.prediction.acceptance)
    if limit == 0 or batch <= limit:
        return []
    return [BATCH.finding(f"{batch} streams, {target.name} with {draft.name}", batch=batch, limit=limit)]


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
