"""llama-server: flags that contradict each other, and drafts that it loads but never uses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import slipstream.engines.llama_server.flags as known
from slipstream.engines.llama_server.other_settings import CONFIGURATION as OTHER_SETTINGS
from slipstream.engines.llama_server.python_script import CONFIGURATION as PYTHON_SCRIPT
from slipstream.findings import Finding, Severity, rule
from slipstream.parsing.command_line import Call, Word, parse
from slipstream.parsing.config_checks import (
    CONFLICT,
    MISSING,
    NO_EFFECT,
    ORDER,
    SPECULATION_OFF,
    check_options,
    shorten,
    shown,
)
from slipstream.parsing.configuration import AnyConfiguration, CommandConfiguration

EXAMPLE = rule(
    "config-example-program",
    "note",
    "llama-speculative is an example program, not a server",
    "llama-speculative answers one prompt and exits. The program for daily use is llama-server.",
    "The same with llama-server: {command}. To start and check it: slipstream launch llama-server --model TARGET "
    "--draft DRAFT.",
)

_ONLY_FOR_DRAFTS = ("--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min")
_UNREAD = {
    "--spec-draft-p-split": "llama-server reads it, but no drafter uses it",
    "--spec-ngram-simple-min-hits": "only ngram-map-k4v counts hits",
    "--spec-ngram-map-k-min-hits": "only ngram-map-k4v counts hits",
}


@dataclass(frozen=True, slots=True)
class _Order:
    """A minimum and a maximum, with their defaults, and how serious it is if they are the wrong way round."""

    low: str
    low_default: int
    high: str
    high_default: int
    severity: Severity


_ORDERS = (
    _Order("--spec-draft-n-min", known.DEFAULT_N_MIN, "--spec-draft-n-max", known.DEFAULT_N_MAX, "blocks"),
    _Order(  # it then keeps drafts of exactly n-max tokens
        "--spec-ngram-mod-n-min",
        known.DEFAULT_NGRAM_MOD_N_MIN,
        "--spec-ngram-mod-n-max",
        known.DEFAULT_NGRAM_MOD_N_MAX,
        "slows",
    ),
)


def lint_command(words: list[Word]) -> list[Finding]:
    """The words after `llama-server`."""
    call = parse(words, known.FLAGS)
    findings = list(check_options(call.options, known.FLAGS))
    findings += _check_draft(call)
    findings += _check_kinds(call)
    findings += _check_unread(call)
    findings += _check_orders(call)
    findings += _check_cache(call)
    return findings


def _types(call: Call) -> list[str]:
    """The requested types of speculation, from all --spec-type options together. --spec-default is ngram-mod."""
    given = ["ngram-mod"] if call.has("--spec-default") else []
    given += [option.value.text for option in call.options if option.name == "--spec-type" and option.value]
    return [kind.strip() for kinds in given for kind in kinds.split(",") if kind.strip() not in ("", "none")]


def _check_draft(call: Call) -> Iterator[Finding]:
    names = ("--spec-draft-model", "--spec-draft-hf", *known.DRAFT_SHORTCUTS)
    draft = next((option for name in names if (option := call.last(name))), None)
    types = _types(call)
    if draft and not types:
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
        why = f"{','.join(types)} drafts from the text alone, so the draft model is loaded but not used"
        yield NO_EFFECT.finding(
            shown(draft), name=draft.written, why=why, fix="Add draft-simple to --spec-type, or remove the draft model"
        )
    yield from _check_draft_settings(call, types, has_draft=draft is not None)


def _check_kinds(call: Call) -> Iterator[Finding]:
    types, option = _types(call), call.last("--spec-type")
    drafting = [kind for kind in dict.fromkeys(types) if kind in known.DRAFT_TYPES]
    if len(drafting) > 1 and option:
        why = f"{' and '.join(drafting)} would share one draft context, which only fits one of them"
        yield CONFLICT.finding(shown(option), why=why, fix="Keep one draft-* kind; n-gram kinds can be added to it")
    size_n = _number(call, "--spec-ngram-simple-size-n", known.DEFAULT_NGRAM_SIZE_N)
    size_m = _number(call, "--spec-ngram-simple-size-m", known.DEFAULT_NGRAM_SIZE_M)
    size = call.last("--spec-ngram-simple-size-m") or call.last("--spec-ngram-simple-size-n")
    if "ngram-simple" in types and size and size_m < size_n:
        why = f"ngram-simple never drafts if size-m ({size_m:g}) is smaller than size-n ({size_n:g})"
        fix = f"Set --spec-ngram-simple-size-n to at most {size_m:g}"
        if set(types) == {"ngram-simple"}:
            yield SPECULATION_OFF.finding(shown(size), engine="llama-server", why=why, fix=fix)
        else:  # the other kinds still draft
            yield NO_EFFECT.finding(shown(size), name="ngram-simple", why=why, fix=fix)


def _check_unread(call: Call) -> Iterator[Finding]:
    for name, why in _UNREAD.items():
        if option := call.last(name):
            yield NO_EFFECT.finding(shown(option), name=option.written, why=why, fix="Remove it")


def _check_draft_settings(call: Call, types: list[str], *, has_draft: bool) -> Iterator[Finding]:
    drafting = has_draft or any(kind in known.DRAFT_TYPES for kind in types)
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
    for order in _ORDERS:
        option = call.last(order.low) or call.last(order.high)
        low = _number(call, order.low, order.low_default)
        high = _number(call, order.high, order.high_default)
        if option and low > high:
            defaults = f"default {order.high}: {order.high_default}, {order.low}: {order.low_default}"
            values = {"low": order.low, "low_value": f"{low:g}", "high": order.high, "high_value": f"{high:g}"}
            yield ORDER.finding(f"{shown(option)} ({defaults})", order.severity, **values)


def _number(call: Call, name: str, default: float) -> float:
    value = call.number(name)
    return default if value is None else value


def _check_cache(call: Call) -> Iterator[Finding]:
    attention = (call.value("--flash-attn") or "auto").lower()
    for name in ("--cache-type-v", "--spec-draft-type-v"):
        option = call.last(name)
        kind = call.value(name) or "f16"
        if option and kind not in ("f32", "f16", "bf16") and attention in ("off", "0", "false"):
            why = f"a value cache of type {kind} needs flash attention, which is off"
            yield CONFLICT.finding(f"{shown(option)}, -fa {attention}", why=why, fix="Set -fa on, or use an f16 cache")


def lint_example(words: list[Word]) -> list[Finding]:
    """The words after `llama-speculative`: the flags that were renamed, and the same for llama-server."""
    call = parse(words, known.FLAGS)
    today = {known.SUCCESSORS.get(option.name, option.name): option.value for option in call.options}
    pairs = [
        (known.SERVER_FLAGS[name], value.text) for name, value in today.items() if name in known.SERVER_FLAGS and value
    ]
    command = ["llama-server", *(word for pair in pairs for word in pair)]
    command += ["--spec-type", "draft-simple"] if call.has("--spec-draft-model", "--spec-draft-hf") else []
    evidence = f"line {words[0].line}: {shorten(' '.join(word.text for word in words))}" if words else "no arguments"
    return [*check_options(call.options, known.FLAGS), EXAMPLE.finding(evidence, command=shlex.join(command))]


CONFIGURATION = AnyConfiguration(
    (
        CommandConfiguration(
            "llama-server",
            re.compile(r"(.*[/\\])?llama-server(\.exe)?$|.*llama\.cpp:(server|full)[\w.-]*$"),
            known.FLAGS,
            lint_command,
        ),
        CommandConfiguration(
            "llama-speculative",
            re.compile(r"(.*[/\\])?(llama-)?speculative(-simple)?(\.exe)?$"),
            known.FLAGS,
            lint_example,
        ),
        PYTHON_SCRIPT,
        OTHER_SETTINGS,
    )
)
