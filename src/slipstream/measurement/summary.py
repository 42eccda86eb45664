"""Turns samples into the figures of a Run: one run per drafter and kind of text, and one over all kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.measurement.intervals import median_interval
from slipstream.measurement.ratio import ratio
from slipstream.measurement.results import ALL_KINDS, PLAIN, BenchVerdict, Interval, RowCost, Run
from slipstream.measurement.samples import PromptSample
from slipstream.measurement.verdict import judge


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What the samples are compared with."""

    weight_bytes: int  # bytes read by one forward pass of the target
    cost_by_rows: Sequence[RowCost]
    forced_acceptance: bool = False  # acceptance was forced, so the text can't be compared


def summarise(samples: Sequence[PromptSample], yardstick: Yardstick) -> list[Run]:
    """The runs of all measured drafters, plain decoding first."""
    drafters = sorted({s.generator for s in samples}, key=lambda name: (name != PLAIN, name))
    kinds = list(dict.fromkeys(s.prompt.kind for s in samples))
    wanted = [*kinds, ALL_KINDS] if len(kinds) != 1 else kinds
    return [
        _run(drafter, kind, samples, yardstick)
        for drafter in drafters
        for kind in wanted
        if any(_matches(s, drafter, kind) for s in samples)
    ]


def _matches(sample: PromptSample, drafter: str, kind: str) -> bool:
    return sample.generator == drafter and kind in (sample.prompt.kind, ALL_KINDS)


def _run(drafter: str, kind: str, samples: Sequence[PromptSample], yardstick: Yardstick) -> Run:
    own = [s for s in samples if _matches(s, drafter, kind)]
    pairs = _pairs(own, [s for s in samples if _matches(s, PLAIN, kind)])
    tokens, rounds = _total(own, "num_tokens"), _total(own, "rounds")
    drafted, accepted = _total(own, "num_drafted"), _total(own, "num_accepted")
    draft_s, score_s, rest_s = (_total(own, name) for name in ("draft_s", "score_s", "rest_s"))
    is_forced = yardstick.forced_acceptance and drafter != PLAIN
    busy_s = draft_s + score_s + rest_s
    speedup = _speedup(
        [ratio(mine.tokens_per_s, plain.tokens_per_s) for mine, plain in pairs if plain.tokens_per_s > 0]
    )
    theory = _theoretical(own, [plain for _, plain in pairs])
    speed = median_interval([s.tokens_per_s for s in own])
    run = Run(
        drafter=drafter,
        kind=kind,
        num_prompts=len({s.prompt.id for s in own}),
        num_passes=len({s.pass_number for s in own}),
        num_tokens=int(tokens),
        target_forwards=int(_total(own, "target_forwards")),
        num_drafted=int(drafted),
        num_accepted=int(accepted),
        tokens_per_s=speed.value,
        tokens_per_s_interval=speed,
        speedup=speedup,
        ttft_s=median_interval([s.answers[0].stats.ttft_s for s in own]).value,
        end_to_end_s=median_interval([s.end_to_end_s for s in own]).value,
        acceptance_rate=ratio(accepted, drafted),
        mean_accepted_length=ratio(tokens, rounds),
        accepted_by_position=_by_position(own),
        draft_share=ratio(draft_s, busy_s),
        score_share=ratio(score_s, busy_s),
        rest_share=ratio(rest_s, busy_s),
        theoretical_speedup=theory,
        of_theoretical=ratio(speedup.value, theory),
        read_gb_per_s=ratio(yardstick.weight_bytes * rounds, score_s) / 1e9,
        same_text=None if is_forced else all(mine.same_text_as(plain) for mine, plain in pairs),
        verdict=BenchVerdict("baseline", "plain decoding"),
        drafted=True if drafted else False if all(s.drafts_counted for s in own) else None,
    )
    plain = [plain for _, plain in pairs]
    reading = int(_total(plain, "target_forwards") - _total(plain, "num_tokens"))
    return judge(run, yardstick.cost_by_rows, max(reading, 0))


def _pairs(own: list[PromptSample], plain: list[PromptSample]) -> list[tuple[PromptSample, PromptSample]]:
    """Each sample with plain decoding of the same prompt in the same pass."""
    by_key = {(s.prompt.id, s.pass_number): s for s in plain}
    return [(s, by_key[key]) for s in own if (key := (s.prompt.id, s.pass_number)) in by_key]


def _speedup(ratios: list[float]) -> Interval:
    return median_interval(ratios) if ratios else Interval(1.0, 1.0, 1.0)


def _total(samples: Sequence[PromptSample], counter: str) -> float:
    return sum(s.total(counter) for s in samples)


def _theoretical(own: list[PromptSample], plain: list[PromptSample]) -> float:
    """Mean accepted length x plain round / (drafting + scoring of a round). 0 if unknown."""
    rounds, plain_rounds = _total(own, "rounds"), _total(plain, "rounds")
    models_s = _total(own, "draft_s") + _total(own, "score_s")
    plain_round_s = ratio(_total(plain, "score_s"), plain_rounds)
    return ratio(ratio(_total(own, "num_tokens"), rounds) * plain_round_s, ratio(models_s, rounds))


def _by_position(samples: Sequence[PromptSample]) -> list[float]:
    """For each depth: of the rounds that drafted to this depth, the share that accepted to it. Empty if nothing was
    drafted.
    """
    drafted, accepted = Counter[int](), Counter[int]()
    for sample in samples:
        for answer in sample.answers:
            drafted.update(answer.stats.drafted_at)
            accepted.update(answer.stats.accepted_at)
    return [ratio(accepted[depth], drafted[depth]) for depth in sorted(drafted) if drafted[depth]]
