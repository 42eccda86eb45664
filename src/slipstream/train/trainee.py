"""Trainee: what a run trains. It knows its size, how it begins, and its files; the run has the text and the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from slipstream.train.forward import TargetForward
from slipstream.train.memory import TraineeSize
from slipstream.train.outcomes import TrainableDrafter
from slipstream.train.shards import Text


class Trainee(Protocol):
    what: str  # for messages: "head", "draft model"
    feature_layers: tuple[int, ...]  # of the target, whose states it reads
    steps_ahead: int  # positions that it reads after the end of a text
    ids: torch.Tensor | None  # [draft vocabulary] int64, known once it has read the texts; None: all of the target's

    def notes(self) -> list[str]:
        """What the user should know before anything is made."""
        ...

    def size(self, item_bytes: int) -> TraineeSize:
        """Before there is text. `item_bytes`: of one activation."""
        ...

    def settings(self) -> dict[str, Any]:
        """What it decided by itself, and its weights depend on."""
        ...

    def read(self, texts: Sequence[Text], ids: torch.Tensor | None) -> str:
        """Takes what it needs of the texts to learn from. A sentence about it, for the user; empty: nothing to say.

        `ids`: of the run that goes on, whose weights are for them; None: they are chosen by the texts."""
        ...

    def begin(self, target: TargetForward, device: torch.device, num_kinds: int) -> TrainableDrafter: ...

    def facts(self) -> dict[str, Any]:
        """For its card and its configuration; ready for JSON."""
        ...

    def outputs(self, folder: Path) -> list[Path]:
        """What `save` writes for `folder`. Raises UsageError for a folder that it can't have."""
        ...

    def save(self, folder: Path, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Writes it to `folder`; an earlier save is replaced as a whole."""
        ...
