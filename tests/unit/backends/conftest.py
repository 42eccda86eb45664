from __future__ import annotations

import pytest
import torch

from slipstream.backends.torch.cpu.library import kernels
from slipstream.backends.torch.reference import ReferenceOps
from unit.backends.native_steps import NativeSteps


@pytest.fixture(scope="session")
def native() -> NativeSteps:
    library = kernels()
    assert library is not None, "the kernels did not build on this machine"
    return NativeSteps(library, torch.float32)


@pytest.fixture(scope="session")
def reference() -> ReferenceOps:
    return ReferenceOps(torch.float32)
