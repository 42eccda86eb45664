"""Context: a model in llama.cpp and its memory; the only place that calls the library while a model runs."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.backends.llamacpp.batch import LlamaBatch
from slipstream.backends.llamacpp.library import last_complaint
from slipstream.backends.llamacpp.shelf import State
from slipstream.errors import ModelError

_NO_ROOM = 1  # return value of llama_decode if the cache has no free cells

Logits = npt.NDArray[np.float32]  # [outputs, vocab]


@dataclass(frozen=True, slots=True)
class ContextFacts:
    """What the library reports about the context it created."""

    vocab_size: int
    num_ids: int  # sequence ids: 0 to num_ids - 1
    num_cells: int  # tokens of the cache; of each stream's cache if they are separate
    max_rows: int  # of one llama_decode
    is_shared: bool  # one cache for all streams, where a cell may belong to several
    on_cpu: bool  # no layer is on a GPU, so no part of the cache is either
    can_cut: bool  # any last part of a sequence can be removed: no recurrent state


class NoRoomError(Exception):
    """The cache has no free cells for a batch; nothing was changed."""


class Context:
    def __init__(self, llama_cpp: Any, model: Any, context: Any, facts: ContextFacts) -> None:
        self.facts = facts
        self.batch = LlamaBatch(llama_cpp, facts.max_rows, facts.num_ids)
        self._lib = llama_cpp
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._logits_address = _returning_an_address(llama_cpp.llama_get_logits)
        self._view: Logits | None = None
        self._view_address = 0
        self.close = weakref.finalize(self, _free, llama_cpp, model, context, os.getpid())

    def decode(self) -> Logits:
        """Runs the batch and clears it. The logits are the library's own memory, valid until the next decode.

        Raises NoRoomError, and ModelError if the library fails.
        """
        outputs = self.batch.num_outputs
        code = self._lib.llama_decode(self._context, self.batch.raw)
        if code == _NO_ROOM:
            raise NoRoomError
        self.batch.clear()
        if code:
            raise ModelError(f"llama_decode failed with {code}. {last_complaint()}")
        if not outputs:
            return np.empty((0, self.facts.vocab_size), np.float32)
        return self._logits(outputs)

    def _logits(self, outputs: int) -> Logits:
        """The library writes them to the same memory until a larger batch moves it, so the view is kept."""
        address = self._logits_address(self._context)
        if self._view is None or self._view_address != address or len(self._view) < outputs:
            block = (ctypes.c_float * (outputs * self.facts.vocab_size)).from_address(address)
            self._view = np.ctypeslib.as_array(block).reshape(outputs, self.facts.vocab_size)
            self._view_address = address
        return self._view[:outputs]

    def share(self, source: int, target: int, length: int) -> None:
        """The empty sequence `target` begins with the first `length` tokens of `source`."""
        if self.facts.is_shared and self.facts.can_cut:
            self._lib.llama_memory_seq_cp(self._memory, source, target, 0, length)
            return
        self._lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        if self.facts.can_cut:
            self._lib.llama_memory_seq_rm(self._memory, target, length, -1)

    def cut(self, sequence: int, length: int) -> bool:
        """Removes everything after the first `length` tokens. False, and unchanged, if the cache can't be cut there."""
        return bool(self._lib.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def drop(self, sequence: int) -> None:
        """Removes the whole sequence."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def save(self, sequence: int) -> State | None:
        """A copy of the whole sequence; None if there is not enough memory."""
        size: int = self._lib.llama_state_seq_get_size(self._context, sequence)
        try:
            state = (ctypes.c_uint8 * size)()
        except MemoryError:
            return None
        written: int = self._lib.llama_state_seq_get_data(self._context, state, size, sequence)
        return state if written == size else None

    def restore(self, sequence: int, state: State) -> bool:
        """Fills the empty sequence with a saved copy. False if there is no room; it then stays empty."""
        if self._lib.llama_state_seq_set_data(self._context, state, len(state), sequence):
            return True
        self.drop(sequence)
        return False


def _returning_an_address(function: Any) -> Callable[[Any], int]:
    """A function of the context that returns a pointer, without creating a Python object for each pointer."""
    place = ctypes.cast(function, ctypes.c_void_p).value
    assert place is not None
    return ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(place)


def _free(llama_cpp: Any, model: Any, context: Any, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child: the library would wait for threads that only its parent has
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
