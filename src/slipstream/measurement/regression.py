"""What changed between two benchmark results, beyond noise.

A figure changed if the two 95 % intervals don't overlap and the medians differ by more than 5 %. It is a regression if
the figure fell, if a text no longer equals that of plain decoding, or if a run is missing.

Tokens/s and speed-up have measured intervals. Acceptance and accepted length are counts, so their intervals follow from
the number of tokens. These two explain the speed. If an outer figure of the same run rose, for example because a policy
drafts deeper, a fall of theirs is only a note.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from slipstream.errors import UsageError
from slipstream.measurement.results import PLAIN, Interval, PlainData

SMALLEST_CHANGE = 0.05  # share of the median before; two quiet runs on one machine differ by 3 to 4 %
_EXPLAINING = ("mean_accepted_length", "acceptance_rate")

Outcome = Literal["regression", "improvement", "note"]
_Key = tuple[str, str]  # drafter, kind


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one run. `metric` is the field's name, or `run` if the run itself was added or removed."""

    drafter: str
    kind: str
    metric: str
    outcome: Outcome
    before: Interval | None
    after: Interval | None
    note: str = ""

    @property
    def relative(self) -> float | None:
        """The relative change of the median; None if there is no such figure."""
        if self.before is None or self.after is None or not self.before.value:
            return None
        return self.after.value / self.before.value - 1


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """What changed beyond noise, in the order of `before`, then new runs. Empty if nothing changed.

    Raises UsageError if a result lacks a field, or if the two have no run in common.
    """
    with _damage_reported():
        old, new = _by_key(before), _by_key(after)
        if not old.keys() & new.keys():
            raise UsageError("the two results have no run in common: no drafter and kind of text is in both")
        changes = [change for key, run in old.items() for change in _compare_runs(key, run, new.get(key))]
    added = [key for key in new if key not in old]
    return changes + [Change(*key, "run", "note", None, None, "only in the second result") for key in added]


def sentence(changes: list[Change]) -> str:
    """What changed, in one sentence."""
    counts = [
        _count(sum(change.outcome == outcome for change in changes), outcome)
        for outcome in ("regression", "improvement", "note")
    ]
    return ", ".join(count for count in counts if count) or "no change beyond noise"


def unlike(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Reasons why the two may not be comparable, one line each: another machine, setting or version, or too few
    samples.

    Raises UsageError if a result lacks a field.
    """
    with _damage_reported():
        lines = _differences("machine", before["machine"], after["machine"], ("processor", "cores", "device", "gpus"))
        lines += _differences("setting", before["settings"], after["settings"])
        libraries = [_without_slipstream(result["machine"]["versions"]) for result in (before, after)]
        lines += _differences("version", libraries[0], libraries[1])
        for result, name in ((before, "first"), (after, "second")):
            lines += [f"the {name} result is {word}" for word in ("partial", "synthetic") if result.get(word)]
            if any(run["num_prompts"] * run["num_passes"] < 2 for run in result["runs"]):
                lines.append(f"the {name} result has runs that were measured only once: their noise is unknown")
    return lines


@contextmanager
def _damage_reported() -> Iterator[None]:
    """A file of the right schema may still lack a field, for example if it was edited by hand."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"a result has a missing or wrong field: {type(error).__name__}: {error}") from error


def _by_key(result: Mapping[str, Any]) -> dict[_Key, PlainData]:
    return {(run["drafter"], run["kind"]): run for run in result["runs"]}


def _compare_runs(key: _Key, before: PlainData, after: PlainData | None) -> list[Change]:
    if after is None:
        return [Change(*key, "run", "regression", None, None, "missing from the second result")]
    changes: list[Change] = []
    texts = before["same_text"], after["same_text"]
    if None not in texts and texts[0] != texts[1]:  # None: acceptance was forced
        words = "the text no longer equals that of plain decoding", "the text equals that of plain decoding again"
        fixed = bool(after["same_text"])
        outcome: Outcome = "improvement" if fixed else "regression"
        changes.append(Change(*key, "same_text", outcome, None, None, words[fixed]))
    old, new = _figures(before), _figures(after)
    rose = ""  # an outer figure that rose
    for metric in old:
        change = _change(key, metric, old[metric], new[metric])
        if change is None:
            continue
        if change.outcome == "improvement":
            rose = rose or metric
        elif rose and metric in _EXPLAINING:
            change = replace(change, outcome="note", note=f"fell while {rose} rose")
        changes.append(change)
    return changes


def _figures(run: PlainData) -> dict[str, Interval]:
    """The compared figures of a run, outer figures first: what a user notices, then what explains it."""
    figures = {"tokens_per_s": _interval(run["tokens_per_s_interval"])}
    if run["drafter"] == PLAIN:
        return figures
    return figures | {
        "speedup": _interval(run["speedup"]),
        "mean_accepted_length": _length_interval(run["mean_accepted_length"], run["target_forwards"]),
        "acceptance_rate": _share_interval(run["acceptance_rate"], run["num_drafted"]),
    }


def _interval(data: PlainData) -> Interval:
    return Interval(float(data["value"]), float(data["low"]), float(data["high"]))


def _share_interval(share: float, count: int) -> Interval:
    """Wilson's 95 % interval of a share of `count` trials; without trials, 0 to 1."""
    if count <= 0:
        return Interval(share, 0.0, 1.0)
    z2 = 1.96**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    reach = math.sqrt(z2 * max(0.0, share * (1 - share)) / count + (z2 / (2 * count)) ** 2) / (1 + z2 / count)
    return Interval(share, middle - reach, middle + reach)


def _length_interval(length: float, rounds: int) -> Interval:
    """95 % interval of a mean of `rounds` lengths, assuming that each next token is accepted with the same
    probability.
    """
    if rounds <= 0:
        return Interval(length, 0.0, math.inf)
    reach = 1.96 * math.sqrt(max(0.0, length * (length - 1)) / rounds)
    return Interval(length, length - reach, length + reach)


def _change(key: _Key, metric: str, before: Interval, after: Interval) -> Change | None:
    """None if within noise, or if a figure is not a number."""
    if not abs(after.value - before.value) > SMALLEST_CHANGE * abs(before.value):
        return None
    if after.high < before.low:
        return Change(*key, metric, "regression", before, after)
    if after.low > before.high:
        return Change(*key, metric, "improvement", before, after)
    return None


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}" if number else ""


def _without_slipstream(versions: PlainData) -> dict[str, Any]:
    """Slipstream's own version is left out: comparing versions is the purpose."""
    return {name: version for name, version in versions.items() if name != "slipstream"}


def _differences(what: str, before: PlainData, after: PlainData, names: tuple[str, ...] = ()) -> list[str]:
    wanted = names or tuple(dict.fromkeys([*before, *after]))
    return [
        f"{what} {name} differs: {before.get(name)!r} and {after.get(name)!r}"
        for name in wanted
        if before.get(name) != after.get(name)
    ]
