"""Batch: the rows of one llama_decode, in arrays that are allocated once and filled by slices."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]


class Batch:
    """Rows are added in order; `outputs` of them get logits, which llama.cpp returns in the same order."""

    def __init__(self, llama_cpp: Any, capacity: int, num_ids: int) -> None:
        self.capacity = capacity
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._num_ids = np.ones(capacity, np.int32)
        self._id_lists = np.zeros(capacity, np.uint64)  # the address of each row's sequence ids
        self._outputs = np.zeros(capacity, np.int8)
        self._single = np.arange(num_ids, dtype=np.int32)  # the list of one id is a place in here
        self._single_address: int = self._single.ctypes.data
        self._shared: list[Int32s] = []  # lists of several ids, kept alive until the batch is cleared
        self.raw = llama_cpp.llama_batch()
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._num_ids),
            ("seq_id", self._id_lists),
            ("logits", self._outputs),
        ):
            kind = dict(llama_cpp.llama_batch._fields_)[name]
            setattr(self.raw, name, array.ctypes.data_as(kind))
        self.clear()

    def clear(self) -> None:
        self.num_rows = 0
        self.num_outputs = 0
        self._shared.clear()

    def add(self, tokens: Seq[int], position: int, ids: Seq[int], num_outputs: int) -> None:
        """Consecutive tokens of the sequences `ids`; the last `num_outputs` of them get logits."""
        start, end = self.num_rows, self.num_rows + len(tokens)
        assert end <= self.capacity, "the library would end the process"
        self._tokens[start:end] = tokens
        self._positions[start:end] = np.arange(position, position + len(tokens))
        self._num_ids[start:end] = len(ids)
        self._id_lists[start:end] = self._address(ids)
        self._outputs[start:end] = 0
        self._outputs[end - num_outputs : end] = 1
        self.num_rows = end
        self.num_outputs += num_outputs
        self.raw.n_tokens = end

    def _address(self, ids: Seq[int]) -> int:
        if len(ids) == 1:
            return self._single_address + ids[0] * self._single.itemsize
        self._shared.append(np.array(ids, np.int32))
        return self._shared[-1].ctypes.data
