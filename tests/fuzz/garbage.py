"""Keeps garbage collections short: every case ends with one."""

from __future__ import annotations

import atexit
import gc


def freeze() -> None:
    """Leaves all that is loaded now out of later collections, until the process ends."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)  # libraries complain at exit of what is still there
