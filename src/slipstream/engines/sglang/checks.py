"""SGLang: flags that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import slipstream.engines.sglang.flags as known
from slipstream.findings import Finding, rule
from slipstream.parsing.command_line import Call, Option, Word, parse
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

TREE_SIZE = rule(
    "config-tree-size",
    "blocks",
    "More draft tokens are requested than the draft tree can hold",
    "{steps} steps with top-{topk} give at most {most} draft tokens (the first step {topk}, each further step {topk} "
    "x {topk}, and the root), but {tokens} are requested. SGLang then fails at run time when it selects the best "
    "tokens.",
    "Set --speculative-num-draft-tokens to at most {most}, or raise the steps or the top-k.",
)

_ALGORITHM, _DRAFT = "--speculative-algorithm", "--speculative-draft-model-path"
_STEPS, _TOPK, _TOKENS = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"


def lint_command(words: list[Word]) -> list[Finding]:
    """The words after `sglang serve` or the server's module."""
    call = parse(words, known.FLAGS, dashes=False)
    algorithm = (call.value(_ALGORITHM) or "").upper()
    findings = list(check_options(call.options, known.FLAGS))
    findings += _check_draft(call, algorithm)
    if algorithm in known.TREE_ALGORITHMS:
        findings += _check_tree(call)
    findings += _check_ngram(call)
    findings += _check_sampling(call, algorithm)
    return findings


def _check_draft(call: Call, algorithm: str) -> Iterator[Finding]:
    draft, option = call.last(_DRAFT), call.last(_ALGORITHM)
    others = [found for found in call.options if found.name in (_DRAFT, _STEPS, _TOPK, _TOKENS)]
    if algorithm in ("", "NONE") and others:
        yield SPECULATION_OFF.finding(
            shown(others[0]),
            engine="SGLang",
            why="--speculative-algorithm is missing, and without it SGLang ignores the other settings",
            fix="Add --speculative-algorithm STANDALONE (a plain draft model), EAGLE3, EAGLE, NEXTN or NGRAM",
        )
    if option and algorithm in known.NEEDS_DRAFT_MODEL and not draft:
        why = f"{algorithm} needs a draft model"
        yield MISSING.finding(shown(option), what="The draft model", why=why, fix=f"{_DRAFT} MODEL")
    if option and algorithm == "UNO" and not call.has("--uno-lora-path"):
        yield MISSING.finding(
            shown(option), what="The adapter", why="UNO needs one to draft", fix="--uno-lora-path PATH"
        )
    if draft and algorithm in known.WITHOUT_DRAFT_MODEL:
        why = f"{algorithm} drafts from the text alone"
        fix = f"Remove {_DRAFT}, or use --speculative-algorithm STANDALONE"
        yield CONFLICT.finding(shown(draft), why=f"{why}, so the draft model is never used", fix=fix)


def _check_tree(call: Call) -> Iterator[Finding]:
    steps, topk, tokens = (_whole(call, name) for name in (_STEPS, _TOPK, _TOKENS))
    given = call.last(_TOPK) or call.last(_TOKENS)
    if not call.has(_STEPS, "--speculative-adaptive") and given:
        why = (
            "set the steps, top-k and the number of draft tokens together, or none of them; SGLang then chooses all "
            "three"
        )
        yield MISSING.finding(shown(given), what=_STEPS, why=why, fix=f"{_STEPS} 3 {_TOPK} 1 {_TOKENS} 4")
    option = call.last(_TOKENS)
    if steps is None or topk is None or tokens is None or option is None or min(steps, topk, tokens) < 1:
        return
    if topk == 1 and tokens != steps + 1:
        yield _adjusted(option, steps)
    most = 1 + topk + (steps - 1) * topk * topk
    if topk > 1 and tokens > most:
        yield TREE_SIZE.finding(shown(option), steps=steps, topk=topk, most=most, tokens=tokens)


def _adjusted(option: Option, steps: int) -> Finding:
    why = f"with top-k 1 the draft is a chain, and SGLang uses steps + 1 = {steps + 1} instead"
    return NO_EFFECT.finding(
        shown(option), "note", name=_TOKENS, why=why, fix=f"Set {_TOKENS} {steps + 1}, or change the steps"
    )


def _check_ngram(call: Call) -> Iterator[Finding]:
    low, high = "--speculative-ngram-min-bfs-breadth", "--speculative-ngram-max-bfs-breadth"
    low_value, high_value = call.number(low) or 1, call.number(high) or 10
    option = call.last(low) or call.last(high)
    if option and low_value > high_value:
        yield ORDER.finding(shown(option), low=low, low_value=f"{low_value:g}", high=high, high_value=f"{high_value:g}")


def _check_sampling(call: Call, algorithm: str) -> Iterator[Finding]:
    option = call.last("--speculative-use-rejection-sampling")
    if option and algorithm and algorithm not in known.REJECTION_SAMPLING:
        why = f"rejection sampling works with {', '.join(known.REJECTION_SAMPLING)}, not with {algorithm}"
        yield CONFLICT.finding(shown(option), why=why, fix=f"Remove {option.name}")
    elif option and (_whole(call, _TOPK) or 1) > 1:
        why = "rejection sampling verifies a chain, but top-k above 1 drafts a tree"
        yield CONFLICT.finding(shown(option), why=why, fix=f"Set {_TOPK} 1")
    sink = call.last("--speculative-draft-sink-size")
    if sink and not call.has("--speculative-draft-window-size"):
        why = "the sink size needs a window size"
        yield MISSING.finding(shown(sink), what="The window", why=why, fix="--speculative-draft-window-size N")


def _whole(call: Call, name: str) -> int | None:
    number = call.number(name)
    return int(number) if number is not None and number == number // 1 else None


CONFIGURATION = CommandConfiguration(
    "sglang",
    re.compile(r"(.*/)?sglang$|sglang\.launch_server$|.*lmsysorg/sglang(:[\w.-]+)?$"),
    known.FLAGS,
    lint_command,
    ("serve", "python3", "python", "-m", "sglang.launch_server"),
)
