"""Reporter: what a task says while it runs. This one is silent; the command line has one that writes to stderr."""

from __future__ import annotations


class Reporter:
    def say(self, line: str) -> None:
        """One line that is worth knowing."""

    def loading(self, what: str, share: float) -> None:
        """The share of a model that is loaded."""

    def phase(self, title: str) -> None:
        """What `progress` counts from now on, where a task does one thing after the other."""

    def progress(self, done: float, total: float, what: str) -> None:
        """How far a task is, and what it is at."""


SILENT = Reporter()
