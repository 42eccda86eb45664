"""`load` refuses what it can't use before it reads a model."""

from __future__ import annotations

from typing import Any

import pytest

import slipstream
from slipstream.errors import UsageError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": {"threads": 2}}, "options is a dict; expected TorchOptions or LlamaCppOptions"),
        ({"drafter": object()}, "drafter is a object, which has no name; expected a Drafter"),
        ({"policy": 1.5}, "policy is a float, which has no name; expected a Policy"),
    ],
)
def test_what_is_of_another_kind_is_refused_before_anything_is_read(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        slipstream.load("nowhere.gguf", **given)
