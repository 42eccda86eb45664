"""Problems that the numbers in a log show: CPU speed on a machine with a GPU, drafts verified one token at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from slipstream.findings import Finding, rule
from slipstream.parsing.log_scan import Hit, first_hit, hits

SLOW_AS_A_CPU = rule(
    "log-cpu-speed",
    "slows",
    "The speed is that of a CPU",
    "{tokens:g} tokens in {seconds:.1f} s are {rate:.1f} tokens/s{bandwidth}. This is the speed of a CPU, not of a "
    "GPU. The log reports no layer on the GPU.",
    "If this machine has a GPU, put the model on it first (-ngl 99; llama-cpp-python: n_gpu_layers=-1 and a build "
    "with GPU support; verbose=True must say `offloaded N/N layers`); that gains more than any draft. To check: "
    "slipstream doctor.",
)
ONE_BY_ONE = rule(
    "log-one-by-one",
    "slows",
    "Drafts are verified one token at a time",
    "The target ran {forwards} times for {tokens} tokens{detail}. One forward pass can verify a whole draft, so there "
    "should be far fewer passes than tokens. This loop runs the target once for each drafted token, and spends time "
    "on drafting as well.",
    "Score all drafted tokens in one forward pass: [last token] + draft as one batch, logits for every position, then "
    "keep the longest prefix that matches. Slipstream does this: slipstream bench --target T --draft D.",
)
CPU_TOKENS_PER_S = 8.0  # below this, a model of unknown size is assumed to run on the CPU
CPU_BANDWIDTH_GB = 130.0  # desktop memory reads 20 to 100 GB/s, GPUs 200 and more
_MIN_TOKENS = 8  # fewer tokens do not show the speed

_EVAL = re.compile(
    r"(?<!prompt )\beval time =\s*(?P<ms>[\d.]+) ms /\s*(?P<tokens>\d+) (?:tokens|runs)\s*\(.{0,80}tokens per second"
)
_PROSE = re.compile(
    r"(?P<time>\d[\d,]*(?:\.\d+)?) ?(?P<unit>ms|s|sec|seconds) (?:for|per) (?P<tokens>\d{1,7}) tokens|"
    r"(?P<tokens_in>\d{1,7}) tokens in (?P<time_in>\d[\d,]*(?:\.\d+)?) ?(?P<unit_in>ms|s|sec|seconds)\b"
)
_PROSE_REACH = 40
_SIZE = re.compile(r"(?:model|file) size\s*= *(?P<size>[\d.]+) (?P<unit>[MG])iB")
_ON_GPU = re.compile(r"offloaded (?P<layers>[1-9]\d*)/\d+ layers to GPU")


def slow_as_a_cpu(text: str) -> Iterator[tuple[Hit, Callable[[str], Finding]]]:
    """The first timing line with CPU speed. Nothing if layers are on the GPU."""
    if first_hit(text, ("offloaded ",), _ON_GPU):
        return
    size_gb = _model_gb(text)
    for hit, seconds, tokens in _timings(text):
        rate = tokens / seconds
        slow = rate * size_gb < CPU_BANDWIDTH_GB if size_gb else rate < CPU_TOKENS_PER_S
        if tokens >= _MIN_TOKENS and slow:
            read = f", or {rate * size_gb:.0f} GB/s read from {size_gb:.1f} GB of weights" if size_gb else ""
            yield hit, _slow_maker(tokens, seconds, read)
            return


def _slow_maker(tokens: float, seconds: float, bandwidth: str) -> Callable[[str], Finding]:
    return lambda evidence: SLOW_AS_A_CPU.finding(
        evidence, tokens=tokens, seconds=seconds, rate=tokens / seconds, bandwidth=bandwidth
    )


def _timings(text: str) -> Iterator[tuple[Hit, float, float]]:
    """Lines with timings of generation: the hit, seconds, tokens."""
    for hit in hits(text, "eval time =", _EVAL):
        yield from _timing(hit, hit.groups["ms"], "ms", hit.groups["tokens"])
    for piece in (" tokens in ", "s for ", "s per "):
        for hit in hits(text, piece, _PROSE, _PROSE_REACH):
            groups = {name.removesuffix("_in"): value for name, value in hit.groups.items() if value}
            yield from _timing(hit, groups["time"], groups["unit"], groups["tokens"])


def _timing(hit: Hit, time: str, unit: str, tokens: str) -> Iterator[tuple[Hit, float, float]]:
    seconds = _number(time) / (1000 if unit == "ms" else 1)
    if seconds > 0 and _number(tokens) > 0:
        yield hit, seconds, _number(tokens)


def _number(text: str) -> float:
    """The number in a text with commas between thousands; 0 if there is none."""
    return float(text.replace(",", "") or 0) if re.fullmatch(r"[\d,]*\.?\d*", text) and text != "." else 0.0


def _model_gb(text: str) -> float:
    hit = first_hit(text, ("model size", "file size"), _SIZE)
    if hit is None:
        return 0.0
    return _number(hit.groups["size"]) * (2**30 if hit.groups["unit"] == "G" else 2**20) / 1e9


def one_by_one(target_forwards: int, tokens: int, accepted: int | None = None, rounds: int | None = None) -> bool:
    """Whether counters show a loop that runs the target for each drafted token, judged by the most precise counters
    available.

    A round needs one forward pass of the target; without speculation, a token needs one at most.
    """
    if tokens <= 0 or target_forwards <= 0:
        return False
    if rounds:
        return target_forwards > 1.5 * rounds
    if accepted:
        return target_forwards > 1.2 * (tokens - accepted) + 1
    return target_forwards >= tokens


_COUNTER = re.compile(
    r"(?i)\b(?:num|n|total)?[_ ]?(?P<name>target[_ ](?:model[_ ])?(?:forwards?(?:[_ ]passes)?|calls|evaluations|runs)|"
    r"rounds|iterations|(?:tokens?[_ ])?accepted(?:[_ ](?:draft[_ ])?tokens)?|drafted(?:[_ ]tokens)?|draft[_ ]tokens|"
    r"(?:generated|output|completion|total|new)[_ ]tokens|tokens(?:[_ ]generated)?)\W{1,6}(?P<count>\d{1,9})\b"
)
_COUNTERS_NEAR = 600  # characters around the target's counter in which to look for the others


def one_by_one_in(text: str) -> Iterator[tuple[Hit, Callable[[str], Finding]]]:
    """Finds counters of a speculative loop, in one place of the log, whose target ran once for each token."""
    for piece in ("target_forward", "target forward", "target_calls", "target calls", "Target forward", "target_runs"):
        for hit in hits(text, piece, None):
            counters = _counters(text[max(0, hit.at - _COUNTERS_NEAR) : hit.at + _COUNTERS_NEAR])
            forwards, tokens = counters.get("target", 0), counters.get("tokens", 0)
            drafting = counters.get("drafted") or counters.get("accepted") or counters.get("rounds")
            if drafting and one_by_one(forwards, tokens, counters.get("accepted"), counters.get("rounds")):
                yield hit, _one_by_one_maker(counters)
                return


def _counters(text: str) -> dict[str, int]:
    """The first counter of each kind: target, tokens, drafted, accepted, rounds."""
    counters: dict[str, int] = {}
    for found in _COUNTER.finditer(text):
        name = found["name"].lower()
        kind = next((kind for kind in ("target", "accepted") if kind in name), None)
        if kind is None:
            kind = "drafted" if "draft" in name else "rounds" if name in ("rounds", "iterations") else "tokens"
        counters.setdefault(kind, int(found["count"]))
    return counters


def _one_by_one_maker(counters: dict[str, int]) -> Callable[[str], Finding]:
    known = [f"{counters[kind]} {kind}" for kind in ("drafted", "accepted", "rounds") if kind in counters]
    detail = f" ({', '.join(known)})" if known else ""
    return lambda evidence: ONE_BY_ONE.finding(
        evidence, forwards=counters["target"], tokens=counters["tokens"], detail=detail
    )
