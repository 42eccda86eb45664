"""RunState: all that a run needs to go on where it was, in one file that is whole or not there."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from slipstream.errors import SlipstreamError, UsageError
from slipstream.train.settings import differences
from slipstream.writing import named_errors, opened_whole

Tensors = dict[str, torch.Tensor]


@dataclass(slots=True)
class RunState:
    """`best` are the weights of the best check so far. The data's position is the step."""

    step: int = 0
    elapsed_s: float = 0.0  # of training
    weights: Tensors = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    best: Tensors = field(default_factory=dict)
    best_length: float = 0.0  # expected accepted length of the best check
    checks_without_gain: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)  # lines of the log
    ids: torch.Tensor | None = None  # [draft vocabulary] that the weights are for; None: all of the target's
    is_finished: bool = False

    def save(self, path: Path, settings: dict[str, Any]) -> None:
        """Tensor by tensor, without a copy of them all. Raises SlipstreamError if the disk is full."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        with named_errors(path), opened_whole(path) as file:
            try:
                torch.save({"settings": settings, **fields}, file)
            except RuntimeError as error:  # torch's own, for an error of the system in the middle of a tensor
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise


def load_state(path: Path, settings: dict[str, Any]) -> RunState | None:
    """None where there is no checkpoint. Raises UsageError for other settings, SlipstreamError for a damaged file.

    Its tensors stay in the file until they are used: they take none of the memory that is planned for the run."""
    if not path.exists():
        return None
    try:
        saved = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        then = saved.pop("settings")
        state = RunState(**saved)
    except (OSError, RuntimeError, KeyError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        raise SlipstreamError(f"{path} can't be read ({error}): remove it to train from the beginning") from error
    if then != settings:
        raise UsageError(
            f"{path.parent} holds a run with other options ({differences(settings, then)}): use the same options to go "
            "on, or another --output; --texts lets both use the same text"
        )
    return state


def best_of(state: RunState) -> Tensors:
    """The weights to save: the best checked ones, or the last where nothing was checked yet."""
    return state.best or state.weights
