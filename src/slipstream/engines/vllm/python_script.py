"""vLLM in Python: `LLM(…)` takes the settings of `vllm serve` as keywords, and is checked as that command."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator

from slipstream.engines.vllm.flags import FLAGS
from slipstream.findings import Finding
from slipstream.parsing.command_line import Word
from slipstream.parsing.configuration import NOT_MINE, SHAPED, FileConfiguration
from slipstream.parsing.python_script import calls_of, python_tree

_CLASSES = ("LLM", "EngineArgs", "AsyncEngineArgs")
_USES_IT = re.compile(r"(?m)^\s*(?:from|import)\s+vllm\b")


def python_script(check: Callable[[list[Word]], list[Finding]]) -> FileConfiguration:
    """`check`: of the words after `vllm serve`."""

    def lint(text: str) -> list[Finding]:
        tree = python_tree(text)
        if isinstance(tree, Finding):
            return [tree]
        calls = [call for name in _CLASSES for call in calls_of(tree, name)]
        return list(dict.fromkeys(finding for call in calls for finding in check(list(_words(call)))))

    return FileConfiguration(lint, lambda text, file_name: SHAPED if _USES_IT.search(text) else NOT_MINE)


def _words(call: ast.Call) -> Iterator[Word]:
    """As options. What only Python has and what is a variable is left out."""
    if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str):
        yield Word(call.args[0].value, call.lineno)
    for keyword in call.keywords:
        flag = f"--{(keyword.arg or '').replace('_', '-')}"
        try:
            value = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        is_known = FLAGS.knows(flag) or FLAGS.gone_name(flag)
        if keyword.arg is None or not is_known or value is None or value is False:
            continue
        yield Word(flag, keyword.value.lineno)
        if value is not True:
            text = json.dumps(value) if isinstance(value, dict | list) else str(value)
            yield Word(text, keyword.value.lineno)
