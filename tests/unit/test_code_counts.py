"""The package stays as easy to read as it is: what tools/count_code.py counts has bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import count_code

# Upper bounds: lower them when the code gets simpler. Kernels are where most of the long parameter lists are.
MAX_LINES = 55_900
MAX_FUNCTIONS_OVER_6_PARAMETERS = 27
MAX_FUNCTIONS_NESTED_OVER_3 = 0


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    return count_code.count(Path(__file__).parents[2] / "src")


def test_a_class_name_has_one_meaning(counted: dict[str, Any]) -> None:
    assert counted["class_names_with_several_meanings"] == {}


def test_commands_parse_call_and_print(counted: dict[str, Any]) -> None:
    assert counted["command_functions_over_60_lines"] == []


def test_what_grows_has_bounds(counted: dict[str, Any]) -> None:
    assert counted["lines"] <= MAX_LINES
    assert counted["functions_over_6_parameters"] <= MAX_FUNCTIONS_OVER_6_PARAMETERS
    nested = counted["functions_nested_over_3"]
    assert len(nested) <= MAX_FUNCTIONS_NESTED_OVER_3, nested
