"""Recordings: what drafters would have proposed at every position of real answers, and how much of it was right.

No text and no token ids are in them. A proposal is a chain; of it are kept the number of leading tokens that the target
chose too, and the drafter's confidences.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "recordings"
_PER_MILLE = 1000


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drafter's chain at one position: its confidences, and how many of its first tokens are right."""

    num_right: int
    confidence: tuple[float, ...]


NOTHING = Proposal(0, ())


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """`proposals[drafter][p]` is the proposal when p + 1 tokens of the answer are known."""

    kind: str
    num_prompt_tokens: int
    num_tokens: int
    proposals: dict[str, tuple[Proposal, ...]]

    def proposal(self, drafter: str, num_known: int) -> Proposal:
        at = num_known - 1
        proposals = self.proposals[drafter]
        return proposals[at] if 0 <= at < len(proposals) else NOTHING


@dataclass(frozen=True, slots=True)
class Recording:
    """`about`: the models, the backend and the settings that it was made with."""

    name: str
    about: dict[str, Any]
    answers: tuple[RecordedAnswer, ...]


def write_recording(path: Path, recording: Recording) -> None:
    """Compact JSON, compressed; the same recording is always the same bytes."""
    data = {"about": recording.about, "answers": [_as_json(answer) for answer in recording.answers]}
    text = json.dumps(data, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def read_recording(name: str) -> Recording:
    """A committed recording by its name, `qwen` for `recordings/qwen.json.gz`."""
    path = FOLDER / f"{name}.json.gz"
    data = json.loads(gzip.decompress(path.read_bytes()))
    return Recording(name, data["about"], tuple(_from_json(answer) for answer in data["answers"]))


def _as_json(answer: RecordedAnswer) -> dict[str, Any]:
    return {
        "kind": answer.kind,
        "prompt": answer.num_prompt_tokens,
        "tokens": answer.num_tokens,
        "proposals": {
            drafter: [[p.num_right, *(round(c * _PER_MILLE) for c in p.confidence)] for p in proposals]
            for drafter, proposals in answer.proposals.items()
        },
    }


def _from_json(data: dict[str, Any]) -> RecordedAnswer:
    return RecordedAnswer(
        kind=data["kind"],
        num_prompt_tokens=data["prompt"],
        num_tokens=data["tokens"],
        proposals={
            drafter: tuple(Proposal(row[0], tuple(c / _PER_MILLE for c in row[1:])) for row in rows)
            for drafter, rows in data["proposals"].items()
        },
    )
