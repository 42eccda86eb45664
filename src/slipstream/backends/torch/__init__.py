"""The torch backend: its own kernels for CPUs and CUDA, or plain torch.

Torch is imported here first, so that its OpenMP, which the CPU kernels use too, leaves a core to another program soon.
GCC's threads wait for each other 300,000 turns before that, up to 17 ms, and a token has hundreds of waits: two
programs on two cores took 540 ms a token, and take 16 with fewer turns. One alone takes as long as before.
"""

from __future__ import annotations

import os
import platform

_TURNS = "GOMP_SPINCOUNT"  # read once, when torch is loaded; a user's own setting stands
_FEW = "2000" if platform.machine().lower() in ("x86_64", "amd64") else "20000"  # a turn: 30 to 140 cycles, or a few

if {_TURNS, "OMP_WAIT_POLICY"}.isdisjoint(os.environ):
    os.environ[_TURNS] = _FEW
    import torch  # noqa: F401

    del os.environ[_TURNS]  # other programs that are started have theirs
