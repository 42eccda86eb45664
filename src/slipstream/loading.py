"""`load`: from the names of models to an engine that answers."""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from slipstream.backends import BACKENDS, Report
from slipstream.core.engine import Engine
from slipstream.core.policy import Policy
from slipstream.core.protocols import HeadModel, Model
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Drafter
from slipstream.core.team import members_of
from slipstream.core.turn import TURN
from slipstream.drafters import OWN, DraftSources, ModelBackedDrafter, make_drafter, names, parse_drafter
from slipstream.drafters.head.drafter import HeadDrafter
from slipstream.errors import CapacityError, DamagedModelError, SlipstreamError, UnsupportedModelError, UsageError
from slipstream.findings import BlockedError, refuse
from slipstream.load_checks import ModelToLoad, refuse_damaged, refuse_too_large
from slipstream.model_files.head_checks import check_head, is_head
from slipstream.model_files.weights import finding_of
from slipstream.models.draft_heads.files import HeadCheckpoint, open_head
from slipstream.models.sources.builtin import builtin_head
from slipstream.models.sources.spec import locate
from slipstream.models.text.tokenizer import Tokenizer, same_vocabulary
from slipstream.plugins import missing_part
from slipstream.policy import AutoPolicy, make_policy
from slipstream.policy.rehearsal import rehearse
from slipstream.policy.timed_at_load import measure_drafts, measure_rows

if TYPE_CHECKING:
    from slipstream.backends import BackendOptions


# Rows that are measured before the first answer, as far as there is time. A device that runs ahead has graphs for some
# numbers of rows (runner.BUCKETS): one row more takes as long as the next of them.
FIRST_SIZES = {False: (1, 4, 8, 2), True: (1, 4, 8, 2, 16, 17, 32, 33, 64, 65, 128, 129, 192, 193, 256)}
MEASURING_S = 0.6
_HEAD_STEPS = (1, 4)  # of the drafts of a head that are measured: what a step takes, and what a draft takes besides


@runtime_checkable
class HeadedModel(Model, Protocol):
    """A model that gives its hidden states to a head."""

    def attach_head(self, checkpoint: HeadCheckpoint) -> HeadModel: ...


def _silent(what: str, share: float) -> None:
    pass


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on a backend and the tokenizer that came with it."""

    model: Model
    tokenizer: Tokenizer
    own_head: Path | None = None  # the draft head that comes with it, where the backend can run it
    _row_costs: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def own_drafter(self) -> str:
        """How its own head drafts unless told otherwise. A device that runs ahead would have to wait for `suffix`; on a
        CPU, `suffix` helps with copied text (benchmarks/results/2026-11-18-cpu.md)."""
        return "head" if self.model.info.runs_ahead else "chained:suffix,head"

    def row_costs(self) -> dict[int, float]:
        """Seconds of a forward by rows, measured once. Empty where the cache is full."""
        if not self._row_costs:
            self._row_costs.update(_row_costs(self.model))
        return self._row_costs


def _row_costs(model: Model) -> dict[int, float]:
    """Takes a second at most where a row takes less than 0.1."""
    with suppress(CapacityError):
        sizes = FIRST_SIZES[model.info.runs_ahead]
        seconds = measure_rows(model, sizes, context=1, repeats=3, limit_s=MEASURING_S)
        return {rows: min(of_size) for rows, of_size in seconds.items()}
    return {}


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A target and what may draft for it: a model, a head by its spec, or neither."""

    target: LoadedModel
    draft: LoadedModel | None = None
    head: str | Path | None = None


def load_model(
    spec: str | Path | LoadedModel, options: BackendOptions | None = None, report: Report = _silent
) -> LoadedModel:
    """A model by its spec, on the backend whose options are given, else on the one that suits it. What is loaded
    already is returned as it is."""
    return load_pair(spec, options=options, report=report).target


def load_pair(
    target: str | Path | LoadedModel,
    draft: str | Path | LoadedModel | None = None,
    options: BackendOptions | None = None,
    draft_options: BackendOptions | None = None,
    report: Report = _silent,
) -> LoadedPair:
    """Both models; the files and the memory of both are checked before the first is read. A head is read later, by
    `engine_of`. Raises ModelError, UsageError, CapacityError."""
    head = draft if isinstance(draft, str | Path) and is_head(draft) else None
    main = _to_load(target, options)
    helper = None if draft is None or head else _to_load(draft, draft_options or options)
    wanted = [model for model in (main, helper) if isinstance(model, ModelToLoad)]
    for model in wanted:
        refuse_damaged(model.spec)
    if wanted:
        refuse_too_large(*wanted)
    return LoadedPair(_read(main, report), _read(helper, report) if helper else None, head)


def _to_load(spec: str | Path | LoadedModel, options: BackendOptions | None) -> LoadedModel | ModelToLoad:
    return spec if isinstance(spec, LoadedModel) else ModelToLoad(spec, options)


def _read(model: LoadedModel | ModelToLoad, report: Report) -> LoadedModel:
    """What is loaded already is returned as it is."""
    if isinstance(model, LoadedModel):
        return model
    TURN.check_process()
    backend = BACKENDS[model.backend]
    try:
        loaded, tokenizer = backend.load(backend.open(model.spec), model.options, report)
    except DamagedModelError as error:
        raise BlockedError([finding_of(error)]) from error
    report(loaded.info.name, 1.0)
    return LoadedModel(loaded, tokenizer, builtin_head(model.spec) if isinstance(loaded, HeadedModel) else None)


def load(
    target: str | Path | LoadedModel = "smollm2-135m",
    *,
    draft: str | Path | LoadedModel | None = None,
    drafter: str | Drafter | None = OWN,
    policy: str | int | Policy = "auto",
    options: BackendOptions | None = None,
    draft_options: BackendOptions | None = None,
    max_streams: int = 32,
    max_stall_s: float | None = None,
    report: Report = _silent,
) -> Engine:
    """An engine for `target`.

    `drafter` is a spec (`none`, `ngram`, `suffix`, `model`, `head`, `early-exit`, `translate`, `grammar`, `chained:…`,
    see `slipstream.drafters`) or a Drafter. `own` is `model`, `translate` or `head` by what the draft is; without a
    draft the head that comes with the target, on a CPU behind `suffix`; else `suffix`. `options` are a backend's own
    (`TorchOptions`, `LlamaCppOptions`); the draft takes them too, unless it has options of its own, and where there are
    none each model goes to the backend that suits it. `max_stall_s`: see `Engine`. Raises ModelError, UsageError.
    """
    plan = make_policy(policy)  # bad settings fail before gigabytes are read
    _check_parts("policy", plan, Policy)
    if isinstance(drafter, str):
        parse_drafter(drafter)
    elif drafter is not None:
        _check_parts("drafter", drafter, Drafter)
    pair = load_pair(target, draft, options, draft_options, report)
    return engine_of(pair, drafter, plan, max_streams=max_streams, max_stall_s=max_stall_s)


def engine_of(
    pair: LoadedPair,
    drafter: str | Drafter | None = OWN,
    policy: str | int | Policy = "auto",
    *,
    max_streams: int = 32,
    max_stall_s: float | None = None,
) -> Engine:
    """An engine for models that are loaded; `load` describes the others. Raises ModelError, UsageError."""
    plan, drafter = make_policy(policy), OWN if drafter is None else drafter
    main, helper, head_spec = pair.target, pair.draft, pair.head
    if helper is None and head_spec is None and names(drafter, "head", OWN):
        head_spec = main.own_head
    head = _attach_head(main, head_spec) if head_spec else None
    sources = DraftSources(
        target=main.model,
        target_texts=main.tokenizer,
        draft=helper.model if helper else None,
        head=head,
        draft_texts=helper.tokenizer if helper else None,
        same_vocabulary=helper is None or same_vocabulary(main.tokenizer, helper.tokenizer),
        own=_own_drafter(pair, head),
    )
    made = make_drafter(drafter, sources) if isinstance(drafter, str) else drafter
    if isinstance(plan, AutoPolicy) and made is not None:
        plan.expect(main.row_costs(), _draft_costs(made, helper))
        _rehearse(plan, made, main)
    return Engine(main.model, main.tokenizer, made, plan, max_streams=max_streams, max_stall_s=max_stall_s)


def _check_parts(name: str, given: object, protocol: type) -> None:
    if lacks := missing_part(given, protocol):
        kind, expected = type(given).__name__, protocol.__name__
        raise UsageError(f"{name} is a {kind}, which has no {lacks}; expected a {expected}, or the name of one")


def _own_drafter(pair: LoadedPair, head: HeadModel | None) -> str:
    if head:
        return pair.target.own_drafter if pair.head is None else "head"
    return drafter_for(pair.target, pair.draft) if pair.draft else "suffix"


def _attach_head(target: LoadedModel, spec: str | Path) -> HeadModel:
    """Raises UnsupportedModelError where the backend keeps its hidden states to itself."""
    place = locate(spec)
    if not isinstance(target.model, HeadedModel):
        raise UnsupportedModelError(
            f"{place.name} is a draft head, which reads hidden states of the target; {target.model.info.backend} does "
            "not give them: use --backend torch, or another drafter"
        )
    refuse(check_head(spec))
    checkpoint = open_head(place.path, place.name)
    with TURN.taken():
        return target.model.attach_head(checkpoint)


def _draft_costs(drafter: Drafter, helper: LoadedModel | None) -> dict[str, dict[int, float]]:
    """Forwards of the models that draft, by drafter and rows. A device takes the steps of a draft one after the other
    without being waited for, which is quicker: what one of a single row takes is then seen while drafting."""
    costs = {}
    for member in members_of(drafter):
        if isinstance(member, ModelBackedDrafter):
            measured = helper.row_costs() if helper and helper.model is member.model else _row_costs(member.model)
            least = 2 if member.model.info.extends else 1
            costs[member.name] = {rows: seconds for rows, seconds in measured.items() if rows >= least}
    return costs


def _rehearse(policy: AutoPolicy, drafter: Drafter, target: LoadedModel) -> None:
    """Heads: they take longer to begin a draft than to make it one token longer. On a device that runs ahead whole
    rounds are rehearsed. Errors are ignored here: the first answer reports them again."""
    for member in (each for each in members_of(drafter) if isinstance(each, HeadDrafter)):
        with suppress(SlipstreamError):
            if target.model.info.runs_ahead:
                policy.rehearsed(member.name, rehearse(target.model, target.tokenizer, member))
            elif member.head.extends(Sampling(), 1):
                drafts = measure_drafts(target.model, member.head, _HEAD_STEPS, repeats=5, limit_s=MEASURING_S)
                policy.drafted(member.name, drafts)


def drafter_for(target: LoadedModel, draft: LoadedModel) -> str:
    """`model` where the two share a vocabulary, else `translate`."""
    return "model" if same_vocabulary(target.tokenizer, draft.tokenizer) else "translate"


def freeze_loaded() -> None:
    """For a process that is about to decode with what it has loaded: later garbage collections, which stop decoding for
    a tenth of a second otherwise, leave out all that is there now. To be called again after loading something else."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
