"""Messenger: what a training run says, and whether it was asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Messenger:
    say: Callable[[str], None] = lambda line: None
    progress: Callable[[float, float, str], None] = lambda done, total, what: None
    phase: Callable[[str], None] = lambda title: None
    stop_asked: bool = False  # Ctrl-C was pressed once, or SIGTERM came: finish what can't be left half done

    @contextmanager
    def catching_interrupts(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM asks to stop, the second one stops at once. Other threads than the main
        one get none."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True
            self.say("stopping after this step; press Ctrl-C again to stop at once")

        before = {number: signal.signal(number, on_interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def time_left(seconds: float) -> str:
    return f"{max(seconds, 0):.0f} s left" if seconds < 120 else f"{seconds / 60:.0f} min left"
