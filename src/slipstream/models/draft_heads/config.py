"""HeadConfig: the shape of a draft head in the style of EAGLE-3, for all file formats.

A head is one decoder layer that reads the target's own hidden states. For the token at position t it reads two things:

    features of position t     hidden states of the target after some of its layers, side by side, made narrower by `fc`
    token at position t + 1    its embedding

and predicts the token at t + 2. From there on it goes on alone: what its layer gave takes the place of the features. It
has a small vocabulary of its own; each of its ids stands for one of the target's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.models.config import DecoderConfig

FeatureNorm = Literal["none", "each", "all"]
NUM_DEFAULT_LAYERS = 3  # of default_feature_layers


@dataclass(frozen=True, slots=True)
class HeadConfig:
    layer: DecoderConfig  # of the head's one layer; vocab_size is the target's
    draft_vocab_size: int  # ids that the head can draft
    feature_layers: tuple[int, ...]  # features are taken after so many layers of the target; empty: the default ones
    target_hidden_size: int
    feature_norm: FeatureNorm = "none"  # before `fc`: of each layer's features, or of all of them together
    norm_before_residual: bool = False  # the residual stream starts from the normed features
    norm_output: bool = False  # the next step reads the output after the last norm, not before it
    own_embedding: bool = False  # otherwise the target's
    trained_context: int | None = None  # tokens of the longest text it was trained on
    target: str | None = None  # the model it was trained for

    @property
    def features_size(self) -> int:
        return (len(self.feature_layers) or NUM_DEFAULT_LAYERS) * self.target_hidden_size


def default_feature_layers(num_layers: int) -> tuple[int, int, int]:
    """An early layer, the middle, and one near the end, as EAGLE-3 takes them."""
    return (2, num_layers // 2, num_layers - 3)
