"""The torch backend: its own kernels for CPUs and CUDA, or plain torch.

GCC's OpenMP, which torch brings and the CPU kernels use, waits 300,000 turns for a thread, up to 17 ms, before another
program gets the core, and a token has hundreds of waits: two programs on two cores took 540 ms a token. With fewer
turns they take 60, and one alone about 3 % longer, since its threads sleep now and then. So torch is imported here
first.
"""

from __future__ import annotations

import os

_TURNS = "GOMP_SPINCOUNT"  # read once, when torch is loaded
if {_TURNS, "OMP_WAIT_POLICY"}.isdisjoint(os.environ):  # the user's own setting stands
    os.environ[_TURNS] = "20000"  # about a millisecond: what Python takes between two calls of the kernels
    import torch  # noqa: F401

    del os.environ[_TURNS]  # programs that are started from here have their own
