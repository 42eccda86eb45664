"""Models: what a task works with, loaded once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from slipstream.backends import BACKENDS, MachineOptions, choose_backend
from slipstream.core.engine import Engine
from slipstream.core.verify import Verifier
from slipstream.diagnosis.preflight import refuse_other_target, refuse_other_vocabulary
from slipstream.drafters import needs_layers, parse_drafter
from slipstream.loading import LoadedPair, engine_of, freeze_loaded, load_pair
from slipstream.measurement.synthetic import SyntheticSettings, forced_acceptance, random_model
from slipstream.model_files.head_checks import is_head
from slipstream.models import pull
from slipstream.policy import make_policy
from slipstream.tasks.options import ModelOptions
from slipstream.tasks.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from slipstream.backends import BackendOptions


@dataclass(frozen=True, slots=True)
class Models:
    """Loaded models: engines with other drafters are made from them in no time."""

    pair: LoadedPair
    options: ModelOptions
    synthetic: bool = False
    verifier: str | Verifier = "matching"

    @property
    def forces_acceptance(self) -> bool:
        """Drafted tokens are accepted with a fixed chance, not by the target's choice."""
        return not isinstance(self.verifier, str)

    def engine(
        self,
        drafter: str | None = None,
        policy: str | None = None,
        max_streams: int = 32,
        max_stall_s: float | None = None,
    ) -> Engine:
        """An engine with a new drafter and a new policy, by default those of the options."""
        return engine_of(
            self.pair,
            drafter or self.options.drafter,
            policy or self.options.policy or "auto",
            max_streams=max_streams,
            max_stall_s=max_stall_s,
        )


def load_models(options: ModelOptions, machine: MachineOptions | None = None, reporter: Reporter = SILENT) -> Models:
    """Fetches and loads what the options name, slipstream.yaml included. What can't work fails before anything is
    read."""
    chosen, machine = options.resolved(), machine or MachineOptions()
    make_policy(chosen.policy or "auto")
    parse_drafter(chosen.drafter or "none")
    for spec in filter(None, (chosen.model, chosen.draft)):
        pull(spec, reporter.say)
    draft = chosen.draft
    if draft and is_head(draft):
        refuse_other_target(chosen.name, draft)
        chosen = replace(chosen, draft=None, drafter=chosen.drafter or "head")
    elif draft:
        refuse_other_vocabulary(chosen.name, draft, chosen.drafter)
    backend = _backend_options(chosen.name, chosen, machine, reporter)
    of_draft = _backend_options(chosen.draft, chosen, machine, reporter) if chosen.draft else None
    pair = load_pair(chosen.name, draft, backend, of_draft, reporter.loading)
    freeze_loaded()
    return Models(pair, chosen)


def load_engine(options: ModelOptions, machine: MachineOptions | None = None, reporter: Reporter = SILENT) -> Engine:
    return load_models(options, machine, reporter).engine()


def load_synthetic(
    options: ModelOptions, synthetic: SyntheticSettings, machine: MachineOptions, reporter: Reporter
) -> Models:
    """Random weights where shapes are given, the models of the options elsewhere; acceptance as given."""
    if synthetic.shape is None:
        pair = load_models(options, machine, reporter).pair
    else:
        torch_options = BACKENDS["torch"].options(machine)
        target = random_model(synthetic.shape, torch_options, partial(reporter.loading, synthetic.shape))  # type: ignore[arg-type]
        draft = None
        if synthetic.draft_shape:
            draft = random_model(synthetic.draft_shape, torch_options, partial(reporter.loading, synthetic.draft_shape))  # type: ignore[arg-type]
        pair = LoadedPair(target, draft)
        freeze_loaded()
    chosen = options.resolved()
    named = replace(chosen, model=f"synthetic {synthetic.shape or chosen.model}")
    verifier = "matching" if synthetic.acceptance is None else forced_acceptance(synthetic.acceptance)
    return Models(pair, named, synthetic=True, verifier=verifier)


def _backend_options(spec: str, options: ModelOptions, machine: MachineOptions, reporter: Reporter) -> BackendOptions:
    """The options of the backend that the model goes to. Says which and why, where there was something to choose."""
    wanted = options.backend or "auto"
    choice = choose_backend(spec, wanted, machine.device, needs_layers(options.drafter or "none"))
    if choice.was_open:
        reporter.say(f"{spec} uses the {choice.backend} backend: {choice.reason}")
    return BACKENDS[choice.backend].options(machine)
