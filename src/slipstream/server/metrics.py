"""ServerMetrics: requests and latencies in Prometheus' format, noted as they happen."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_REQUEST_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class ServerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "slipstream_requests",
            "Requests by status; 499: the client left.",
            ["endpoint", "status"],
            registry=self.registry,
        )
        self._request_s = Histogram(
            "slipstream_request_seconds",
            "Whole requests, waiting included.",
            ["endpoint"],
            buckets=_REQUEST_S,
            registry=self.registry,
        )
        self._first_token_s = self._histogram(
            "time_to_first_token", "From the request to its first token, waiting included.", _FIRST_TOKEN_S
        )
        self._token_s = self._histogram("inter_token", "Between tokens of one answer.", _TOKEN_S)
        self._queue_s = self._histogram("queue", "Waiting for a place.", _FIRST_TOKEN_S)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"slipstream_{name}_seconds", text, buckets=buckets, registry=self.registry)

    def started(self, waited_s: float) -> None:
        self._queue_s.observe(waited_s)

    def first_token(self, seconds: float) -> None:
        self._first_token_s.observe(seconds)

    def tokens(self, count: int, seconds: float) -> None:
        """Tokens that came at the same time, `seconds` after the one before: they share them."""
        for _ in range(count):
            self._token_s.observe(seconds / count)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        self._requests.labels(endpoint, str(status)).inc()
        self._request_s.labels(endpoint).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
