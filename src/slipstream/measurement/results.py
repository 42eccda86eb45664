"""BenchResult: what a benchmark found, as it is written with --json. The dataclasses below are the schema.

`schema` is `slipstream.bench/1`; the number rises when a field changes its meaning or goes away, not when one is added.

Definitions, the same everywhere:
- tokens/s: tokens after the first over the seconds after the first, of one stream.
- speed-up: speculative over plain tokens/s on the same prompt in the same pass; the value is the median over prompts
  and passes, low and high its 95 % bootstrap interval.
- acceptance rate: accepted / drafted tokens, the target's own (bonus) token left out.
- mean accepted length: tokens a round, the bonus token counted; plain decoding has 1.
- theoretical speed-up: mean accepted length x plain round / (drafting + scoring of a round): what is left when
  everything but the two models is free.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from slipstream.errors import UsageError
from slipstream.reading import MAX_DATA_BYTES, read_given

SCHEMA = "slipstream.bench/1"
PLAIN = "none"  # the drafter of plain decoding
ALL_KINDS = "all"
PlainData = Mapping[str, Any]  # of one of the dataclasses below
VerdictWord = Literal["pays", "does not pay", "no difference", "nothing drafted", "not compared", "baseline", "broken"]
NOT_COMPARED: Final = "not compared"  # the verdict where plain decoding was not measured
NOTHING_DRAFTED: Final = "nothing drafted"  # the verdict where the drafter proposed nothing that was scored
NOTHING_SHOWN = "nothing was drafted: nothing was shown"
NO_COUNTERS = "the engine reports no counters: whether it drafts is not known"


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and its 95 % bootstrap interval; with fewer than six samples, their range widened by itself."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """Where it ran."""

    processor: str
    cores: int
    memory_gb: float
    device: str  # what the model ran on
    gpus: list[str]
    copy_gb_per_s: float  # measured: bytes read and written a second by a large copy on that device
    versions: dict[str, str]  # slipstream, python, torch …


@dataclass(frozen=True, slots=True)
class RowCost:
    """What one forward of the target takes."""

    rows: int
    seconds: float
    over_one: float


@dataclass(frozen=True, slots=True)
class BenchVerdict:
    word: VerdictWord
    why: str


@dataclass(frozen=True, slots=True)
class Run:
    """One drafter on one kind of text; `kind` is `all` for all of them together."""

    drafter: str
    kind: str
    num_prompts: int
    num_passes: int
    num_tokens: int
    target_forwards: int
    num_drafted: int
    num_accepted: int
    tokens_per_s: float
    tokens_per_s_interval: Interval
    speedup: Interval
    ttft_s: float
    end_to_end_s: float  # median seconds of a whole answer
    acceptance_rate: float
    mean_accepted_length: float
    accepted_by_position: list[float]  # of the rounds that drafted this deep, the share accepted this deep
    draft_share: float  # of the time after the first token
    score_share: float
    rest_share: float
    theoretical_speedup: float
    of_theoretical: float  # speed-up reached / theoretical
    read_gb_per_s: float  # weight bytes a second that the target's forwards read
    same_text: bool | None  # as plain decoding, on every prompt; None where acceptance was forced
    verdict: BenchVerdict
    drafted: bool | None = None  # whether anything was; None if the engine does not report it


@dataclass(frozen=True, slots=True)
class DraftLengthPoint:
    """Speed-up at one fixed draft length."""

    drafter: str
    length: int
    speedup: float
    chosen: bool


@dataclass(frozen=True, slots=True)
class BenchResult:
    machine: MachineRecord
    settings: dict[str, Any]  # model, draft, drafters, policy, prompts, limit, max_tokens, temperature, seed, passes …
    runs: list[Run]
    verdict: BenchVerdict
    command: str
    created: str  # ISO date and time
    cost_by_rows: list[RowCost] = field(default_factory=list)
    speedup_by_length: list[DraftLengthPoint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    partial: bool = False  # it was interrupted
    synthetic: bool = False  # random weights or forced acceptance: speeds are real, texts are not
    schema: str = SCHEMA

    def __repr__(self) -> str:
        return f"<BenchResult {self.verdict.word}: {self.verdict.why}>"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def all_same_text(values: Iterable[bool | None]) -> bool | None:
    """`same_text` of several runs together: False where one differs, None where one can't be compared."""
    found = set(values)
    return None if None in found and False not in found else False not in found


TextComparison = Literal["yes", "no", "forced", "nothing drafted"]


def text_comparison(runs: Sequence[Mapping[str, Any]]) -> TextComparison:
    """Whether the texts are those of plain decoding. A run that drafted nothing shows nothing, unless it differs."""
    others = [run for run in runs if run["drafter"] != PLAIN]
    showing = [run for run in others if run.get("drafted") is not False or run["same_text"] is False]
    if not showing:
        return "nothing drafted"
    same = all_same_text(run["same_text"] for run in showing)
    return "forced" if same is None else "yes" if same else "no"


def read_result(path: Path) -> dict[str, Any]:
    """A result file as plain data. Raises UsageError when it is none, or of a schema this version does not know."""
    try:
        data = json.loads(read_given(path, MAX_DATA_BYTES))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise UsageError(f"{path} is not a benchmark result: its schema is {found!r}, expected {SCHEMA!r}")
    return data
