"""Without a GPU, Triton's kernels run in its interpreter. It reads this when kernels are imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
