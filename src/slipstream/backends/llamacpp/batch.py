"""Batch: the rows of one llama_decode, in arrays that are allocated once and filled by slices.

The arrays are ctypes arrays, not numpy: for the few rows of a round, filling them takes half the time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any


class LlamaBatch:
    """Rows are added in order; `outputs` of them get logits, which llama.cpp returns in the same order."""

    def __init__(self, llama_cpp: Any, capacity: int, num_ids: int) -> None:
        self.capacity = capacity
        self._tokens = (ctypes.c_int32 * capacity)()
        self._positions = (ctypes.c_int32 * capacity)()
        self._num_ids = (ctypes.c_int32 * capacity)()
        self._id_lists = (ctypes.c_uint64 * capacity)()  # the address of each row's sequence ids
        self._outputs = (ctypes.c_byte * capacity)()
        self._single = (ctypes.c_int32 * num_ids)(*range(num_ids))  # the list of one id is a place in here
        self._shared: list[ctypes.Array[ctypes.c_int32]] = []  # lists of several ids, alive until the batch is cleared
        self.raw = llama_cpp.llama_batch()
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._num_ids),
            ("seq_id", self._id_lists),
            ("logits", self._outputs),
        ):
            kind = dict(llama_cpp.llama_batch._fields_)[name]
            setattr(self.raw, name, ctypes.cast(array, kind))
        self.clear()

    def clear(self) -> None:
        self.num_rows = 0
        self.num_outputs = 0
        self._shared.clear()

    def add(self, tokens: Sequence[int], position: int, ids: Sequence[int], num_outputs: int) -> None:
        """Consecutive tokens of the sequences `ids`; the last `num_outputs` of them get logits."""
        count = len(tokens)
        start, end = self.num_rows, self.num_rows + count
        assert end <= self.capacity, "the library would end the process"
        self._tokens[start:end] = list(tokens)
        self._positions[start:end] = list(range(position, position + count))
        self._num_ids[start:end] = [len(ids)] * count
        self._id_lists[start:end] = [self._address(ids)] * count
        self._outputs[start:end] = [int(row >= end - num_outputs) for row in range(start, end)]
        self.num_rows = end
        self.num_outputs += num_outputs
        self.raw.n_tokens = end

    def _address(self, ids: Sequence[int]) -> int:
        if len(ids) == 1:
            return ctypes.addressof(self._single) + ids[0] * ctypes.sizeof(ctypes.c_int32)
        self._shared.append((ctypes.c_int32 * len(ids))(*ids))
        return ctypes.addressof(self._shared[-1])
