"""TabbyAPI: config.yml. TabbyAPI silently ignores unknown sections and keys, so these checks matter most."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from slipstream.catalogue.named_models import different_names
from slipstream.engines.tabbyapi.flags import CACHE_MODES, SECTION_NAMES, SECTIONS
from slipstream.findings import Finding, rule
from slipstream.parsing.config_checks import (
    CHOICE,
    NO_EFFECT,
    RANGE,
    SPECULATION_OFF,
    SYNTAX,
    TYPE,
    check_value,
    shorten,
    unknown,
)
from slipstream.parsing.configuration import NOT_MINE, SHAPED, FileConfiguration
from slipstream.parsing.flag_table import Table, nearest
from slipstream.reading import BadYamlError, parse_yaml

SECTION = rule(
    "config-section",
    "slows",
    "The engine does not read this section of the configuration",
    "TabbyAPI has no section {name!r} and silently ignores everything in it{effect}.",
    "{fix}",
)

EXL2 = rule(
    "config-exl2",
    "slows",
    "TabbyAPI no longer loads EXL2 models",
    "By its name this is an EXL2 model. It needs ExLlamaV2, which TabbyAPI removed from its main branch in July 2026; "
    "the branch exl2-checkpoint still has it. Target and draft must both be for the same version of ExLlama: a GGUF or "
    "AWQ draft can't be used.",
    "Use EXL3 versions of both models with today's TabbyAPI, or stay with EXL2 on the branch exl2-checkpoint. To draft "
    'without a model there, send "speculative_ngram": true with each request: draft_mode: ngram is for ExLlamaV3.',
)
CACHE = rule(
    "config-cache-size",
    "slows",
    "max_seq_len is set without cache_size",
    "cache_size is not set. TabbyAPI of October 2025 to March 2026 then allocates 4,096 tokens and limits the context "
    "to that; other versions allocate max_seq_len tokens, which several requests at the same time share.",
    "Set cache_size in the section model to at least max_seq_len, in steps of 256: cache_size: {size}. To see what "
    "fits: slipstream plan --engine tabbyapi --context {size}.",
)
_PAGE = 256  # cache_size is a multiple of it
_BITS = re.compile(r"[2-8]\s*,\s*[2-8]")


def lint_file(text: str) -> list[Finding]:
    try:
        config = parse_yaml(text)
    except ValueError as error:
        return [_bad_yaml(error, text)]
    if config is None:
        return []
    if not isinstance(config, dict):
        what = "the file has no sections"
        return [
            SYNTAX.finding(shorten(text), what=what, where="line 1", hint="The file needs sections such as `model:`.")
        ]
    findings: list[Finding] = []
    for name, section in config.items():
        findings += _check_section(str(name), section)
    findings += _check_draft(config)
    findings += _check_sizes(config.get("model"))
    findings += _check_formats(config)
    return findings


def _bad_yaml(error: ValueError, text: str) -> Finding:
    line, column = (error.line, error.column) if isinstance(error, BadYamlError) else (None, None)
    where = f"line {line} column {column}" if line else "one of its values"
    lines = text.splitlines()
    evidence = lines[line - 1] if line and line <= len(lines) else text
    hint = "Indent YAML with spaces, not tabs, and put a space after each colon."
    return SYNTAX.finding(
        f"{where}: {shorten(evidence)}", what=f"invalid YAML at {where}: {error}", where=where, hint=hint
    )


def _check_section(name: str, section: object) -> Iterator[Finding]:
    table = SECTIONS.get(name)
    if table is None:
        yield _unknown_section(name)
    elif section is None:
        return
    elif not isinstance(section, dict):
        yield TYPE.finding(f"{name}: {shorten(str(section))}", name=name, expected="keys and values, indented below it")
    else:
        for key, value in section.items():
            if value is not None:
                yield from _check_key(name, table, str(key), value)


def _unknown_section(name: str) -> Finding:
    right = SECTION_NAMES.get(name) or nearest(name, tuple(SECTIONS))
    effect = ", so it runs without speculation" if right == "draft_model" else ""
    fix = f"Rename the section to `{right}:`." if right else f"Sections: {', '.join(SECTIONS)}."
    return SECTION.finding(f"{name}:", name=name, effect=effect, fix=fix)


def _check_key(section: str, table: Table, key: str, value: object) -> Iterator[Finding]:
    evidence = shorten(f"{section}.{key}: {value}")
    flag = table.flag(key)
    if flag is None:
        yield unknown(key, table, evidence, dropped=True, hint=_other_section(section, key))
    elif key == "cache_mode":
        yield from _check_cache_mode(key, str(value), evidence, table)
    else:
        yield from check_value(flag, value, evidence, table, converts=True)


def _other_section(section: str, key: str) -> str:
    """A hint to move the key, if another section has it."""
    home = next((name for name, table in SECTIONS.items() if name != section and table.flag(key)), None)
    return f"Move it to the section `{home}:`." if home else ""


def _check_cache_mode(key: str, value: str, evidence: str, table: Table) -> Iterator[Finding]:
    if value not in CACHE_MODES and not _BITS.fullmatch(value):
        near = next((f"Did you mean {mode}? " for mode in CACHE_MODES if mode.lower() == value.lower()), "")
        choices = ", ".join(CACHE_MODES) + "; also bits of keys and values, such as 8,8"
        yield CHOICE.finding(evidence, name=key, value=value, version=table.version, near=near, choices=choices)


def _check_draft(config: dict[Any, Any]) -> Iterator[Finding]:
    section = config.get("draft_model")
    if not isinstance(section, dict) or all(value is None for value in section.values()):
        return
    mode = section.get("draft_mode") or "model"
    meant = [
        key for key, value in section.items() if value is not None and key not in ("draft_mode", "draft_model_dir")
    ]
    if mode == "model" and not section.get("draft_model_name") and meant:
        yield SPECULATION_OFF.finding(
            shorten(f"draft_model: {section}"),
            engine="TabbyAPI",
            why="draft_model_name is empty, which disables the draft",
            fix="Set draft_model_name to a folder in draft_model_dir, or draft_mode: ngram to draft without a model",
        )
    model = config.get("model")
    if mode == "model" and isinstance(model, dict):
        yield from different_names(model.get("model_name"), section.get("draft_model_name"))
    if mode == "ngram" and section.get("dynamic_draft"):
        yield NO_EFFECT.finding(
            "draft_model.dynamic_draft: true",
            name="dynamic_draft",
            why="n-gram drafts have a fixed length",
            fix="Remove it, or use draft_mode: model or mtp",
        )


def _check_sizes(model: object) -> Iterator[Finding]:
    if not isinstance(model, dict):
        return
    size, longest = model.get("cache_size"), model.get("max_seq_len")
    if isinstance(size, int) and size % _PAGE:
        yield RANGE.finding(f"model.cache_size: {size}", name="cache_size", expected=f"a multiple of {_PAGE}")
    if size is None and isinstance(longest, int) and longest > 0:
        yield CACHE.finding(f"model.max_seq_len: {longest}", size=-(-longest // _PAGE) * _PAGE)


def _check_formats(config: dict[Any, Any]) -> Iterator[Finding]:
    """Names of models that say EXL2, in sections with the wrong name too. One finding for all of them."""
    sections = {str(name): section for name, section in config.items() if isinstance(section, dict)}
    named = [
        f"{name}.{key}: {value}"
        for name, section in sections.items()
        for key, value in section.items()
        if key in ("model_name", "draft_model_name") and isinstance(value, str) and "exl2" in value.lower()
    ]
    if named:
        yield EXL2.finding(shorten("; ".join(named)))


def _likeness(text: str, file_name: str) -> float:
    sections = {*SECTIONS, *SECTION_NAMES}
    return SHAPED if sections & set(re.findall(r"(?m)^(\w+):\s*(?:#.*)?$", text)) else NOT_MINE


CONFIGURATION = FileConfiguration(lint_file, _likeness)
