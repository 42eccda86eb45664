"""PromptPace: how many prompt tokens a round may read while other streams decode, so that they don't wait for long."""

from __future__ import annotations

_LEAST_ROWS = 16  # fewer make reading a prompt slow without making the round much shorter
_FIRST_ROWS = 32  # until a round with a prompt was measured
_WEIGHT = 0.3  # of the newest round in the mean


class PromptPace:
    """`max_stall_s`: seconds that a round with prompts may take. None: no limit."""

    def __init__(self, max_stall_s: float | None = None) -> None:
        self._max_stall_s = max_stall_s
        self._row_s: float | None = None  # recent mean seconds of a row in rounds that read prompts

    def rows(self, most: int) -> int:
        """Prompt tokens of the next round, over all streams."""
        if self._max_stall_s is None:
            return most
        if self._row_s is None:
            return min(_FIRST_ROWS, most)
        return max(min(int(self._max_stall_s / self._row_s), most), min(_LEAST_ROWS, most))

    def record(self, rows: int, seconds: float) -> None:
        """Records a round that read prompts. Short ones are ignored: much of their time does not depend on rows."""
        if self._max_stall_s is not None and rows >= _LEAST_ROWS and seconds > 0:
            row_s = seconds / rows
            self._row_s = row_s if self._row_s is None else (1 - _WEIGHT) * self._row_s + _WEIGHT * row_s
