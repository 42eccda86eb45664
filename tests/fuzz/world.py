"""World: a target model with all that a case needs around it, and how to see what it has not given back."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from fuzz.oracle import Logits
from fuzz.request import Bounds
from slipstream.core.engine import EngineTokenizer
from slipstream.core.protocols import Model
from slipstream.drafters import DraftSources


@dataclass(frozen=True)
class World:
    """`logits` opens the oracle's own view of the target: another instance of the same weights, or a pure function.

    `sources` are what drafters are made from, by kind of draft model: `same` (a draft of the target's vocabulary),
    `other` (of another one), `nan` (one weight is not a number).
    """

    name: str
    target: Model
    tokenizer: EngineTokenizer
    logits: Callable[[], AbstractContextManager[Logits]]
    bounds: Bounds
    sources: dict[str, DraftSources]
    specs: tuple[str, ...]  # drafters that can be made here, as `kind:spec`
    is_roomy: bool = True  # the cache holds all streams of a case at once
    is_thread_safe: bool = True  # may be used by several engines in several threads
    capacity: float = math.inf  # tokens of the cache; a request for more may fail with CapacityError
    engine_options: dict[str, int] = field(default_factory=dict)

    def models(self) -> list[Model]:
        """The target and all draft models, each once."""
        found = [self.target, *(s.draft for s in self.sources.values() if s.draft is not None)]
        return list({id(model): model for model in found}.values())


def num_open(model: Model) -> int:
    """Sequences that are open in a model's cache."""
    sequences = getattr(model, "open_sequences", None)
    return len(sequences) if sequences is not None else int(model.num_open)  # type: ignore[attr-defined]


def leaks(model: Model) -> list[str]:
    """What is still held in a model that nobody uses any more. Drops its remembered prompts."""
    found = [f"{num_open(model)} open sequences in {model.info.name}"] if num_open(model) else []
    model.forget_prompts()
    pool = getattr(model, "_pool", None)  # the torch backend's pages
    if pool is not None:
        if len(pool._free) != pool.num_pages or len(set(pool._free)) != pool.num_pages:
            found.append(f"{len(set(pool._free))} of {pool.num_pages} pages are free in {model.info.name}")
        if any(pool._users):
            found.append(f"{sum(map(bool, pool._users))} pages have users in {model.info.name}")
    return found


def models_inside(thing: object, depth: int = 4) -> list[Model]:
    """Models that an object holds, however deep: draft models cut out of others are not in the world's sources."""
    if depth == 0 or thing is None:
        return []
    if hasattr(thing, "score") and hasattr(thing, "forget_prompts"):
        return [thing]  # type: ignore[list-item]
    parts = list(thing) if isinstance(thing, list | tuple) else list(getattr(thing, "__dict__", {}).values())
    found = [model for part in parts for model in models_inside(part, depth - 1)]
    return list({id(model): model for model in found}.values())
