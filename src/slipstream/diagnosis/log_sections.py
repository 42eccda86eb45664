"""Speeds of several runs in one text: a heading or a command above them says whether a run had speculation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median_low

from slipstream.diagnosis.log_figures import NUMBER, number
from slipstream.parsing.log_scan import Hit

# Names of ways to draft, as people write them: in English, German, French, Spanish and Chinese.
_WAY = (
    r"(?:spekulat\w*|spéculat\w*|especulat\w*|entwurf\w*|brouillon\w*|borrador\w*|(?:草稿|投机|推测)\w*|"
    r"speculat\w*|spec(?:[ _-]?dec\w*)?|draft\w*|assist\w*|eagle-?\d?|mtp|medusa|n-?gram\w*|dflash|nextn|lookahead|"
    r"prompt[ _-]lookup|suffix decod\w*)\b"
)
PLAIN = re.compile(
    rf"(?i)(?<![a-z/])(?:baseline|plain|vanilla|(?:without|no|w/o|ohne|kein\w*|sans|sin)[ _-](?:(?:an?|the) )?{_WAY}|"
    r"(?:without|ohne|sans|sin) (?:it|one|any)\b|"
    rf"(?:不用|不使用|没有|无|关闭) ?{_WAY}|"
    rf"{_WAY} ?[:=]? ?(?:off|disabled|false|none)\b)"
)
SPECULATIVE = re.compile(rf"(?i)(?<![a-z]){_WAY}")
_COMMAND = re.compile(r"^(?:[$#>] ?)?(?:\w+=\S+ )*(?:python3?|vllm|sglang|ollama|llama-[\w-]+|\./\S+|\S+\.(?:py|sh)) ")
_CLIENT = re.compile(r"(?i)bench|client|\bcurl\b|load_?test|genai-perf|guidellm")  # measures a server that runs
_DRAFTS = re.compile(rf"(?i) --?(?:[\w-]*[_-])?{_WAY}(?![= ](?:false|none|off|0)\b)| -md ")
_LOGGED = re.compile(r"\b(?:INFO|DEBUG|WARN(?:ING)?|ERROR)\b|level=|^\[?\d{4}-\d\d-\d\d|^[\d.]+ [IWED] ")
_GENERATION = re.compile(
    r"(?i)(?:\boutput|\bgeneration|\bgen|\bdecode|\btg)(?: token)?(?: throughput| speed)?(?: \(tok(?:en)?s?/s\))?"
    rf"\s*[:=]\s*(?P<rate>{NUMBER})(?: ?t|\s|,|$)|"
    r"(?<!prompt )\beval time =.{0,80}?(?P<eval>[\d.]+) tokens per second"
)
_THROUGHPUT = re.compile(
    r"(?i)(?P<form>[\w. ]{0,40}(?:throughput|speed|tokens?(?:/|[ _]per[ _])s(?:ec(?:ond)?)?|tok/s|tps)[^\d\n:=]{0,24})"
    rf"[:=]\s*(?P<rate>{NUMBER})"
)
_TIME = re.compile(
    r"(?i)(?P<form>[\w. ]{0,40}(?:latency|duration|elapsed|took|tpot|time)[^\d\n:=]{0,24}?)[:=]?\s+"
    rf"(?P<time>{NUMBER}) ?(?P<unit>ms|s|sec|seconds)\b"
)
_NOT_GENERATION = re.compile(
    r"(?i)prompt|encoded|prefill|input|request|req/s|first|ttft|expect|estimate|should|load|warm|compil|captur|speed-?up|"
    r"profil|start|accept|draft"
)
_TIME_UNITS = ("ms", "s", "sec", "seconds")
_LONGEST_TEXT = 200_000  # characters: a comparison that someone writes down is short
_LONGEST_HEADING = 160


@dataclass(frozen=True, slots=True)
class SpeedPair:
    """A line of the run with speculation, and both figures in the same unit. Of times, the smaller one is faster."""

    hit: Hit
    plain: float
    speculative: float
    unit: str = "tokens/s"

    @property
    def ratio(self) -> float:
        """How many times slower speculation is."""
        return self.speculative / self.plain if self.unit in _TIME_UNITS else self.plain / self.speculative

    @property
    def how_much(self) -> str:
        """In words that fit small differences too."""
        return f"{self.ratio:.1f}x" if self.ratio >= 1.05 else f"{self.ratio - 1:.0%}"

    def said(self, value: float) -> str:
        return f"{value:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class _Measured:
    """`form`: the words before the figure, the same in each run. A lower `rank` tells the speed better."""

    rank: int
    form: str
    unit: str
    value: float


_Runs = dict[tuple[int, str, str], dict[str, list[tuple[Hit, float]]]]


def slower_section(text: str, limit: float) -> SpeedPair | None:
    """The first line of a run with speculation whose middle speed is below `limit` of the plain one, and both.

    Figures of the same form are compared: those of generation if both runs have them, else throughput, else times.
    """
    if len(text) > _LONGEST_TEXT:
        return None
    runs = _runs(text)
    for (_, _, unit), speeds in sorted(runs.items()):
        if set(speeds) != {"plain", "speculative"}:
            continue
        plain, speculative = (median_low(value for _, value in speeds[name]) for name in ("plain", "speculative"))
        if not plain or not speculative:
            continue
        pair = SpeedPair(speeds["speculative"][0][0], plain, speculative, unit)
        return pair if pair.ratio * limit > 1 else None
    return None


def _runs(text: str) -> _Runs:
    """The figures by form, then by the kind of run that the heading or command above them names."""
    runs: _Runs = defaultdict(lambda: defaultdict(list))
    label, is_clients = "", False
    for at, line in _lines(text):
        measured = list(_measured(line[:1_000]))
        for one in measured if label else ():
            runs[one.rank, one.form, one.unit][label].append((Hit(at, line.strip(), {}), one.value))
        named = "" if measured else label_of(line.strip())
        is_client = bool(named and _CLIENT.search(line) and _COMMAND.search(f"{line.strip()} "))
        if named and not (is_client and named == "plain" and label and not is_clients):
            label, is_clients = named, is_client
    return runs


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their places. A command that goes on after a backslash is one line."""
    at, start, command = 0, 0, ""
    for line in text.splitlines(keepends=True):
        if command and any(_measured(line)):
            yield start, command
            command = ""
        start = start if command else at
        command += line.rstrip().removesuffix("\\") + " "
        at += len(line)
        if not line.rstrip().endswith("\\"):
            yield start, command
            command = ""
    if command:
        yield start, command


def _measured(line: str) -> Iterator[_Measured]:
    """The figure of a line that tells the speed of generation."""
    if found := _GENERATION.search(line):
        yield _Measured(0, "generation", "tokens/s", number(found["rate"] or found["eval"]))
        return
    for rank, pattern in ((1, _THROUGHPUT), (2, _TIME)):
        found = pattern.search(line)
        if found and not _NOT_GENERATION.search(line):
            unit = "tokens/s" if rank == 1 else found["unit"]
            yield _Measured(rank, found["form"].strip().lower(), unit, number(found["rate" if rank == 1 else "time"]))
            return


def label_of(line: str) -> str:
    """What a heading or a command says of the run below it."""
    is_command = bool(_COMMAND.search(f"{line} "))
    if _LOGGED.search(line) or (len(line) > _LONGEST_HEADING and not is_command):
        return ""
    if is_command:
        return "speculative" if _DRAFTS.search(f"{line} ") else "plain"
    return label_in(line)


def label_in(words: str) -> str:
    """The way of decoding that words name: plain, speculative, or empty if they name none."""
    if PLAIN.search(words):
        return "plain"
    return "speculative" if SPECULATIVE.search(words) else ""
