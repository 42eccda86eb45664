"""TrainOptions and DistilOptions: everything that decides what is trained, with its default. Needs no torch."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import UsageError
from slipstream.models.draft_heads.config import FeatureNorm

_NORMS: tuple[FeatureNorm, ...] = ("none", "each", "all")
OPTIMIZERS = {"muon": "Muon", "adamw": "AdamW"}
_HEAD_RATES = {"muon": 6e-3, "adamw": 1e-3}  # Muon learned more with 8e-3 than with 3e-3; AdamW gave NaN with 3e-3
_DRAFT_RATES = {"muon": 8e-3, "adamw": 1e-3}  # Muon learned more with 8e-3 than with 3e-3 or 1e-3
MAX_HELD_BACK = 0.5
_POSITIVE = ("tokens", "length", "streams", "batch_tokens", "steps", "shard_texts", "check_every")
_WEIGHTS = ("weight_decay", "user_weight", "step_decay")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Text and training. The command line has an option for most fields. A run that goes on must have the same options
    again."""

    target: str = "smollm2-135m"

    # the text
    prompts: Path | None = None  # answer these instead of questions that the target writes itself
    transcripts: Path | None = None  # conversations that are finished: nothing is written
    texts: Path | None = None  # where the text is kept; None: beside the output
    tokens: int = 4_000_000  # of answers, together
    length: int = 512  # tokens of a text, at most
    temperatures: str = "0,0,0.7,0.9"  # of answers; greedy twice, since most use is near it; small models ramble at 1
    streams: int | None = None  # texts written at the same time; None: by the device
    shard_texts: int = 2048  # conversations of a file, at most; a crash loses those of the last minute

    # training
    steps: int = 6000
    seconds: float | None = None  # train for so long instead of so many steps
    batch_tokens: int = 12_288  # of one step, padding included: 32 texts of 384 tokens
    learning_rate: float | None = None  # at its peak; falls to 0 as a cosine. None: that of the optimizer
    warm_up: float = 0.03  # share of the training in which the rate rises
    weight_decay: float = 0.01
    optimizer: str | None = None  # None: by the device
    clip: float = 1.0  # norm of the gradients
    user_weight: float = 0.1  # weight of a user's tokens; the model's own weigh 1
    held_back: float = 0.03  # share of the texts that only judge
    check_every: int = 250  # steps between two looks at the texts held back
    patience: int = 8  # checks without gain until training ends
    save_seconds: float = 60.0  # between two checkpoints
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}; expected 1 or more")
        if self.optimizer not in (None, *OPTIMIZERS):
            raise UsageError(f"--optimizer {self.optimizer!r}; expected {', '.join(OPTIMIZERS)}")
        if self.prompts and self.transcripts:
            raise UsageError("--prompts and --transcripts can't be used together: choose one")
        if not 0 < self.held_back <= MAX_HELD_BACK:
            raise UsageError(f"--held-back is {self.held_back}; expected a share above 0, at most {MAX_HELD_BACK}")
        if self.length < 16:
            raise UsageError(f"--length is {self.length}; expected 16 or more")
        if self.batch_tokens < self.length:
            raise UsageError(f"--batch-tokens is {self.batch_tokens}, but a text may have {self.length}: raise it")
        if self.learning_rate is not None and not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UsageError(f"--learning-rate is {self.learning_rate}; expected a number above 0")
        for name in _WEIGHTS:
            if not 0 <= getattr(self, name, 0.0) < math.inf:
                raise UsageError(f"--{name.replace('_', '-')} is {getattr(self, name)}; expected 0 or more")
        self.answer_temperatures()

    @property
    def usual_rates(self) -> dict[str, float]:
        """By optimizer."""
        raise NotImplementedError

    def answer_temperatures(self) -> list[float]:
        return [float(n) for n in _numbers(self.temperatures, "--temperatures", "0,0.7,1")]

    def recipe(self) -> dict[str, Any]:
        """What the text depends on: shards of another recipe are not used. The content of files is part of it. Raises
        UsageError for one that can't be read."""
        names = ("target", "length", "temperatures", "shard_texts", "seed")
        files = {"prompts": _with_digest(self.prompts), "transcripts": _with_digest(self.transcripts)}
        return {name: value for name, value in self.to_dict().items() if name in names} | files

    def training(self) -> dict[str, Any]:
        """Those that the trained weights depend on."""
        others = {"texts", "streams", "save_seconds"}
        return {name: value for name, value in self.to_dict().items() if name not in others}

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class TrainOptions(RunOptions):
    """Of a draft head."""

    draft_vocab: int = 8192  # ids it can draft; 0: all
    feature_layers: str = ""  # "2,15,27"; empty: an early one, the middle, one near the end
    feature_norm: FeatureNorm = "each"
    norm_before_residual: bool = False
    norm_output: bool = False
    begin_with: str | None = None  # a head to train further, with its shape and vocabulary; None: a new one
    draft_steps: int = 5  # tokens drafted from one position, each from the head's own output before it
    step_decay: float = 0.8  # weight of a step against the one before it

    def __post_init__(self) -> None:
        RunOptions.__post_init__(self)
        if self.draft_steps < 1:
            raise UsageError(f"--draft-steps is {self.draft_steps}; expected 1 or more")
        if self.feature_norm not in _NORMS:
            raise UsageError(f"--feature-norm {self.feature_norm!r}; expected {', '.join(_NORMS)}")
        self.chosen_layers()

    @property
    def usual_rates(self) -> dict[str, float]:
        return _HEAD_RATES

    def chosen_layers(self) -> tuple[int, ...]:
        """Empty: the default for the target."""
        return tuple(int(float(n)) for n in _numbers(self.feature_layers, "--feature-layers", "2,15,27"))


@dataclass(frozen=True, slots=True)
class DistilOptions(RunOptions):
    """Of a draft model."""

    layers: int | None = None  # the first ones of the target; None: an eighth of them

    def __post_init__(self) -> None:
        RunOptions.__post_init__(self)
        if self.layers is not None and self.layers < 1:
            raise UsageError(f"--layers is {self.layers}; expected 1 or more")

    @property
    def usual_rates(self) -> dict[str, float]:
        return _DRAFT_RATES


def _numbers(text: str, option: str, example: str) -> list[str]:
    numbers = [part.strip() for part in text.split(",") if part.strip()]
    if not all(number.replace(".", "", 1).isdigit() for number in numbers) or (
        option == "--temperatures" and not numbers
    ):
        raise UsageError(f"{option} {text!r}; expected numbers separated by commas, for example {example}")
    return numbers


def _with_digest(path: Path | None) -> str | None:
    """The file and what is in it, for comparing and for a message; what is no regular file can be read only once."""
    if path is None:
        return None
    try:
        if path.exists() and not path.is_file():
            return str(path)
        with path.open("rb") as file:
            return f"{path} (SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()[:12]})"
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error


def differences(now: dict[str, Any], then: dict[str, Any]) -> str:
    """The options that differ, for a message; empty if none does."""
    names = [name for name in now if now[name] != then.get(name)]
    return ", ".join(f"--{name.replace('_', '-')} was {then.get(name)}, now {now[name]}" for name in names)
