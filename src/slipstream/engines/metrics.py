"""Metrics: parses the text that engines publish for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class MetricSample:
    labels: Mapping[str, str]
    value: float


class Metrics:
    """One reading. The sum of a name that is not published is None, not zero."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[MetricSample]] = {}
        for name, labels, value in _LINE.findall(text):
            try:
                sample = MetricSample(dict(_LABEL.findall(labels)), float(value))
            except ValueError:
                continue
            self._samples.setdefault(name, []).append(sample)

    def samples(self, name: str) -> list[MetricSample]:
        return self._samples.get(name, [])

    def total(self, name: str) -> float | None:
        """The sum over all labels; None if the engine does not publish it."""
        samples = self.samples(name)
        return sum(sample.value for sample in samples) if samples else None
