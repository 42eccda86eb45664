"""llama-server: flags that contradict each other, and drafts that it loads but never uses."""

from __future__ import annotations

import re
from collections.abc import Iterator

import slipstream.engines.llama_server.flags as known
from slipstream.findings import Finding
from slipstream.parsing.command_line import Call, Word, parse
from slipstream.parsing.config_checks import (
    CONFLICT,
    MISSING,
    NO_EFFECT,
    ORDER,
    SPECULATION_OFF,
    check_options,
    shown,
)
from slipstream.parsing.configuration import CommandConfiguration

_ONLY_FOR_DRAFTS = ("--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min", "--spec-draft-p-split")
_ORDERS = (
    ("--spec-draft-n-min", known.DEFAULT_N_MIN, "--spec-draft-n-max", known.DEFAULT_N_MAX),
    ("--spec-ngram-mod-n-min", known.DEFAULT_NGRAM_MOD_N_MIN, "--spec-ngram-mod-n-max", known.DEFAULT_NGRAM_MOD_N_MAX),
)


def lint_command(words: list[Word]) -> list[Finding]:
    """The words after `llama-server`."""
    call = parse(words, known.FLAGS)
    findings = list(check_options(call.options, known.FLAGS))
    findings += _check_draft(call)
    findings += _check_orders(call)
    findings += _check_cache(call)
    return findings


def _types(call: Call) -> list[str]:
    """The requested types of speculation, from all --spec-type options together."""
    given = [option.value.text for option in call.options if option.name == "--spec-type" and option.value]
    return [kind.strip() for kinds in given for kind in kinds.split(",") if kind.strip() not in ("", "none")]


def _check_draft(call: Call) -> Iterator[Finding]:
    draft = call.last("--spec-draft-model") or call.last("--spec-draft-hf")
    types = _types(call)
    if draft and not types and not call.has(*known.SHORTCUTS_WITH_DRAFT):
        yield SPECULATION_OFF.finding(
            shown(draft),
            engine="llama-server",
            why="the default of --spec-type is none, so a plain draft model is loaded but never used (older builds "
            "without --spec-type draft-simple drafted with -md alone; MTP, DFlash and DSpark files are recognised)",
            fix="Add --spec-type draft-simple (for an EAGLE-3 head: draft-eagle3)",
        )
    needing = [kind for kind in types if kind in known.NEEDS_DRAFT_MODEL]
    if needing and not draft:
        option = call.last("--spec-type")
        why = f"{needing[0]} needs a draft model"
        evidence = shown(option) if option else ""
        yield MISSING.finding(evidence, what="The draft model", why=why, fix="-md DRAFT.gguf (or -hfd USER/REPO)")
    if draft and types and not any(kind in known.DRAFT_TYPES for kind in types):
        why = f"--spec-type {','.join(types)} drafts from the text alone, so the draft model is loaded but not used"
        yield NO_EFFECT.finding(
            shown(draft), name=draft.written, why=why, fix="Add draft-simple to --spec-type, or remove the draft model"
        )
    yield from _check_draft_settings(call, types, has_draft=draft is not None)


def _check_draft_settings(call: Call, types: list[str], *, has_draft: bool) -> Iterator[Finding]:
    drafting = has_draft or any(kind in known.DRAFT_TYPES for kind in types) or call.has(*known.SHORTCUTS_WITH_DRAFT)
    for name in _ONLY_FOR_DRAFTS:
        option = call.last(name)
        if option and not drafting:
            why = "there is no draft model (-md, -hfd), and n-gram drafting has its own settings"
            fix = "Add a draft model with -md and --spec-type draft-simple, or use the --spec-ngram-* settings"
            yield NO_EFFECT.finding(shown(option), name=option.written, why=why, fix=fix)
    layers = call.last("--spec-draft-ngl")
    if layers and call.number("--spec-draft-ngl") == 0 and call.number("--gpu-layers") != 0:
        why = "with 0 layers the draft runs on the CPU, where it is slower than the target"
        yield NO_EFFECT.finding(shown(layers), name=layers.written, why=why, fix="Set -ngld all")


def _check_orders(call: Call) -> Iterator[Finding]:
    for low, low_default, high, high_default in _ORDERS:
        low_value, high_value = call.number(low), call.number(high)
        if low_value is None and high_value is None:
            continue
        low_value = low_default if low_value is None else low_value
        high_value = high_default if high_value is None else high_value
        if low_value > high_value:
            option = call.last(low) or call.last(high)
            evidence = f"{shown(option) if option else ''} (default {high}: {high_default}, {low}: {low_default})"
            yield ORDER.finding(evidence, low=low, low_value=f"{low_value:g}", high=high, high_value=f"{high_value:g}")


def _check_cache(call: Call) -> Iterator[Finding]:
    attention = (call.value("--flash-attn") or "auto").lower()
    for name in ("--cache-type-v", "--spec-draft-type-v"):
        option = call.last(name)
        kind = call.value(name) or "f16"
        if option and kind not in ("f32", "f16", "bf16") and attention in ("off", "0", "false"):
            why = f"a value cache of type {kind} needs flash attention, which is off"
            yield CONFLICT.finding(f"{shown(option)}, -fa {attention}", why=why, fix="Set -fa on, or use an f16 cache")


CONFIGURATION = CommandConfiguration(
    "llama-server",
    re.compile(r"(.*[/\\])?llama-server(\.exe)?$|.*llama\.cpp:(server|full)[\w.-]*$"),
    known.FLAGS,
    lint_command,
)
