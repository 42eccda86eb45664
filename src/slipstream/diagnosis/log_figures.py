"""Figures in a log: acceptance, tokens per step, speed, layers on the GPU, size of the KV cache, as engines print them.

The last line of each kind counts: it is the state at the end. Acceptance is summed over many lines, since some engines
print it for a few seconds each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

from slipstream.parsing.log_reading import Log
from slipstream.parsing.log_scan import Hit, line_at

FigureName = Literal["acceptance", "tokens_per_step", "tokens_per_s", "gpu_layers", "kv_bytes", "kv_tokens"]
_MAX_LINES = 1_000  # lines with acceptance to add up, from the end: hours of a server's log
_REACH = 400  # characters of a line before and after the text that is looked for
_GIB, _MIB = 2**30, 2**20
NUMBER = r"(?<![\d.,])\d[\d,]*(?:\.\d+)?"  # with or without commas between thousands, from its first digit on
_DECIMAL_COMMA = re.compile(r"\d{1,3},\d\d?")
_UNITS = {"GiB": _GIB, "MiB": _MIB, "GB": 10**9, "MB": _MIB}  # llama.cpp once wrote MB for MiB


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` in the unit of its name; `of` is the whole that it is a part of: drafted tokens, layers."""

    name: FigureName
    value: float
    shown: str  # for people
    line: int
    of: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Accepted:
    """Drafted and accepted tokens of a log; the rate alone where an engine prints no counts."""

    rate: float
    drafted: int | None = None
    accepted: int | None = None
    hit: Hit | None = None  # the line to quote


Table = tuple[tuple[str, re.Pattern[str]], ...]


def _table(*rows: tuple[str, str]) -> Table:
    """Each pattern with the text to look for."""
    return tuple((piece, re.compile(pattern, re.MULTILINE)) for piece, pattern in rows)


# vLLM: `Accepted: 25 tokens, Drafted: 3652 tokens`, earlier `Number of accepted tokens:
# 1735, Number of draft tokens: 2648`; llama.cpp: `draft acceptance rate = 0.57576 ( 171 accepted / 297 generated)`,
# llama-speculative `n_drafted = 912 / n_accept = 313` on two lines; TabbyAPI: `Draft: 40 / 64 tokens accepted`.
_COUNTS = _table(
    ("SpecDecoding metrics", r"Accepted: (?P<accepted>\d[\d,]*) tokens, Drafted: (?P<drafted>\d[\d,]*) tokens"),
    (
        "draft acceptance",
        r"draft acceptance(?: rate)? = .{0,16}?\(\s*(?P<accepted>\d[\d,]*)(?: accepted)?\s*/\s*(?P<drafted>\d[\d,]*)",
    ),
    ("tokens accepted (", r"Draft:\s+(?P<accepted>\d[\d,]*)\s*/\s*(?P<drafted>\d[\d,]*)\s+tokens accepted"),
)
# llama-server's answers, on one line or on several.
_JSON_COUNTS = re.compile(r'"draft_n":\s*(?P<drafted>\d+),\s*"draft_n_accepted":\s*(?P<accepted>\d+)')
_TOTALS = _table(  # counted from the start: the last line has them all
    (
        "Number of draft tokens:",
        r"Number of accepted tokens: (?P<accepted>\d[\d,]*), Number of draft tokens: (?P<drafted>\d[\d,]*)",
    ),
    (
        "accepted_tokens",
        r"accepted_tokens\W{1,4}(?P<accepted>\d[\d,]*)\W.{0,40}draft(?:ed)?_tokens\W{1,4}(?P<drafted>\d[\d,]*)",
    ),
    (
        "rafted",
        r"(?i)\bdrafted\W{1,3}(?P<drafted>\d[\d,]*)(?: tokens)?\W{1,3}(?:and )?accepted\W{1,3}(?P<accepted>\d[\d,]*)",
    ),
    ("#gen tokens", r"#gen tokens =\s*(?P<drafted>\d[\d,]*), #acc tokens =\s*(?P<accepted>\d[\d,]*)"),
)
# vLLM's metrics: a counter on each line, counted from the start.
_METRICS = _table(
    ("draft_tokens_total", r"spec_decode_num_draft_tokens_total(?:\{.*\})? (?P<drafted>[\d.e+]+)$"),
    ("accepted_tokens_total", r"spec_decode_num_accepted_tokens_total(?:\{.*\})? (?P<accepted>[\d.e+]+)$"),
)
# SGLang: `accept len: 2.1, accept rate: 0.4`; vLLM: `Avg Draft acceptance rate: 62.5%`; llama-speculative: `accept =
# 34.320%`.
_RATES = _table(
    (
        "cceptance",
        r"(?i)(?<!position )\bacceptance[ _]rate\s*[:=]\s*(?P<rate>\d*\.?\d+)(?![\d.]*\s*[-–])\s*(?P<percent>%?)",
    ),
    ("accept rate:", r"accept rate: (?P<rate>[\d.]+)(?P<percent>)"),
    ("accept  ", r"^accept +=\s*(?P<rate>[\d.]+)(?P<percent>%)"),
)
_LENGTHS = _table(
    ("ean acceptance length", r"ean acceptance length\s*[:=]\s*(?P<length>\d+(?:\.\d+)?)"),
    ("mean len =", r"mean len =\s*(?P<length>\d+(?:\.\d+)?)"),
    ("accept len:", r"accept len: (?P<length>\d+(?:\.\d+)?)"),
)
# A speed of generation. Prompts are read faster, and are named so.
_SPEEDS = _table(
    ("tokens per second", r"(?<!prompt )\beval time =.{0,80}?(?P<speed>[\d,.]+) tokens per second"),
    ("eval rate:", r"(?<!prompt )eval rate:\s+(?P<speed>[\d,.]+) tokens/s"),
    ("Generate: ", r"Generate: (?P<speed>[\d,.]+) T/s"),
    ("Avg generation throughput: ", r"Avg generation throughput: (?P<speed>[\d,.]+) tokens/s"),
    ("gen throughput (token/s): ", r"gen throughput \(token/s\): (?P<speed>[\d,.]+)"),
    ("speed: ", r"(?:decoded|generated).{0,60}speed:\s+(?P<speed>[\d,.]+) t/s"),
    (", tg =", r", tg =\s*(?P<speed>[\d,.]+) t/s"),
    ("predicted_per_second", r'"predicted_per_second":\s*(?P<speed>[\d.]+)'),
    ("Output generated in", r"Output generated in .{0,30}\((?P<speed>[\d,.]+) tokens/s"),
)
_LAYERS = _table(("offloaded ", r"offloaded (?P<layers>\d+)/(?P<all>\d+) layers to GPU"))
_KV_BYTES = _table(
    ("KV self size", r"KV self size\s+= +(?P<size>[\d,.]+) (?P<unit>[MG]i?B)"),
    ("kv self size", r"kv self size\s+= +(?P<size>[\d,.]+) (?P<unit>[MG]i?B)"),
    ("llama_kv_cache", r"llama_kv_cache\w*:\s+size =\s*(?P<size>[\d,.]+) (?P<unit>[MG]i?B)"),
    ("KV cache memory:", r"Available KV cache memory: (?P<size>[\d,.]+) (?P<unit>[MG]i?B)"),
    ("KV Cache is allocated", r"K size: (?P<size>[\d,.]+) (?P<unit>GB), V size: (?P<more>[\d.]+)"),
)
_KV_TOKENS = _table(
    ("GPU KV cache size:", r"GPU KV cache size: (?P<tokens>[\d,]+) tokens"),
    ("KV Cache is allocated", r"#tokens: (?P<tokens>[\d,]+)"),
)


def figures(log: Log) -> list[Figure]:
    """The figures of a log, each with its line. Empty if it has none."""
    return [*_acceptance_figures(log), *_speed_figures(log), *_memory_figures(log)]


def _acceptance_figures(log: Log) -> Iterator[Figure]:
    accepted = acceptance(log.text)
    if accepted and accepted.hit:
        counts = f" ({accepted.accepted:,} of {accepted.drafted:,} drafted tokens)" if accepted.drafted else ""
        shown = f"{accepted.rate:.1%} accepted{counts}"
        yield Figure("acceptance", accepted.rate, shown, log.line_number(accepted.hit.at), accepted.drafted)
    if length := tokens_per_step(log.text):
        tokens, hit = length
        yield Figure("tokens_per_step", tokens, f"{tokens:g} tokens per step", log.line_number(hit.at))


def _speed_figures(log: Log) -> Iterator[Figure]:
    if hit := _last(log.text, _SPEEDS):
        speed = number(hit.groups["speed"])
        yield Figure("tokens_per_s", speed, f"{speed:.1f} tokens/s", log.line_number(hit.at))


def _memory_figures(log: Log) -> Iterator[Figure]:
    if hit := _last(log.text, _LAYERS):
        layers, whole = (number(hit.groups[name]) for name in ("layers", "all"))
        shown = f"{layers:g} of {whole:g} layers on the GPU"
        yield Figure("gpu_layers", layers, shown, log.line_number(hit.at), whole)
    if hit := _last(log.text, _KV_BYTES):
        size = (number(hit.groups["size"]) + number(hit.groups.get("more", ""))) * _UNITS[hit.groups["unit"]]
        yield Figure("kv_bytes", size, f"KV cache of {size / 1e9:.2f} GB", log.line_number(hit.at))
    if hit := _last(log.text, _KV_TOKENS):
        tokens = number(hit.groups["tokens"])
        yield Figure("kv_tokens", tokens, f"KV cache for {tokens:,.0f} tokens", log.line_number(hit.at))


def acceptance(text: str) -> Accepted | None:
    """How many drafted tokens were accepted: by counts where the log has them. None if it says nothing of it."""
    for piece, pattern in _COUNTS:
        if counted := list(_from_the_end(text, piece, pattern)):
            return _summed(counted)
    if answers := [
        Hit(found.start("accepted"), line_at(text, found.start("accepted")), found.groupdict())
        for found in islice(_JSON_COUNTS.finditer(text), _MAX_LINES)
    ]:
        return _summed(answers)
    drafted, accepted = (_last(text, (counter,)) for counter in _METRICS)
    if drafted and accepted:
        return _summed([Hit(accepted.at, accepted.line, {**drafted.groups, **accepted.groups})])
    if hit := _last(text, _TOTALS):
        return _summed([hit])
    if hit := _last(text, _RATES):
        rate = number(hit.groups["rate"]) / (100 if hit.groups["percent"] else 1)
        return Accepted(min(rate, 1.0), hit=hit)
    return None


def accepts_drafts(text: str) -> bool:
    """Whether it says that a drafted token was accepted."""
    found = acceptance(text)
    return found is not None and found.rate > 0


def tokens_per_step(text: str) -> tuple[float, Hit] | None:
    """As the log says it, and the line; None if it does not."""
    hit = _last(text, _LENGTHS)
    return (number(hit.groups["length"]), hit) if hit else None


def _summed(counted: list[Hit]) -> Accepted | None:
    drafted, accepted = (sum(int(number(hit.groups[name])) for hit in counted) for name in ("drafted", "accepted"))
    worst = min(
        counted, key=lambda hit: (number(hit.groups["accepted"]) / max(number(hit.groups["drafted"]), 1), hit.at)
    )
    return Accepted(min(accepted / drafted, 1.0), drafted, accepted, worst) if drafted else None


def _last(text: str, table: Table) -> Hit | None:
    """The last line that one of the patterns matches."""
    found = [hit for piece, pattern in table if (hit := next(_from_the_end(text, piece, pattern), None))]
    return max(found, key=lambda hit: hit.at, default=None)


def _from_the_end(text: str, piece: str, pattern: re.Pattern[str]) -> Iterator[Hit]:
    """The lines with `piece` that the pattern matches, the last one first; at most _MAX_LINES are looked at."""
    end = len(text)
    for _ in range(_MAX_LINES):
        at = text.rfind(piece, 0, end)
        if at < 0:
            return
        start = text.rfind("\n", max(0, at - _REACH), at) + 1 or max(0, at - _REACH)
        stop = text.find("\n", at, at + _REACH)
        found = pattern.search(text, start, stop if stop >= 0 else min(len(text), at + _REACH))
        if found:
            yield Hit(at, line_at(text, at), {name: value or "" for name, value in found.groupdict().items()})
        end = max(start, 0) if start < at else at


def number(text: str) -> float:
    """The number in a text with commas between thousands, or before one or two decimals; 0 if there is none."""
    text = text.rstrip(",.")
    text = text.replace(",", "." if _DECIMAL_COMMA.fullmatch(text) else "")
    return float(text) if re.fullmatch(r"\d*\.?\d+(?:e\+\d+)?", text) else 0.0
