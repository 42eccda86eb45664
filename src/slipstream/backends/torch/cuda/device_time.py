"""least_seconds: how long the device takes for some work."""

from __future__ import annotations

from collections.abc import Callable

import torch


def least_seconds(run: Callable[[], None], repeats: int) -> float:
    """The shortest of `repeats` runs, by the device's own clock."""
    times: list[float] = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return min(times)
