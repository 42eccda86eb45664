"""StoredStates: the target's states of a corpus, computed once, although a head sees its texts many times."""

from __future__ import annotations

from dataclasses import fields

import torch

from slipstream.train.batches import Corpus, TextBatch
from slipstream.train.forward import TargetForward, TargetStates

_BESIDES = 12  # bytes of a token for its norm and choice


class StoredStates:
    """Called with a batch of its corpus, it gives what the target would."""

    def __init__(self, states: TargetStates) -> None:
        self._states = states  # in place of texts and length, the tokens of the corpus

    def __call__(self, batch: TextBatch) -> TargetStates:
        return TargetStates(*(part[batch.places] for part in _parts(self._states)))


@torch.no_grad()
def stored_states(
    target: TargetForward, corpus: Corpus, batch_tokens: int, device: torch.device, max_bytes: int
) -> StoredStates | None:
    """None where they take more than `max_bytes`: the states are then computed in every step."""
    widths, dtype, tokens = target.state_widths, target.embedding.dtype, int(corpus.starts[-1])
    if tokens * (sum(widths) * dtype.itemsize + _BESIDES) > max_bytes:
        return None
    features, hidden = (torch.empty(tokens, width, dtype=dtype, device=device) for width in widths)
    norms, choices = (torch.empty(tokens, dtype=kind, device=device) for kind in (torch.float32, torch.int64))
    kept = TargetStates(features, hidden, norms, choices)
    for chosen in corpus.in_order(batch_tokens):
        batch = corpus.batch(chosen).to(device)
        for own, part in zip(_parts(kept), _parts(target(batch.tokens)), strict=True):
            own[batch.places] = _own(part, batch)
    return StoredStates(kept)


def _parts(states: TargetStates) -> list[torch.Tensor]:
    return [getattr(states, part.name) for part in fields(states)]


def _own(states: torch.Tensor, batch: TextBatch) -> torch.Tensor:
    """Padding has the place of a text's last token, and so must have its state."""
    within = batch.places - batch.places[:, :1]
    texts = torch.arange(len(within), device=within.device)[:, None]
    return states[texts, within]
