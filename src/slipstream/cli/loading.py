"""Loading an engine from the command line's options, with progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slipstream.cli.options import LoadSettings

if TYPE_CHECKING:
    from slipstream.core.engine import Engine
    from slipstream.loading import LoadedModel, Report


def load_engine(settings: LoadSettings) -> Engine:
    """Fetches and loads what the settings name. Settings that can't work fail before anything is read."""
    from slipstream.backends.torch.model import TorchOptions
    from slipstream.core.auto_policy import make_policy
    from slipstream.drafters import parse_drafter
    from slipstream.loading import load

    make_policy(settings.policy)
    parse_drafter(settings.drafter or "none")
    options = TorchOptions(
        device=settings.device,
        dtype=settings.dtype,
        context_length=settings.context,
        threads=settings.threads,
        exact=settings.exact,
    )
    fetch(settings.model)
    if settings.draft:
        fetch(settings.draft)
    with progress() as report:
        return load(
            settings.model,
            draft=settings.draft,
            drafter=settings.drafter,
            policy=settings.policy,
            options=options,
            report=report,
        )


def load_target(spec: str) -> LoadedModel:
    from slipstream.loading import load_model

    fetch(spec)
    with progress() as report:
        return load_model(spec, report=report)


def fetch(spec: str) -> None:
    """Makes sure the model is on this machine, saying what is fetched."""
    from slipstream.models import pull

    pull(spec, lambda line: print(line, file=sys.stderr))


@contextmanager
def progress() -> Iterator[Report]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, share: None
        return
    with Progress(
        TextColumn("loading {task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"),
        console=console, transient=True,
    ) as bar:  # fmt: skip
        tasks: dict[str, TaskID] = {}

        def report(what: str, share: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=1.0)
            bar.update(tasks[what], completed=share)

        yield report
