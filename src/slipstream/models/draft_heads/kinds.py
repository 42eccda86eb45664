"""Kinds of draft heads: what a folder has, told by its configuration and its tensors.

EAGLE-3 heads can be run. The others are known by name: they are refused with a sentence that says what they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import ModelError, UnsupportedModelError
from slipstream.models.files import read_optional_config
from slipstream.models.tensors import Shape

EAGLE3 = "EAGLE-3"
OLDER_EAGLE = "EAGLE-1 or EAGLE-2"
_INSTEAD = "Use an EAGLE-3 head for the same target, or make one: slipstream train --target TARGET."
# There are whole models named Eagle, so the name alone is no mark.
_EAGLE_CLASSES = ("causallmeagle", "eaglespeculator", "eaglemodel", "eaglellama", "eaglemistral", "eagleqwen")


@dataclass(frozen=True, slots=True)
class HeadKind:
    """The marks of one kind."""

    name: str
    runs_in: str = ""  # engines that run such heads
    types: tuple[str, ...] = ()  # values of speculators_model_type, and of model_type
    classes: tuple[str, ...] = ()  # parts of model_type or architectures, in lower case
    keys: tuple[str, ...] = ()  # of config.json
    tensors: str = "(?!)"  # names of tensors, as a regular expression


# The first kind with a mark counts, so that a name stands before the names it contains.
KINDS = (
    HeadKind("Medusa", "vLLM", (), ("medusa",), ("medusa_num_heads",), r"medusa|\d+\.\d+\.linear\.weight"),
    HeadKind("Hydra", "", (), (), ("hydra_num_heads", "hydra_num_layers"), "hydra"),
    HeadKind("DFlash", "vLLM and SGLang", ("dflash", "dflash2"), ("dflash",), ("dflash_config",)),
    HeadKind(
        "P-EAGLE",
        "vLLM",
        ("peagle",),
        ("peagle", "p_eagle"),
        ("parallel_drafting", "ptd_token_id"),
        "mask_hidden",
    ),
    HeadKind("MTP", "vLLM and SGLang", ("mtp",), ("mtp", "nextn"), (), r"(.*\.)?(mtp\.|eh_proj\.)"),
    HeadKind("MLP speculator", "vLLM", ("mlp", "mlp_speculator"), ("mlp_speculator", "mlpspeculator")),
    HeadKind(EAGLE3, "", ("eagle3",), ("eagle3",), ("draft_vocab_size", "eagle_config")),
    HeadKind(OLDER_EAGLE, "vLLM and SGLang", ("eagle",), _EAGLE_CLASSES),
)


def kind_in_config(values: Mapping[str, Any]) -> str | None:
    """The kind of head that a config.json describes; None if it says nothing of heads."""
    stated = values.get("speculators_model_type")
    if isinstance(stated, str) and stated:
        return next((kind.name for kind in KINDS if stated in kind.types), f"{stated[:40]!r}")
    return next((kind.name for kind in KINDS if _has_mark(values, kind)), None)


def _has_mark(values: Mapping[str, Any], kind: HeadKind) -> bool:
    names = _class_names(values)
    return (
        any(name in kind.types for name in names)
        or any(word in name for word in kind.classes for name in names)
        or any(values.get(key) is not None for key in kind.keys)
    )


def kind_in_folder(folder: Path) -> str | None:
    """Like kind_in_config, for a folder; None if it can't be read."""
    try:
        return kind_in_config(read_optional_config(folder / "config.json"))
    except ModelError:
        return None


def kind_in_tensors(shapes: Mapping[str, Shape]) -> str | None:
    """The kind by tensors alone: some configurations name only the family of the target."""
    for kind in KINDS:
        if any(re.match(kind.tensors, name) for name in shapes):
            return kind.name
    fused = shapes.get("fc.weight", ())
    if len(fused) == 2 and fused[1] == 2 * fused[0] and "layers.0.hidden_norm.weight" not in shapes:
        return OLDER_EAGLE
    return EAGLE3 if fused else None


def refuse_other_kind(kind: str | None, path: Path) -> None:
    """Raises UnsupportedModelError for a head that is not EAGLE-3. None, not known yet, passes."""
    if kind in (None, EAGLE3):
        return
    runs_in = next((known.runs_in for known in KINDS if known.name == kind), "")
    elsewhere = f" {runs_in} can run this one." if runs_in else ""
    raise UnsupportedModelError(
        f"{path} has a draft head of the kind {kind}; EAGLE-3 is supported. {_INSTEAD}{elsewhere}"
    )


def refuse_head(values: Mapping[str, Any], path: Path) -> None:
    """Raises UnsupportedModelError where a whole model was expected and the folder has a head."""
    kind = kind_in_config(values)
    if kind is None:
        return
    target = stated_target(values)
    raise UnsupportedModelError(
        f"{path} is a draft head ({kind}){f' for {target}' if target else ''}, not a whole model. Use it with its "
        f"target: --draft {path} --drafter head."
    )


def stated_target(values: Mapping[str, Any]) -> str | None:
    """The model that a head was made for, if its config.json says so."""
    speculators = values.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return name if isinstance(name, str) and name else None


def _class_names(values: Mapping[str, Any]) -> list[str]:
    architectures = values.get("architectures")
    named = architectures if isinstance(architectures, list) else []
    return [name.lower() for name in (values.get("model_type"), *named) if isinstance(name, str)]
