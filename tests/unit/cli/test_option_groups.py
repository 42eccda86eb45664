"""A parameter that is a dataclass stands for one option for each of its fields."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import typer
from typer.testing import CliRunner

from slipstream.backends import MachineOptions
from slipstream.cli.groups import grouped
from slipstream.cli.options import OPTIONS, OptionSpec
from slipstream.tasks.options import (
    AnswerOptions,
    EngineOptions,
    ModelOptions,
    RunningEngineOptions,
    SamplingOptions,
    WorkloadOptions,
)


@dataclass(frozen=True)
class Fruit:
    model: str | None = None
    seed: int = 3
    drafts: tuple[str, ...] = ()
    colour: str = "green"  # no option


SEVEN = Fruit(seed=7)


def run(*arguments: str, **own: OptionSpec | None) -> tuple[int, list[object]]:
    app, seen = typer.Typer(), []

    @app.command()
    @grouped(**own)
    def command(fruit: Fruit = SEVEN, loud: bool = False) -> None:
        """Eats."""
        seen.append((fruit, loud))

    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, seen


def test_fields_become_options_and_come_back_as_the_dataclass():
    assert run() == (0, [(Fruit(seed=7), False)])
    assert run("--model", "apple", "-s", "1", "--loud") == (0, [(Fruit("apple", 1), True)])


def test_a_tuple_is_an_option_that_may_be_repeated():
    assert run("--draft", "a", "-d", "b") == (0, [(Fruit(seed=7, drafts=("a", "b")), False)])


def test_a_field_without_an_option_keeps_its_default():
    assert run("--colour", "red")[0] == 2
    assert run("--colour", "red", colour=OptionSpec("--colour", "Its colour.")) == (
        0, [(Fruit(seed=7, colour="red"), False)],
    )  # fmt: skip


def test_a_command_can_leave_an_option_out():
    assert run("--seed", "1", seed=None)[0] == 2


@pytest.mark.parametrize(
    "kind",
    [
        AnswerOptions,
        EngineOptions,
        MachineOptions,
        ModelOptions,
        RunningEngineOptions,
        SamplingOptions,
        WorkloadOptions,
    ],
)
def test_every_field_of_the_shared_options_is_described(kind):
    assert {f.name for f in fields(kind)} <= set(OPTIONS)
