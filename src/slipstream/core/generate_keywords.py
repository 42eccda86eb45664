"""Keywords of `Engine.generate`: the fields of `Sampling` and `Limits`, so that neither has to be written out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypedDict, TypeVar

from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import UsageError

Settings = TypeVar("Settings", Sampling, Limits)


class GenerateKeywords(TypedDict, total=False):
    """What each means, and its default, is in `Sampling` and `Limits`."""

    max_tokens: int
    stop: str | Iterable[str]
    stop_tokens: Iterable[int]
    ignore_eos: bool
    temperature: float
    seed: int
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]


def answer_settings(
    sampling: Sampling | None, limits: Limits | None, keywords: GenerateKeywords
) -> tuple[Sampling, Limits]:
    """The settings of an answer. Raises UsageError for an unknown keyword, a wrong value, and for a field that is given
    beside the object that has it."""
    valid = GenerateKeywords.__annotations__
    unknown = next((name for name in keywords if name not in valid), None)
    if unknown:
        raise UsageError(f"generate has no keyword {unknown!r}; it takes {', '.join(valid)}")
    return _settings("sampling", Sampling, sampling, keywords), _settings("limits", Limits, limits, keywords)


def _settings(name: str, kind: type[Settings], given: Settings | None, keywords: Mapping[str, Any]) -> Settings:
    values = {field.name: keywords[field.name] for field in fields(kind) if field.name in keywords}
    if given is None:
        return kind(**values)
    if not isinstance(given, kind):
        raise UsageError(f"{name} is a {type(given).__name__}; expected {kind.__name__}(…)")
    if values:
        raise UsageError(f"{next(iter(values))} was given beside {name}=, which has it: give one of the two")
    return given
