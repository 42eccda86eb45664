"""Settings of all tests.

Without a GPU, Triton's kernels run in its interpreter. It reads this when kernels are imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def safe_path_is_put_back() -> Iterator[None]:
    """`slipstream.cli.main` sets it for the rest of its process."""
    before = os.environ.get("PYTHONSAFEPATH")
    yield
    if before is None:
        os.environ.pop("PYTHONSAFEPATH", None)
    else:
        os.environ["PYTHONSAFEPATH"] = before
