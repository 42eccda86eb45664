"""Slow runs, by the numbers in a log: CPU speed, few drafts accepted, slower than plain, verification one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from slipstream.diagnosis.log_figures import acceptance, number, tokens_per_step
from slipstream.findings import Finding, rule
from slipstream.parsing.log_scan import Hit, first_hit, hits
from slipstream.parsing.verify_loops import verify_loop

Located = tuple[Hit, Callable[[str], Finding]]

SLOW_AS_A_CPU = rule(
    "log-cpu-speed",
    "slows",
    "The speed is that of a CPU",
    "{speed}{bandwidth}. This {verb} the speed of a CPU, not of a GPU. The log reports no layer on the GPU.",
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
MAYBE_ONE_BY_ONE = rule(
    "log-one-by-one-suspected",
    "slows",
    "Drafts may be verified one token at a time",
    "{observed}. This may be verification one token at a time: the target then runs as often as without a draft, and "
    "the time for drafting comes on top.",
    "To check, count the target's forward passes, the rounds and the tokens of one answer. One pass per round is "
    "right. With a pass for each drafted token, or at least as many passes as tokens although drafts are accepted, it "
    "is one by one: then score [last token] + draft in one batch. To see what the pair can do: slipstream bench "
    "--target T --draft D.",
)
SLOWER = rule(
    "log-slower-than-plain",
    "slows",
    "Speculation is slower than plain decoding",
    "Speculation ran at {speculative:g} tokens/s and plain decoding at {plain:g} tokens/s: {ratio:.1f}x slower. The "
    "causes, most frequent first: few drafted tokens are accepted, the draft is slow compared to the target, many "
    "requests run at the same time, drafts are verified one at a time.",
    "Look at the acceptance first (below a third it rarely pays off), then count the target's forward passes (there "
    "must be far fewer than tokens). What the pair can reach here: slipstream doctor --target T --draft D; measured: "
    "slipstream bench --target T --draft D.",
)
NEAR_ZERO = rule(
    "log-acceptance-near-zero",
    "slows",
    "Almost no drafted token is accepted",
    "{rate} of the drafted tokens are accepted{counts}: nearly all drafting is wasted, and this is slower than without "
    "a draft. It still verifies correctly. {causes}",
    "Check the pair: slipstream doctor --target T --draft D. Draft fewer tokens per step (2 to 4). If acceptance stays "
    "near zero, use another draft (slipstream pairs --target T) or none.",
)
LOW = rule(
    "log-acceptance-low",
    "slows",
    "Most drafted tokens are rejected",
    "{rate} of the drafted tokens are accepted{counts}. Below about a third, speculation may be slower than plain "
    "decoding.",
    "Draft fewer tokens per step (2 to 4), or use a smaller draft. Compare with a run without a draft: "
    "slipstream bench --target T --draft D.",
)
MANY_AT_ONCE = rule(
    "log-many-requests",
    "slows",
    "Speculation runs with many requests at a time",
    "{running} requests run at the same time, with drafting. The GPU is then busy with the requests themselves, and "
    "verifying drafts takes time from them: speculation may be slower than plain decoding here, even with good "
    "acceptance ({rate}).",
    "Compare with a run without speculation at this load. Speculate only with few requests at a time (vLLM: "
    "--max-num-seqs; older versions: speculative_disable_by_batch_size), or leave speculation out on busy servers.",
)
_CAUSES = (
    "Usual causes: a draft of another family or version, a draft whose precision or template differs from what it was "
    "made for, or far too many drafted tokens per step."
)
_CAUSES_OF_ZERO = (
    "A draft that is only weak still guesses some tokens. None at all means that the draft works with wrong input: "
    "the engine does not hand it the target's state (prefill and decoding on separate machines, a method or runner "
    "that does not fit this draft, a fault of this version), its weights are damaged, or its vocabulary is another one."
)
CPU_TOKENS_PER_S = 8.0  # below this, a model of unknown size is assumed to run on the CPU
CPU_BANDWIDTH_GB = 130.0  # desktop memory reads 20 to 100 GB/s, GPUs 200 and more
NEAR_ZERO_RATE, LOW_RATE = 0.1, 0.35  # runtime checks use the second too
_ONE_PER_STEP = 1.1  # with 3 drafted tokens, less than 4 % of them are accepted
_MANY_PER_STEP = 2.0  # tokens per step from which a low rate is only a sign of long drafts
_ENOUGH_DRAFTED = 100  # fewer drafted tokens do not show the rate
_MIN_TOKENS = 8  # fewer tokens do not show the speed
_MAX_SPEEDS = 2_000  # lines with a unit of speed to look at


def slow_runs(text: str) -> list[Located]:
    """What makes the run of this log slow: one explanation for drafting, and whether the CPU does the work."""
    finders = (one_by_one_in, acceptance_in, slower_in, many_requests_in)
    drafting = next((found for find in finders if (found := list(find(text)))), [])
    return [*slow_as_a_cpu(text), *drafting]


# -- CPU speed --------------------------------------------------------------------------------------------------------

_UNIT = r"(?:tok(?:en)?s?/s(?:ec(?:ond)?)?|tokens per second|t/s|tps)\b"
_UNIT_PIECES = ("tok/s", "toks/s", "token/s", "tokens/s", "tokens per second", " t/s", "tps")
_TIME = r"(?P<time>\d[\d,]*(?:\.\d+)?) ?(?P<unit>ms|s|sec|seconds)\b"
_NOT_GENERATION = re.compile(r"(?i)prompt|encoded|prefill|input|throughput|expect|estimate|should|target:|Process")

_EVAL = re.compile(
    r"(?<!prompt )\beval time =\s*(?P<ms>[\d.]+) ms /\s*(?P<tokens>\d+) (?:tokens|runs)\s*\(.{0,80}tokens per second"
)
_PROSE = re.compile(
    rf"{_TIME} (?:for|per) (?P<tokens>\d{{1,7}}) tokens|"
    r"(?P<tokens_in>\d{1,7}) tokens in\s+(?P<time_in>\d[\d,]*(?:\.\d+)?) ?(?P<unit_in>ms|s|sec|seconds)\b"
)
_PER_TOKEN = re.compile(r"(?P<ms>\d[\d,]*(?:\.\d+)?) ?ms(?:/| per )(?:token|tok|T)\b")
_RATE = re.compile(rf"(?P<rate>\d[\d,]*(?:\.\d+)?) ?{_UNIT}")
_AVERAGE = re.compile(rf"(?i)\b(?:average|avg|mean|median|elapsed|took|latency)\W{{1,6}}{_TIME}")
_TOKENS_SAID = re.compile(r"(?i)\b(?P<tokens>\d{2,6})[ -]tokens?\b(?!/| per)")
_SIZE = re.compile(r"(?:model|file) size\s*= *(?P<size>[\d.]+) (?P<unit>[MG])iB")
_ON_GPU = re.compile(r"offloaded (?P<layers>[1-9]\d*)/\d+ layers to GPU")
_TOKENS_REACH = 1_000  # characters around an average time in which the number of tokens is looked for


@dataclass(frozen=True, slots=True)
class _Timing:
    """`text` says the speed in words; `is_sure`: time and tokens are of the same run."""

    hit: Hit
    rate: float
    text: str
    is_sure: bool = True


def slow_as_a_cpu(text: str) -> Iterator[Located]:
    """The first timing with CPU speed. Nothing if layers are on the GPU."""
    if first_hit(text, ("offloaded ",), _ON_GPU):
        return
    size_gb = _model_gb(text)
    for timing in _timings(text):
        rate = timing.rate
        if rate * size_gb < CPU_BANDWIDTH_GB if size_gb else rate < CPU_TOKENS_PER_S:
            read = f", or {rate * size_gb:.0f} GB/s read from {size_gb:.1f} GB of weights" if size_gb else ""
            yield timing.hit, _slow_maker(timing, read)
            return


def _slow_maker(timing: _Timing, bandwidth: str) -> Callable[[str], Finding]:
    verb = "is" if bandwidth and timing.is_sure else "may be"
    return lambda evidence: SLOW_AS_A_CPU.finding(evidence, speed=timing.text, bandwidth=bandwidth, verb=verb)


def _timings(text: str) -> Iterator[_Timing]:
    """The timings of generation, the most precise kinds first."""
    for hit in islice(hits(text, "eval time =", _EVAL), _MAX_SPEEDS):
        yield from _timing(hit, hit.groups["ms"], "ms", hit.groups["tokens"])
    for piece in (" tokens in ", "s for ", "s per "):
        for hit in _generation(text, piece, _PROSE):
            groups = {name.removesuffix("_in"): value for name, value in hit.groups.items() if value}
            yield from _timing(hit, groups["time"], groups["unit"], groups["tokens"])
    for piece in ("ms/", "ms per "):
        for hit in _generation(text, piece, _PER_TOKEN):
            if ms := number(hit.groups["ms"]):
                yield _Timing(hit, 1000 / ms, f"{ms:g} ms per token are {1000 / ms:.1f} tokens/s")
    for piece in _UNIT_PIECES:
        for hit in _generation(text, piece, _RATE):
            if rate := number(hit.groups["rate"]):
                yield _Timing(hit, rate, f"The log says {rate:g} tokens/s")
    if first_hit(text, ("eval time =",), _EVAL) is None:  # where the engine's own timings are missing
        yield from _average_times(text)


def _generation(text: str, piece: str, pattern: re.Pattern[str]) -> Iterator[Hit]:
    """Lines that are about generation that happened: prompts, expectations and sums over time are others."""
    return (hit for hit in _matching(text, piece, pattern) if not _NOT_GENERATION.search(hit.line))


def _matching(text: str, piece: str, pattern: re.Pattern[str]) -> Iterator[Hit]:
    """The lines that match, of the first _MAX_SPEEDS with the piece: a log may have millions of them."""
    for hit in islice(hits(text, piece, None), _MAX_SPEEDS):
        if found := pattern.search(hit.line):
            yield Hit(hit.at, hit.line, {name: value or "" for name, value in found.groupdict().items()})


def _average_times(text: str) -> Iterator[_Timing]:
    """Times of an answer whose number of tokens stands elsewhere in the text."""
    for piece in ("ms", "s)", " s", "sec"):
        for hit in _generation(text, piece, _AVERAGE):
            near = text[max(0, hit.at - _TOKENS_REACH) : hit.at + _TOKENS_REACH]
            tokens = _TOKENS_SAID.search(near)
            for timing in _timing(hit, hit.groups["time"], hit.groups["unit"], tokens["tokens"] if tokens else "0"):
                said = f"{timing.text} (the number of tokens is from another line)"
                yield _Timing(hit, timing.rate, said, is_sure=False)


def _timing(hit: Hit, time: str, unit: str, tokens: str) -> Iterator[_Timing]:
    seconds, count = number(time) / (1000 if unit == "ms" else 1), number(tokens)
    if seconds > 0 and count >= _MIN_TOKENS:
        rate = count / seconds
        yield _Timing(hit, rate, f"{count:g} tokens in {seconds:.1f} s are {rate:.1f} tokens/s")


def _model_gb(text: str) -> float:
    hit = first_hit(text, ("model size", "file size"), _SIZE)
    if hit is None:
        return 0.0
    return number(hit.groups["size"]) * (2**30 if hit.groups["unit"] == "G" else 2**20) / 1e9


# -- acceptance -------------------------------------------------------------------------------------------------------


def acceptance_in(text: str) -> Iterator[Located]:
    """Acceptance that is near zero, or so low that drafting may not pay off. Nothing for few drafted tokens."""
    found, length = acceptance(text), tokens_per_step(text)
    if found is None and length and 1 <= length[0] < _ONE_PER_STEP:  # earlier SGLang prints no rate
        counts = f" ({length[0]:g} tokens per step)"
        yield length[1], lambda evidence: NEAR_ZERO.finding(evidence, rate="Almost none", counts=counts, causes=_CAUSES)
    if found is None or found.hit is None or (found.drafted is not None and found.drafted < _ENOUGH_DRAFTED):
        return
    has_long_drafts = length is not None and length[0] >= _MANY_PER_STEP
    if found.rate >= LOW_RATE or (found.rate >= NEAR_ZERO_RATE and has_long_drafts):
        return
    kind = NEAR_ZERO if found.rate < NEAR_ZERO_RATE and not has_long_drafts else LOW
    counts = f" ({found.accepted:,} of {found.drafted:,})" if found.drafted else ""
    rate = f"{found.rate:.1%}"
    causes = _CAUSES if found.rate else _CAUSES_OF_ZERO
    yield found.hit, lambda evidence: kind.finding(evidence, rate=rate, counts=counts, causes=causes)


# -- many requests ----------------------------------------------------------------------------------------------------

_RUNNING = re.compile(r"Running: (?P<running>\d+) reqs|#running-req: (?P<running_2>\d+)")
_MANY_REQUESTS = 128  # at a time: a safe bound, since reports of slower runs have hundreds
_MAX_RUNNING = 200  # lines to look at, from the first: the load of a benchmark does not change much


def many_requests_in(text: str) -> Iterator[Located]:
    """Drafting with so many requests at a time that it can hardly pay off: in most lines that tell the load."""
    found = acceptance(text)
    if found is None or found.hit is None:
        return
    lines = [
        hit for piece in ("Running: ", "#running-req: ") for hit in islice(hits(text, piece, _RUNNING), _MAX_RUNNING)
    ]
    loads = sorted(int(hit.groups["running"] or hit.groups["running_2"]) for hit in lines)
    running = loads[len(loads) // 2] if loads else 0
    if running >= _MANY_REQUESTS:
        rate = f"{found.rate:.1%}"
        yield found.hit, lambda evidence: MANY_AT_ONCE.finding(evidence, running=running, rate=rate)


# -- slower than plain ------------------------------------------------------------------------------------------------

_PLAIN_LABEL = re.compile(
    r"(?i)\b(?:baseline|plain|vanilla|without (?:an? )?(?:spec\w*|drafts?|assist\w*)|no (?:spec\w*|draft|assist\w*))\b"
)
_SPEC_LABEL = re.compile(
    r"(?i)\b(?:speculat\w*|spec|with (?:an? )?(?:draft|assist\w*)|assisted|drafting|eagle\d?|mtp|medusa|n-?gram)\b"
)
_SLOWER = 0.95  # of the plain speed: less difference may be noise
_MAX_MEASURED = 20  # speeds that someone measured and compares; a server's log has more
_FIGURES = re.compile(r"[\d.,]+|\s+")  # and spaces before them
_HEADING_REACH, _LONGEST_HEADING = 600, 80  # characters


def slower_in(text: str) -> Iterator[Located]:
    """A speed with speculation that is below the plain one. With a loop that verifies one by one, that is suspected."""
    slower = _slower_pair(text)
    if slower is None:
        return
    hit, plain, speculative = slower
    loop = verify_loop(text)
    if loop is None:
        ratio = plain / speculative
        yield hit, lambda evidence: SLOWER.finding(evidence, plain=plain, speculative=speculative, ratio=ratio)
        return
    observed = (
        f"Speculation ran at {speculative:g} tokens/s and plain decoding at {plain:g} tokens/s "
        f"({plain / speculative:.1f}x slower), and the code calls the target inside a loop over the drafted tokens"
    )
    yield loop, lambda evidence: MAYBE_ONE_BY_ONE.finding(evidence, observed=observed)


def _slower_pair(text: str) -> tuple[Hit, float, float] | None:
    """The line with the speculative speed, the plain and the speculative speed, the first pair where it is lower."""
    found = sorted(_speeds(text), key=lambda pair: pair[0].at)
    plain = 0.0
    for hit, speed in found:
        label = _label(hit)
        if label == "plain":
            plain = speed
        elif label == "speculative" and plain and 0 < speed < _SLOWER * plain:
            return hit, plain, speed
    return _slower_by_heading(text, found) if len(found) <= _MAX_MEASURED else None


def _speeds(text: str) -> Iterator[tuple[Hit, float]]:
    """Tokens/s, as the log says it or from a time for tokens."""
    for piece in _UNIT_PIECES:
        for hit in _matching(text, piece, _RATE):
            yield hit, number(hit.groups["rate"])
    for piece in (" tokens in ", "s for "):
        for hit in _matching(text, piece, _PROSE):
            groups = {name.removesuffix("_in"): value for name, value in hit.groups.items() if value}
            yield from ((hit, timing.rate) for timing in _timing(hit, groups["time"], groups["unit"], groups["tokens"]))


def _slower_by_heading(text: str, found: list[tuple[Hit, float]]) -> tuple[Hit, float, float] | None:
    """The same from two lines of the same form, of which lines above tell what was measured: "7b:" and "spec 7b"."""
    plain: dict[str, float] = {}
    for hit, speed in found:
        form, heading = _FIGURES.sub("0", _said(hit)), _heading(text, hit.at)
        if not heading or not form.strip() or _NOT_GENERATION.search(form):
            continue
        if not _SPEC_LABEL.search(heading) or _PLAIN_LABEL.search(heading):
            plain[form] = speed
        elif 0 < speed < _SLOWER * plain.get(form, 0.0):
            return hit, plain[form], speed
    return None


def _heading(text: str, at: int) -> str:
    """The nearest short line above a place that names a way of decoding, else the first line of its paragraph."""
    above = text[max(0, at - _HEADING_REACH) : at].split("\n")[:-1]
    short = [line for line in above if len(line) <= _LONGEST_HEADING]
    named = [line for line in short if _SPEC_LABEL.search(line) or _PLAIN_LABEL.search(line)]
    if named:
        return named[-1]
    paragraph = above[len(above) - above[::-1].index("") :] if "" in above else above if at < _HEADING_REACH else []
    return paragraph[0] if paragraph and paragraph[0] in short else ""


def _said(hit: Hit) -> str:
    """The words of a line before its figure."""
    figures = (hit.groups[name] for name in ("rate", "tokens_in", "time") if hit.groups.get(name))
    return hit.line.partition(next(figures))[0]


def _label(hit: Hit) -> str | None:
    """Whether a line gives a plain or a speculative speed that was measured; None if it does not say."""
    before = _said(hit)
    is_plain, is_speculative = _PLAIN_LABEL.search(before), _SPEC_LABEL.search(before)
    if before.rstrip(" *").endswith(("~", "-", "≈")) or _NOT_GENERATION.search(before):
        return None
    if is_plain:
        return "plain"
    return "speculative" if is_speculative else None


# -- one by one -------------------------------------------------------------------------------------------------------

_COUNTER = re.compile(
    r"(?i)\b(?:num|n|total)?[_ ]?(?P<name>target[_ ](?:model[_ ])?(?:forwards?(?:[_ ]passes)?|calls|evaluations|runs)|"
    r"rounds|iterations|(?:tokens?[_ ])?accepted(?:[_ ](?:draft[_ ])?tokens)?|drafted(?:[_ ]tokens)?|draft[_ ]tokens|"
    r"(?:generated|output|completion|total|new)[_ ]tokens|tokens(?:[_ ]generated)?)\W{1,6}(?P<count>\d{1,9})\b"
)
_FORWARDS = re.compile(r"(?P<count>\d{1,9})\W{1,6}(?:\w )?(?P<size>\d{1,4}(?:\.\d+)?)B forwards?")
_COUNT_FIRST = re.compile(r"(?i)(?P<count>\d{1,9}) (?P<name>iterations|rounds|tokens)\b")
_COUNTERS_NEAR = 600  # characters around the target's counter in which to look for the others
_COUNTER_PIECES = ("target_forward", "target forward", "target_calls", "target calls", "Target forward", "target_runs")


def one_by_one(target_forwards: int, tokens: int, accepted: int | None = None, rounds: int | None = None) -> bool:
    """Whether counters show a loop that runs the target for each drafted token, judged by the most precise counters
    available.

    A round needs one forward pass of the target and gives at least one token: with no token accepted, there are as many
    passes as tokens, and nothing is wrong with the loop. Without counters of rounds or accepted tokens, only clearly
    more passes than tokens are a proof.
    """
    if tokens <= 0 or target_forwards <= 0:
        return False
    if rounds:
        return target_forwards > 1.5 * rounds
    return target_forwards > 1.2 * (tokens - (accepted or 0)) + 1


def one_by_one_in(text: str) -> Iterator[Located]:
    """Finds counters of a speculative loop, in one place of the log, whose target ran once for each token."""
    for hit, counters in _counter_places(text):
        forwards, tokens = counters.get("target", 0), counters.get("tokens", 0)
        drafting = counters.get("drafted") or counters.get("accepted") or counters.get("rounds")
        if not drafting:
            continue
        if one_by_one(forwards, tokens, counters.get("accepted"), counters.get("rounds")):
            yield hit, _one_by_one_maker(counters)
            return
        if forwards >= tokens > 0 and not {"accepted", "rounds"} & set(counters):
            observed = f"The target ran {forwards} times for {tokens} tokens, although {drafting} tokens were drafted"
            yield hit, lambda evidence, observed=observed: MAYBE_ONE_BY_ONE.finding(evidence, observed=observed)  # type: ignore[misc]
            return


def _counter_places(text: str) -> Iterator[tuple[Hit, dict[str, int]]]:
    for piece in _COUNTER_PIECES:
        for hit in hits(text, piece, None):
            yield hit, _counters(text[max(0, hit.at - _COUNTERS_NEAR) : hit.at + _COUNTERS_NEAR])
    for hit in hits(text, "B forwards", _FORWARDS):
        counters = _counters_in_prose(text[max(0, hit.at - _COUNTERS_NEAR) : hit.at + _COUNTERS_NEAR])
        if counters.get("target") == int(hit.groups["count"]):  # the target's line, not the draft's
            yield hit, counters


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


def _counters_in_prose(text: str) -> dict[str, int]:
    """From sentences such as "10 iterations: 40 x 1B forwards, 28 x 3B forwards": the larger model is the target."""
    forwards = {float(found["size"]): int(found["count"]) for found in _FORWARDS.finditer(text)}
    if len(forwards) < 2:
        return {}
    counters = {"target": forwards[max(forwards)], "drafted": forwards[min(forwards)]}
    for found in _COUNT_FIRST.finditer(text):
        counters.setdefault("tokens" if found["name"] == "tokens" else "rounds", int(found["count"]))
    return counters


def _one_by_one_maker(counters: dict[str, int]) -> Callable[[str], Finding]:
    known = [f"{counters[kind]} {kind}" for kind in ("drafted", "accepted", "rounds") if kind in counters]
    detail = f" ({', '.join(known)})" if known else ""
    return lambda evidence: ONE_BY_ONE.finding(
        evidence, forwards=counters["target"], tokens=counters["tokens"], detail=detail
    )
