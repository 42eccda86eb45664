"""Measures how many rows llama.cpp's kernels can compute together without changing any bit of their results."""

from __future__ import annotations

import numpy as np

from slipstream.backends.llamacpp.context import Context, Logits

_PIECES = (8, 3)  # repacked weights are multiplied with four rows at once, but with up to three rows one by one
_FIRST_TOKEN = 100  # any tokens will do


def most_rows_that_keep_their_bits(context: Context) -> int:
    """1 if two rows together already differ from two single rows. Leaves the cache empty.

    Rows of real weights are compared bit for bit; the order of sums in attention depends on the types of the cache.
    """
    singles = _rows(context, max(_PIECES), at_once=1)
    for most in _PIECES:
        if all(np.array_equal(_rows(context, most, at_once=n), singles[:most]) for n in range(most, 1, -1)):
            return most
    return 1


def _rows(context: Context, count: int, at_once: int) -> Logits:
    """[count, vocab] logits of the first `count` rows of a text, computed `at_once` rows at a time."""
    tokens = [(_FIRST_TOKEN + 7 * i) % context.facts.vocab_size for i in range(count)]
    pieces = []
    for start in range(0, count, at_once):
        piece = tokens[start : start + at_once]
        context.batch.add(piece, start, [0], len(piece))
        pieces.append(context.decode().copy())
    context.drop(0)
    return np.concatenate(pieces)
