"""Drafters by name. A new one is a file here and a line in `DRAFTERS`, or an entry point of another package.

A spec is a name, with options in brackets where it has any: `ngram`, `model(p_min=0.3,n_parallel=3)`,
`chained:suffix+model`. `own` is the default.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from slipstream.core.protocols import HeadModel, Model
from slipstream.core.stream import Drafter
from slipstream.core.team import DrafterTeam, members_of
from slipstream.drafters.vocabulary import TokenTexts
from slipstream.errors import UsageError
from slipstream.plugins import also_installed, find_plugin


@runtime_checkable
class ModelBackedDrafter(Drafter, Protocol):
    """A drafter that runs a model: a forward pass for each depth of a draft."""

    @property
    def model(self) -> Model: ...


@runtime_checkable
class CuttableModel(Model, Protocol):
    """A model that can stop after its first layers, or generate only the first ids of its vocabulary."""

    @property
    def num_layers(self) -> int: ...

    def first_layers(self, count: int) -> Model: ...

    def first_tokens(self, count: int) -> Model: ...


@dataclass(frozen=True, slots=True)
class DraftSources:
    """What a drafter may be made from."""

    target: Model
    target_texts: TokenTexts
    draft: Model | None = None
    head: HeadModel | None = None
    draft_texts: TokenTexts | None = None
    same_vocabulary: bool = True  # of target and draft
    own: str = "suffix"  # the spec that `own` stands for

    def draft_model(self, drafter: str) -> Model:
        if self.draft is None:
            raise UsageError(f"the drafter {drafter} needs a draft model: name one with draft= or --draft")
        return self.draft


@dataclass(frozen=True, slots=True)
class EarlyExitOptions:
    layers: int = 0  # 0: a quarter of the target's
    p_min: float = 0.0


@dataclass(frozen=True, slots=True)
class TranslateOptions:
    p_min: float = 0.0
    min_overlap: float = 0.5  # of the target's tokens; below it drafts are retokenised text


@dataclass(frozen=True, slots=True)
class NoOptions:
    pass


Maker = Callable[[DraftSources, dict[str, str]], Drafter]
Options = TypeVar("Options")


def _ngram(sources: DraftSources, options: dict[str, str]) -> Drafter:
    from slipstream.drafters.ngram import NgramDrafter, NgramOptions

    return NgramDrafter(typed(NgramOptions, options, "ngram"))


def _suffix(sources: DraftSources, options: dict[str, str]) -> Drafter:
    from slipstream.drafters.suffix import SuffixDrafter, SuffixOptions

    return SuffixDrafter(typed(SuffixOptions, options, "suffix"))


def _model(sources: DraftSources, options: dict[str, str]) -> Drafter:
    from slipstream.drafters.model import DraftModelDrafter, DraftModelOptions
    from slipstream.drafters.vocabulary import SameVocabulary

    draft = sources.draft_model("model")
    if not sources.same_vocabulary:
        raise UsageError(
            f"{draft.info.name} and {sources.target.info.name} have different vocabularies, so their token ids don't "
            "mean the same: use the drafter translate, or a draft of the target's family"
        )
    settings = typed(DraftModelOptions, options, "model")
    if settings.head:
        if not isinstance(draft, CuttableModel):
            raise UsageError(f"model(head=…) needs a backend that can cut a model's head; {draft.info.backend} cannot")
        draft = draft.first_tokens(settings.head)
    return DraftModelDrafter(draft, settings, SameVocabulary(sources.target.info.vocab_size))


def _head(sources: DraftSources, options: dict[str, str]) -> Drafter:
    from slipstream.drafters.head.drafter import HeadDrafter, HeadOptions

    if sources.head is None:
        raise UsageError("the drafter head needs a head that was trained for the target: name its folder with --draft")
    return HeadDrafter(sources.head, sources.target.info.vocab_size, typed(HeadOptions, options, "head"))


def _early_exit(sources: DraftSources, options: dict[str, str]) -> Drafter:
    from slipstream.drafters.model import DraftModelDrafter, DraftModelOptions

    settings = typed(EarlyExitOptions, options, "early-exit")
    target = sources.target
    if not isinstance(target, CuttableModel):
        raise UsageError(
            f"early-exit needs a backend that can stop after some layers; {target.info.backend} cannot: use --backend "
            "torch, or another drafter"
        )
    layers = settings.layers or max(1, target.num_layers // 4)
    return DraftModelDrafter(target.first_layers(layers), DraftModelOptions(p_min=settings.p_min), name="early-exit")


def _translate(sources: DraftSources, options: dict[str, str]) -> Drafter:
    from slipstream.drafters.model import DraftModelDrafter, DraftModelOptions
    from slipstream.drafters.retokenise import RetokenisingDrafter
    from slipstream.drafters.vocabulary import SharedTokens

    settings = typed(TranslateOptions, options, "translate")
    draft = sources.draft_model("translate")
    assert sources.draft_texts is not None
    shared = SharedTokens(sources.draft_texts, sources.target_texts, sources.target.info.vocab_size)
    if shared.overlap < settings.min_overlap:
        return RetokenisingDrafter(draft, sources.draft_texts, sources.target_texts)
    return DraftModelDrafter(draft, DraftModelOptions(p_min=settings.p_min), shared, name="translate")


def _grammar(sources: DraftSources, options: dict[str, str]) -> Drafter:
    from slipstream.drafters.grammar import GrammarDrafter

    typed(NoOptions, options, "grammar")
    return GrammarDrafter()


def _own(sources: DraftSources, options: dict[str, str]) -> Drafter:
    typed(NoOptions, options, OWN)
    drafter = make_drafter(sources.own, sources)
    assert drafter is not None
    return drafter


def _chained(sources: DraftSources, options: dict[str, str]) -> Drafter:
    raise UsageError("chained names its drafters after a colon, for example chained:suffix+model")


OWN = "own"
DRAFTERS: dict[str, Maker] = {
    OWN: _own,
    "ngram": _ngram,
    "suffix": _suffix,
    "model": _model,
    "head": _head,
    "early-exit": _early_exit,
    "translate": _translate,
    "grammar": _grammar,
    "chained": _chained,
}
_SPEC = re.compile(r"(?P<name>[\w-]+)(?:\((?P<options>[^()]*)\))?")


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A drafter's name and options, and the members of a chained one."""

    name: str
    options: dict[str, str] = dataclasses.field(default_factory=dict)
    members: tuple[DrafterSpec, ...] = ()


def parse_drafter(spec: str) -> DrafterSpec:
    """Raises UsageError for an unknown name or a malformed option; needs no model for that."""
    if spec.startswith("chained:"):
        members = _split(spec.removeprefix("chained:"), r"[,+]")  # with + also in a list of drafters
        return DrafterSpec("chained", members=tuple(map(parse_drafter, members)))
    match = _SPEC.fullmatch(spec.strip())
    if match is None or (match["name"] != "none" and _find_maker(match["name"]) is None):
        known = f"{', '.join(DRAFTERS)}{also_installed('drafter')}"
        raise UsageError(f"unknown drafter {spec!r}; expected none, {known}")
    return DrafterSpec(match["name"], _parse_options(match["options"] or "", spec))


def _parts_of(spec: str) -> tuple[DrafterSpec, ...]:
    """The drafter itself, and the members of a chained one."""
    parsed = parse_drafter(spec)
    return (parsed, *parsed.members)


def _find_maker(name: str) -> Maker | None:
    """From Slipstream's own drafters, else from those of other packages."""
    plugin = None if name in DRAFTERS else find_plugin("drafter", name)
    return partial(plugin.make, Drafter) if plugin else DRAFTERS.get(name)


def needs_layers(spec: str) -> bool:
    """Whether the drafter asks a backend for parts of a model: its first layers, or a smaller head."""
    return names(spec, "early-exit", "head") or any("head" in part.options for part in _parts_of(spec))


def names(drafter: str | Drafter, *wanted: str) -> bool:
    """Whether a spec has one of these drafters."""
    return isinstance(drafter, str) and any(part.name in wanted for part in _parts_of(drafter))


def make_drafter(spec: str, sources: DraftSources) -> Drafter | None:
    """The drafter a spec names; None for `none`. Raises UsageError for an unknown name or option."""
    return _make(parse_drafter(spec), sources)


def _make(spec: DrafterSpec, sources: DraftSources) -> Drafter | None:
    if spec.name == "none":
        return None
    if spec.members:
        drafter: Drafter = DrafterTeam([one for part in spec.members for one in members_of(_make(part, sources))])
        return drafter
    maker = _find_maker(spec.name)
    assert maker is not None  # by parse_drafter
    return maker(sources, dict(spec.options))


def split_list(text: str) -> list[str]:
    """Splits at commas outside brackets."""
    return _split(text, ",")


def _split(text: str, at: str) -> list[str]:
    return [part.strip() for part in re.split(rf"{at}(?![^(]*\))", text) if part.strip()]


def _parse_options(text: str, spec: str) -> dict[str, str]:
    options = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"{spec!r}: {part!r} is no option; expected name=value")
        options[key.strip()] = value.strip()
    return options


def typed(kind: type[Options], options: dict[str, str], drafter: str) -> Options:
    """An options dataclass from text. Raises UsageError for an unknown key or a value of the wrong type."""
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in fields:
            valid = ", ".join(fields) or "none"
            raise UsageError(f"the drafter {drafter} has no option {key!r}; it has {valid}")
        convert: type = type(fields[key].default)
        try:
            values[key] = convert(text)
        except ValueError:
            raise UsageError(f"{drafter}: {key}={text!r} is not of type {convert.__name__}") from None
    return kind(**values)
