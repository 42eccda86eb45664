"""Speeds in a log: that of a CPU, and one with speculation that is below the plain one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from slipstream.diagnosis.log_figures import NUMBER, number
from slipstream.diagnosis.log_one_by_one import MAYBE_ONE_BY_ONE
from slipstream.diagnosis.log_sections import PLAIN, SpeedPair, label_in, slower_section
from slipstream.diagnosis.log_tables import slower_table
from slipstream.findings import rule
from slipstream.parsing.log_scan import Hit, Located, first_hit, hits
from slipstream.parsing.verify_loops import verify_loop

SLOW_AS_A_CPU = rule(
    "log-cpu-speed",
    "slows",
    "The speed is that of a CPU",
    "{speed}{bandwidth}. This {verb} the speed of a CPU, not of a GPU. The log reports no layer on the GPU.",
    "If this machine has a GPU, put the model on it first (-ngl 99; llama-cpp-python: n_gpu_layers=-1 and a build "
    "with GPU support; verbose=True must say `offloaded N/N layers`); that gains more than any draft. To check: "
    "slipstream doctor.",
)
SLOWER = rule(
    "log-slower-than-plain",
    "slows",
    "Speculation is slower than plain decoding",
    "Measured with speculation: {speculative}; with plain decoding: {plain}. That is {how_much} slower. The "
    "causes, most frequent first: few drafted tokens are accepted, the draft is slow compared to the target, many "
    "requests run at the same time, drafts are verified one at a time.",
    "Look at the acceptance first (below a third it rarely pays off), then count the target's forward passes (there "
    "must be far fewer than tokens). What the pair can reach here: slipstream doctor --target T --draft D; measured: "
    "slipstream bench --model T --draft D.",
)
CPU_TOKENS_PER_S = 8.0  # below this, a model of unknown size is assumed to run on the CPU
CPU_BANDWIDTH_GB = 130.0  # desktop memory reads 20 to 100 GB/s, GPUs 200 and more
_MIN_TOKENS = 8  # fewer tokens do not show the speed
_MAX_SPEEDS = 2_000  # lines with a unit of speed to look at

_UNIT = r"(?:[Tt]ok(?:en)?s?/s(?:ec(?:ond)?)?|tokens per second|t/s|tps)\b"
_UNIT_PIECES = ("tok/s", "toks/s", "oken/s", "okens/s", "tokens per second", " t/s", "tps")
_TIME = rf"(?P<time>{NUMBER}) ?(?P<unit>ms|s|sec|seconds)\b"
_NOT_GENERATION = re.compile(
    r"(?i)prompt|encoded|prefill|input|throughput|expect|estimate|should|target:|Process|warm-?up|profil|load|compil|"
    r"captur|download|start|init|graph|weights"
)
# Lines whose number of tokens is a size or a limit, not that of an answer.
_NOT_ANSWER = re.compile(r"(?i)cache|context|concurren|limit|vocab|prompt|train|per request|window")

_EVAL = re.compile(
    r"(?<!prompt )\beval time =\s*(?P<ms>[\d.]+) ms /\s*(?P<tokens>\d+) (?:tokens|runs)\s*\(.{0,80}tokens per second"
)
_PROSE = re.compile(
    rf"{_TIME} (?:for|per) (?P<tokens>{NUMBER}) tokens|"
    rf"(?P<tokens_in>{NUMBER}) tokens in\s+(?P<time_in>{NUMBER}) ?(?P<unit_in>ms|s|sec|seconds)\b"
)
_PER_TOKEN = re.compile(rf"(?P<ms>{NUMBER}) ?ms(?:/| per )(?:token|tok|T)\b")
_RATE = re.compile(rf"(?P<rate>{NUMBER}) ?{_UNIT}")
_AVERAGE = re.compile(rf"(?i)\b(?:average|avg|mean|median|elapsed|took|latency)\W{{1,6}}{_TIME}")
_TOKENS_SAID = re.compile(rf"(?im)^(?P<before>.{{0,200}}?)(?P<tokens>{NUMBER})[ -]tokens?\b(?!/| per).{{0,80}}")
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
            verb = "is" if read and timing.is_sure else "may be"
            yield Located(timing.hit, SLOW_AS_A_CPU.finding(speed=timing.text, bandwidth=read, verb=verb))
            return


def _timings(text: str) -> Iterator[_Timing]:
    """The timings of generation, the most precise kinds first."""
    for hit in islice(hits(text, "eval time =", _EVAL), _MAX_SPEEDS):
        yield from _timing(hit, hit.groups["ms"], "ms", hit.groups["tokens"])
    for piece in (" tokens in ", "s for ", "s per "):
        for hit in _generation(text, piece, _PROSE):
            yield from _prose_timing(hit)
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
            said_near = (found for found in _TOKENS_SAID.finditer(near) if not _NOT_ANSWER.search(found[0]))
            tokens = next(said_near, None)
            for timing in _timing(hit, hit.groups["time"], hit.groups["unit"], tokens["tokens"] if tokens else "0"):
                said = f"{timing.text} (the number of tokens is from another line)"
                yield _Timing(hit, timing.rate, said, is_sure=False)


def _prose_timing(hit: Hit) -> Iterator[_Timing]:
    groups = {name.removesuffix("_in"): value for name, value in hit.groups.items() if value}
    return _timing(hit, groups["time"], groups["unit"], groups["tokens"])


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


# -- slower than plain ------------------------------------------------------------------------------------------------

_SLOWER = 0.95  # of the plain speed: less difference may be noise
_SLOWER_NAMED = 0.98  # where both lines name what was measured: a smaller difference counts there
_MAX_MEASURED = 20  # speeds that someone measured and compares; a server's log has more
_FIGURES = re.compile(r"[\d.,]+|\s+")  # and spaces before them
_SPEEDUP = re.compile(rf"(?i)speed-?up\b[^\d\n|]{{0,20}}(?P<ratio>{NUMBER})(?! ?%)")
_SLOWER_SAID = re.compile(rf"(?i)(?:(?P<percent>{NUMBER}) ?%|(?P<times>{NUMBER}) ?[x×]) slower\b")
_PLAIN_IS = re.compile(rf"{PLAIN.pattern}[^.;,\d]{{0,20}}\b(?:is|was|runs?)\b[^.;,]{{0,20}}slower")
_WITH = re.compile(r"(?i)\bwith(?: it| one)?\W*$")  # the other part of "without a draft"
_HEADING_REACH, _LONGEST_HEADING = 600, 80  # characters


def slower_in(text: str) -> Iterator[Located]:
    """A speed with speculation that is below the plain one. If the text has a loop that verifies one by one, it may be
    the cause."""
    slower = _slower_pair(text)
    if slower is None:
        return
    plain, speculative = slower.said(slower.plain), slower.said(slower.speculative)
    loop = verify_loop(text)
    if loop is None:
        made = SLOWER.finding(plain=plain, speculative=speculative, how_much=slower.how_much)
        yield Located(slower.hit, made)
        return
    observed = (
        f"Measured with speculation: {speculative}; with plain decoding: {plain} "
        f"({slower.how_much} slower); and the code calls the target inside a loop over the drafted tokens"
    )
    yield Located(loop, MAYBE_ONE_BY_ONE.finding(observed=observed))


def _slower_pair(text: str) -> SpeedPair | None:
    """The line with the speculative speed, and both speeds: the first pair where it is lower."""
    found = sorted(_speeds(text), key=lambda pair: pair[0].at)
    if by_label := _slower_by_label(found):
        return by_label
    by_heading = _slower_by_heading(text, found) if len(found) <= _MAX_MEASURED else None
    return by_heading or slower_section(text, _SLOWER) or slower_table(text, _SLOWER) or _stated(text)


def _stated(text: str) -> SpeedPair | None:
    """From the middle one of the lines that state a speedup, or else from the first that says how much slower."""
    speedups = [(hit, number(hit.groups["ratio"])) for hit in _ratios(text, ("peedup", "peed-up"), _SPEEDUP)]
    if speedups:
        hit, ratio = sorted(speedups, key=lambda one: one[1])[len(speedups) // 2]
        return SpeedPair(hit, 1.0, ratio, "x the plain speed") if 0 < ratio < _SLOWER else None
    for hit in _ratios(text, ("slower", "SLOWER"), _SLOWER_SAID):
        percent, times = number(hit.groups["percent"]), number(hit.groups["times"])
        ratio = 1 - percent / 100 if percent else 1 / times if times else 1.0
        if label_in(hit.line) and not _PLAIN_IS.search(hit.line) and 0 < ratio < _SLOWER:
            return SpeedPair(hit, 1.0, round(ratio, 2), "x the plain speed")
    return None


def _ratios(text: str, pieces: tuple[str, ...], pattern: re.Pattern[str]) -> list[Hit]:
    return [hit for piece in pieces for hit in _generation(text, piece, pattern)]


def _slower_by_label(found: list[tuple[Hit, float]]) -> SpeedPair | None:
    """From lines that name the way of decoding themselves, in either order: "with eagle: 59 tps"."""
    plain, waiting = 0.0, None
    for hit, speed in found:
        label = _label(hit)
        if label == "plain":
            plain = speed
            if waiting and 0 < waiting[1] < _SLOWER_NAMED * plain:
                return SpeedPair(waiting[0], plain, waiting[1])
        elif label and plain and 0 < speed < _SLOWER_NAMED * plain:
            return SpeedPair(hit, plain, speed)
        waiting = (hit, speed) if label == "speculative" and not plain else None
    return None


def _speeds(text: str) -> Iterator[tuple[Hit, float]]:
    """Tokens/s, as the log says it or from a time for tokens."""
    for piece in _UNIT_PIECES:
        for hit in _matching(text, piece, _RATE):
            yield from ((part, number(part.groups["rate"])) for part in _parts(hit))
    for piece in (" tokens in ", "s for "):
        for hit in _matching(text, piece, _PROSE):
            yield from ((hit, timing.rate) for timing in _prose_timing(hit))


def _parts(hit: Hit) -> Iterator[Hit]:
    """A line's speeds, each with the words before it: "plain: 25 tokens/s, with a draft: 12 tokens/s"."""
    start = 0
    for found in islice(_RATE.finditer(hit.line), _MAX_MEASURED):
        yield Hit(hit.at, hit.line[start:].lstrip(".,;: "), {"rate": found["rate"]})
        start = found.end()


def _slower_by_heading(text: str, found: list[tuple[Hit, float]]) -> SpeedPair | None:
    """From two lines of the same form below headings that name what was measured: "7b:" and "spec 7b"."""
    plain: dict[str, float] = {}
    for hit, speed in found:
        form, heading = _FIGURES.sub("0", _said(hit)), _heading(text, hit.at)
        if not heading or not form.strip() or _NOT_GENERATION.search(form):
            continue
        if label_in(heading) != "speculative":
            plain[form] = speed
        elif 0 < speed < _SLOWER * plain.get(form, 0.0):
            return SpeedPair(hit, plain[form], speed)
    return None


def _heading(text: str, at: int) -> str:
    """The nearest short line above a place that names a way of decoding, else the first line of its paragraph."""
    above = text[max(0, at - _HEADING_REACH) : at].split("\n")[:-1]
    short = [line for line in above if len(line) <= _LONGEST_HEADING]
    named = [line for line in short if label_in(line)]
    if named:
        return named[-1]
    paragraph = above[len(above) - above[::-1].index("") :] if "" in above else above if at < _HEADING_REACH else []
    return paragraph[0] if paragraph and paragraph[0] in short else ""


def _said(hit: Hit) -> str:
    """The words of a line before its figure."""
    figures = (hit.groups[name] for name in ("rate", "tokens_in", "time") if hit.groups.get(name))
    return hit.line.partition(next(figures))[0]


def _label(hit: Hit) -> str:
    """Whether a line gives a plain or a speculative speed that was measured; empty if it does not say."""
    before = _said(hit)
    is_guess = before.rstrip(" *").endswith(("~", "-", "≈")) or _NOT_GENERATION.search(before)
    return "" if is_guess else label_in(before) or ("speculative" if _WITH.search(before) else "")
