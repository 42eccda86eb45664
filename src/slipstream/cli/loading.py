"""Loading an engine from the command line's options, with progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from slipstream.cli.options import LoadSettings

if TYPE_CHECKING:
    from slipstream.backends import BackendOptions, MachineOptions, Report
    from slipstream.backends.torch.options import TorchOptions
    from slipstream.bench.synthetic import SyntheticSettings
    from slipstream.core.engine import Engine
    from slipstream.core.verify import Verification
    from slipstream.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class Models:
    """What a command works with, loaded once: engines with other drafters are made from it in no time."""

    target: LoadedModel
    draft: LoadedModel | None
    settings: LoadSettings
    synthetic: bool = False
    verifier: str | Verification = "matching"

    @property
    def forces_acceptance(self) -> bool:
        """Drafted tokens are accepted by decree, not by the target's choice."""
        return not isinstance(self.verifier, str)

    def engine(self, drafter: str | None = None, policy: str | None = None) -> Engine:
        """An engine with a new drafter and a new policy, by default those of the settings."""
        from slipstream.loading import load

        return load(
            self.target,
            draft=self.draft,
            drafter=drafter or self.settings.drafter,
            policy=policy or self.settings.policy,
        )


def load_models(settings: LoadSettings) -> Models:
    """Fetches and loads what the settings name. Settings that can't work fail before anything is read."""
    from slipstream.doctor.preflight import explain_refusal, refuse_other_vocabulary
    from slipstream.drafters import parse_drafter
    from slipstream.errors import ModelError
    from slipstream.loading import load_model, settle
    from slipstream.policy import make_policy

    make_policy(settings.policy)
    parse_drafter(settings.drafter or "none")
    for spec in filter(None, (settings.model, settings.draft)):
        fetch(spec)
    if settings.draft:
        refuse_other_vocabulary(settings.model, settings.draft, settings.drafter)
    try:
        with progress() as report:
            target = load_model(settings.model, options_for(settings.model, settings), report)
            draft = (
                load_model(settings.draft, options_for(settings.draft, settings), report) if settings.draft else None
            )
    except ModelError as error:
        raise explain_refusal(error, settings.model, settings.draft) from error
    settle()
    return Models(target, draft, settings)


def load_synthetic(settings: LoadSettings, synthetic: SyntheticSettings) -> Models:
    """Random weights where shapes are given, the models of the settings elsewhere; acceptance as decreed."""
    from slipstream.bench.synthetic import forced_acceptance, random_model
    from slipstream.loading import settle

    if synthetic.shape is None:
        models = load_models(settings)
        target, draft = models.target, models.draft
    else:
        with progress() as report:
            options = torch_options(settings)
            target = random_model(synthetic.shape, options, partial(report, synthetic.shape))
            draft = None
            if synthetic.draft_shape:
                draft = random_model(synthetic.draft_shape, options, partial(report, synthetic.draft_shape))
        settle()
    named = replace(settings, model=f"synthetic {synthetic.shape or settings.model}")
    verifier = "matching" if synthetic.acceptance is None else forced_acceptance(synthetic.acceptance)
    return Models(target, draft, named, synthetic=True, verifier=verifier)


def options_for(spec: str, settings: LoadSettings) -> BackendOptions:
    """The options of the backend that the model goes to. Says which and why, where there was something to choose."""
    from slipstream.backends import BACKENDS, choose_backend
    from slipstream.drafters import needs_layers

    choice = choose_backend(spec, settings.backend, settings.device, needs_layers(settings.drafter or "none"))
    if choice.was_open:
        print(f"slipstream: {spec} goes to the {choice.backend} backend: {choice.reason}", file=sys.stderr)
    return BACKENDS[choice.backend].options(machine_options(settings))


def machine_options(settings: LoadSettings) -> MachineOptions:
    from slipstream.backends import MachineOptions

    return MachineOptions(
        device=settings.device,
        dtype=settings.dtype,
        context_length=settings.context,
        threads=settings.threads,
        exact=settings.exact,
        gpu_layers=settings.gpu_layers,
        kv_type=settings.kv_type,  # type: ignore[arg-type]  # checked by the backend's options
    )


def torch_options(settings: LoadSettings) -> TorchOptions:
    from slipstream.backends import BACKENDS

    return BACKENDS["torch"].options(machine_options(settings))  # type: ignore[return-value]


def load_engine(settings: LoadSettings) -> Engine:
    return load_models(settings).engine()


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
