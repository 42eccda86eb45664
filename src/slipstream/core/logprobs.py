"""Log probabilities of a token and of the likeliest tokens in its place, for requests that ask for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.core.sampling import Row


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of the model itself, before temperature, penalties and filters."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # ids and log probabilities, likeliest first


def token_logprobs(row: Row, token: int, num_top: int) -> TokenLogprobs:
    """`row`: the target's logits [vocab] at the token's place."""
    peak = float(row.max())
    total = peak + float(np.log(np.exp(row - np.float32(peak), dtype=np.float64).sum()))
    num_top = min(num_top, len(row))
    top = np.argpartition(row, -num_top)[-num_top:] if num_top else np.empty(0, np.int64)
    order = top[np.lexsort((top, -row[top]))]  # ties go to the lower id
    return TokenLogprobs(float(row[token]) - total, tuple((int(i), float(row[i]) - total) for i in order))
