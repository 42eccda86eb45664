"""SGLang: flags that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import slipstream.engines.sglang.flags as known
from slipstream.catalogue.named_models import different_names
from slipstream.findings import Finding, rule
from slipstream.parsing.command_line import Call, Option, Word, parse
from slipstream.parsing.config_checks import CONFLICT, MISSING, NO_EFFECT, ORDER, SPECULATION_OFF, check_options, shown
from slipstream.parsing.configuration import AnyConfiguration, CommandConfiguration
from slipstream.parsing.yaml_flags import yaml_flags

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
_ADAPTIVE, _BREADTH = "--speculative-adaptive", "--speculative-ngram-max-bfs-breadth"
_NO_DRAFT_MODEL = {
    "NGRAM": "NGRAM drafts from the text alone, so the draft model is never used",
    "UNO": "UNO drafts with the target and an adapter, and refuses a draft model",
}


def lint_command(words: list[Word]) -> list[Finding]:
    """The words after `sglang serve` or the server's module."""
    call = parse(words, known.FLAGS, dashes=False)
    algorithm = (call.value(_ALGORITHM) or "").upper()
    findings = list(check_options(call.options, known.FLAGS))
    findings += _check_draft(call, algorithm)
    if algorithm in known.TREE_ALGORITHMS:
        findings += _check_tree(call, algorithm)
    elif algorithm == "UNO":
        findings += _check_uno(call)
    findings += _check_adaptive(call, algorithm)
    findings += _check_block(call, algorithm)
    findings += _check_ngram(call, algorithm)
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
    if draft and draft.value and algorithm == "STANDALONE":
        yield from different_names(call.value("--model-path"), draft.value.text)
    if draft and algorithm in _NO_DRAFT_MODEL:
        fix = f"Remove {_DRAFT}, or use --speculative-algorithm STANDALONE"
        yield CONFLICT.finding(shown(draft), why=_NO_DRAFT_MODEL[algorithm], fix=fix)


def _check_tree(call: Call, algorithm: str) -> Iterator[Finding]:
    """SGLang stops with an AssertionError or a TypeError if only some of the three are given."""
    steps, topk, tokens = (_whole(call, name) for name in (_STEPS, _TOPK, _TOKENS))
    given = call.last(_STEPS) or call.last(_TOPK) or call.last(_TOKENS)
    absent = _STEPS if not call.has(_STEPS) else _TOPK if not call.has(_TOPK) else None
    if given and absent and not (call.has(_ADAPTIVE) and _why_not_adaptive(call, algorithm) is None):
        why = (
            "set the steps and top-k together, or none of the three; SGLang then chooses the number of draft tokens too"
        )
        yield MISSING.finding(shown(given), what=absent, why=why, fix=f"{_STEPS} 3 {_TOPK} 1 {_TOKENS} 4")
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


def _check_uno(call: Call) -> Iterator[Finding]:
    option = call.last(_ALGORITHM)
    steps, topk, tokens = (_whole(call, name) for name in (_STEPS, _TOPK, _TOKENS))
    evidence = shown(option) if option else ""
    if not call.has("--uno-lora-path"):
        yield MISSING.finding(evidence, what="The adapter", why="UNO needs one to draft", fix="--uno-lora-path PATH")
    if not call.has(_TOKENS):
        yield MISSING.finding(
            evidence, what=_TOKENS, why="UNO has no default number of draft tokens", fix=f"{_TOKENS} 4"
        )
    if topk and topk > 1 and not call.has(_STEPS):
        why = "with top-k above 1 UNO drafts a tree, and needs its depth"
        yield MISSING.finding(evidence, what=_STEPS, why=why, fix=f"{_STEPS} 3, or {_TOPK} 1")
    if topk and topk > 1 and steps and tokens and not steps < tokens <= 128:
        why = f"a tree of UNO with {steps} steps has {steps + 1} to 128 draft tokens, not {tokens}"
        yield CONFLICT.finding(evidence, why=why, fix=f"Set {_TOKENS} to a number in this range, or {_TOPK} 1")
    if several := [name for name in ("--tp-size", "--pp-size") if (_whole(call, name) or 1) > 1]:
        given = ", ".join(f"{name} {call.value(name)}" for name in several)
        yield CONFLICT.finding(f"{evidence}, {given}", why="UNO runs on one GPU", fix=f"Remove {' and '.join(several)}")


def _check_adaptive(call: Call, algorithm: str) -> Iterator[Finding]:
    option, steps = call.last(_ADAPTIVE), _whole(call, _STEPS)
    if not option or not algorithm:
        return
    why_not = _why_not_adaptive(call, algorithm)
    if why_not:
        yield NO_EFFECT.finding(shown(option), name=_ADAPTIVE, why=why_not, fix=f"Remove {_ADAPTIVE}")
    elif steps is not None and steps not in known.ADAPTIVE_STEPS and not call.has("--speculative-adaptive-config"):
        why = f"with {_ADAPTIVE} the steps are one of {', '.join(map(str, known.ADAPTIVE_STEPS))}, not {steps}"
        yield CONFLICT.finding(f"{shown(option)}, {_STEPS} {steps}", why=why, fix=f"Remove {_STEPS}")


def _why_not_adaptive(call: Call, algorithm: str) -> str | None:
    """Why SGLang turns adaptive lengths off; None if it does not."""
    if algorithm not in known.ADAPTIVE:
        return f"it works with {', '.join(known.ADAPTIVE)}, not with {algorithm}"
    if (_whole(call, _TOPK) or 1) > 1:
        return "it works with top-k 1 only"
    others = ("--enable-multi-layer-eagle", "--enable-two-batch-overlap", "--enable-pdmux")
    if (_whole(call, "--attn-dp-size") or 1) > 1 or call.has("--enable-dp-attention"):
        return "it does not work with attention data parallelism"
    return next((f"it does not work with {name}" for name in others if call.has(name)), None)


def _check_block(call: Call, algorithm: str) -> Iterator[Finding]:
    block = known.BLOCK_SIZES.get(algorithm)
    size, tokens, option = _whole(call, block.flag) if block else None, _whole(call, _TOKENS), call.last(_TOKENS)
    if block and size and option and tokens is not None and tokens != size + block.num_more:
        why = f"{algorithm} with {block.flag} {size} verifies {size + block.num_more} tokens, not {tokens}"
        yield CONFLICT.finding(shown(option), why=why, fix=f"Remove {_TOKENS}, or set it to {size + block.num_more}")


def _check_ngram(call: Call, algorithm: str) -> Iterator[Finding]:
    low, high = "--speculative-ngram-min-bfs-breadth", _BREADTH
    low_value, high_value = call.number(low) or 1, call.number(high) or 10
    option = call.last(low) or call.last(high)
    if option and low_value > high_value:
        yield ORDER.finding(shown(option), low=low, low_value=f"{low_value:g}", high=high, high_value=f"{high_value:g}")
    page = call.last("--page-size")
    is_paged = algorithm == "NGRAM" and (_whole(call, "--page-size") or 1) > 1
    if page and is_paged and high_value > 1 and call.value("--attention-backend") != "flashinfer":
        why = "NGRAM drafts trees, which need a page size of 1, except with --attention-backend flashinfer"
        yield CONFLICT.finding(shown(page), why=why, fix=f"Set --page-size 1, or draft chains: {_BREADTH} 1")


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


_COMMAND = CommandConfiguration(
    "sglang",
    re.compile(r"(.*/)?sglang$|sglang\.launch_server$|.*lmsysorg/sglang(:[\w.-]+)?$"),
    known.FLAGS,
    lint_command,
    ("serve", "python3", "python", "-m", "sglang.launch_server"),
)
CONFIGURATION = AnyConfiguration((_COMMAND, yaml_flags(known.FLAGS, lint_command)))
