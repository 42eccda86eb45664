"""EngineCollector: the engine's sums as metrics, read when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from slipstream.server.live_stats import plain_tokens_per_second
from slipstream.server.scheduler import Scheduler

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class EngineCollector(Collector):
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._by_position()
        yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        stats = self._scheduler.engine.stats
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of answers that ended.", stats.num_prompt_tokens),
            ("cached_prompt_tokens", "Of them, found in the cache.", stats.num_reused),
            ("generated_tokens", "Tokens of answers.", stats.num_tokens),
            ("rounds", "Decoding steps, summed over streams.", stats.rounds),
            ("target_forwards", "Forward passes of the target, prompts included.", stats.target_forwards),
            ("drafted_tokens", "Drafted tokens that were verified.", stats.num_drafted),
            ("accepted_tokens", "Drafted tokens that were accepted.", stats.num_accepted),
        ):
            yield CounterMetricFamily(f"slipstream_{name}", text, value=value)
        phases = CounterMetricFamily("slipstream_phase_seconds", "Seconds of the engine by phase.", labels=["phase"])
        for phase in ("prefill", "draft", "score", "rest"):
            phases.add_metric([phase], getattr(stats, f"{phase}_s"))
        yield phases

    def _by_position(self) -> Iterator[Metric]:
        stats = self._scheduler.engine.stats
        for name, text, counts in (
            ("drafted_at_position", "Rounds that drafted to this depth.", stats.drafted_at),
            ("accepted_at_position", "Rounds that accepted to this depth.", stats.accepted_at),
        ):
            family = CounterMetricFamily(f"slipstream_{name}", text, labels=["position"])
            for position, count in sorted(dict(counts).items()):
                family.add_metric([str(position)], count)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        scheduler, report = self._scheduler, self._scheduler.report
        info = scheduler.engine.target.info
        speedup = report.observed_speedup or report.predicted_speedup
        for name, text, value in (
            ("streams_active", "Answers that are generated now.", scheduler.num_active),
            ("streams_max", "Most answers at the same time.", scheduler.max_streams),
            ("streams_queued", "Answers that wait for a place.", scheduler.num_queued),
            ("cache_used_tokens", "Tokens of running answers in the cache.", scheduler.engine.num_cached_tokens),
            ("draft_budget_tokens", "Recent drafted tokens per stream and round.", report.budget),
            ("speedup_estimate", "Estimated speed over plain decoding.", speedup),
            ("plain_tokens_per_second", "Estimated speed of plain decoding now.", self._plain_speed()),
        ):
            yield GaugeMetricFamily(f"slipstream_{name}", text, value=float("nan") if value is None else value)
        labels = {"model": info.name, "backend": info.backend, "device": info.device, "dtype": info.dtype}
        yield InfoMetricFamily("slipstream_model", "The model.", value=labels)

    def _plain_speed(self) -> float | None:
        return plain_tokens_per_second(self._scheduler.report, max(1, self._scheduler.num_active))
