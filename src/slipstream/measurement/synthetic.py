"""Synthetic runs: random weights in a known shape, and forced acceptance. Speeds are real, texts are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.core.noise import Domain, uniform
from slipstream.core.protocols import Scores
from slipstream.core.tree import ROOT, DraftTree
from slipstream.core.verify import SamplingState, Verdict, Verifier
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.backends.torch.options import TorchOptions
    from slipstream.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class SyntheticSettings:
    shape: str | None  # of the target; None: a real model
    draft_shape: str | None
    acceptance: float | None  # of each drafted token; None: as the models have it

    @classmethod
    def checked(cls, shape: str | None, draft_shape: str | None, acceptance: float | None) -> SyntheticSettings | None:
        """None where nothing is synthetic. Raises UsageError for what does not fit together."""
        if shape is None and draft_shape is None and acceptance is None:
            return None
        if draft_shape and not shape:
            raise UsageError("--random-draft needs --random-weights: a random draft has no vocabulary of its own")
        if acceptance is not None and not 0 <= acceptance <= 1:
            raise UsageError(f"--synthetic-acceptance is {acceptance}; expected 0 to 1")
        return cls(shape, draft_shape, acceptance)


def forced_acceptance(rate: float) -> Verifier:
    """Takes each drafted token with the chance `rate`, whatever the target says; its own token follows.

    The target's choice is computed at every node on the way, as in the real verifier, so that it costs the same.
    """

    def verify(tree: DraftTree, scores: Scores, choice: SamplingState) -> Verdict:
        path: list[int] = []
        node = ROOT
        while True:
            token = scores.chosen(node)
            token = scores.argmax(node) if token is None else token
            position = choice.position + len(path)
            children = tree.children(node)
            if not children or uniform(choice.sampling.seed, position, 0, Domain.ACCEPT) >= rate:
                return Verdict(tuple(path), token)
            node = children[0]
            path.append(node)

    return Verifier("synthetic", verify, couples=True, judges_unscored=False)


def random_model(
    shape: str, options: TorchOptions, report: Callable[[float], None] = lambda share: None
) -> LoadedModel:
    from slipstream.backends.torch.load import load_model
    from slipstream.loading import LoadedModel
    from slipstream.models.shapes import RandomCheckpoint

    checkpoint = RandomCheckpoint(shape)
    return LoadedModel(load_model(checkpoint, options, report), checkpoint.tokenizer)
