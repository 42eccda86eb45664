from __future__ import annotations

import math

import pytest

from slipstream.errors import UsageError
from slipstream.train.settings import TrainOptions


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("learning_rate", value) for value in (0.0, -1.0, math.nan, math.inf)),
        *(
            (name, value)
            for name in ("weight_decay", "user_weight", "step_decay")
            for value in (-1.0, math.nan, math.inf)
        ),
    ],
)
def test_numbers_that_training_can_do_nothing_with_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is {value}; expected"):
        TrainOptions("smollm2-135m", **{name: value})
