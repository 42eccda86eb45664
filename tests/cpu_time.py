"""Processor time of this process and of its children that have ended. Limits in tests count it, not wall time: a busy
machine fails none of them. They are three times what a slow core takes, or more: what should fail takes minutes."""

from __future__ import annotations

import os


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
