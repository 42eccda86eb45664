"""Shell text: words, variables, and texts that no one writes by hand."""

from __future__ import annotations

import pytest

from cpu_time import cpu_seconds
from slipstream.diagnosis.configs import guess_engine, lint
from slipstream.parsing.command_line import MAX_EXPANDED, ShellError, read_shell


def texts(shell: str) -> list[list[str]]:
    return [[word.text for word in words] for words in read_shell(shell)[0]]


def test_words_end_where_the_shell_ends_them():
    assert texts("a=1 vllm serve m --x=$Y'z' \\\n --k \"v w\";ls|wc") == [
        ["vllm", "serve", "m", "--x=$Yz", "--k", "v w"], ["ls"], ["wc"],
    ]  # fmt: skip
    assert texts("A='x y'\nvllm $A \"$A\" a^b `c`") == [["vllm", "x", "y", "x y", "a^b", "`c`"]]


@pytest.mark.parametrize("use", ["{0}{0}", '"{0}{0}"'])
def test_variables_that_grow_are_a_finding(use):
    grown = "\n".join(f"A{i + 1}={use.format(f'${{A{i}}}')}" for i in range(40))
    script = f"A0=aaaaaaaa\n{grown}\nvllm serve m --port $A40\n"
    with pytest.raises(ShellError, match="variables stand for more than"):
        read_shell(script)
    [found] = lint("vllm", script)
    assert found.id == "config-syntax" and f"{MAX_EXPANDED:,}" in found.cause and "never closed" not in found.cause


def test_a_variable_may_be_long():
    value = "x" * (MAX_EXPANDED // 2)
    assert texts(f"A={value}\nvllm $A") == [["vllm", value]]


@pytest.mark.parametrize("text", ["[" * 1_000_000, str(["a"] * 50_000), "[0, " * 250_000])
def test_long_texts_are_read_in_seconds(text):
    started = cpu_seconds()
    guess_engine(text, "serve.json")
    lint("vllm", text)
    assert cpu_seconds() - started < 20
