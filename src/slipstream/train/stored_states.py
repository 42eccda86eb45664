"""StoredStates: the target's states of a corpus, computed once, although a head sees its texts many times."""

from __future__ import annotations

import torch

from slipstream.train.batches import Corpus, TextBatch
from slipstream.train.forward import TargetForward, TargetStates

_MEMORY_SHARE = 0.6  # of what is free on the device; the rest is for the steps


class StoredStates:
    """Called with a batch of its corpus, it gives what the target would."""

    def __init__(self, features: torch.Tensor, hidden: torch.Tensor) -> None:
        self._features = features  # [tokens of the corpus, feature layers * hidden]
        self._hidden = hidden  # [tokens of the corpus, hidden]

    def __call__(self, batch: TextBatch) -> TargetStates:
        return TargetStates(self._features[batch.places], self._hidden[batch.places])


@torch.no_grad()
def stored_states(
    target: TargetForward, corpus: Corpus, batch_tokens: int, device: torch.device, free: int
) -> StoredStates | None:
    """None where they don't fit: the states are then computed in every step. `free`: bytes on the device."""
    widths, dtype, tokens = target.state_widths, target.embedding.dtype, int(corpus.starts[-1])
    if tokens * sum(widths) * dtype.itemsize > free * _MEMORY_SHARE:
        return None
    features, hidden = (torch.empty(tokens, width, dtype=dtype, device=device) for width in widths)
    for chosen in corpus.in_order(batch_tokens):
        batch = corpus.batch(chosen).to(device)
        states = target(batch.tokens)
        features[batch.places], hidden[batch.places] = _own(states.features, batch), _own(states.hidden, batch)
    return StoredStates(features, hidden)


def _own(states: torch.Tensor, batch: TextBatch) -> torch.Tensor:
    """Padding has the place of a text's last token, and so must have its state."""
    within = batch.places - batch.places[:, :1]
    return states.gather(1, within[:, :, None].expand_as(states))
