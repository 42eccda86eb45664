"""Logs as other programs hand them on: relayed at their own level, pasted from pages and chats."""

from __future__ import annotations

import pytest

from slipstream.diagnosis.logs import judge
from slipstream.findings import Finding
from slipstream.parsing.log_reading import Log

CRASH = "main: loading model\nggml-cuda.cu:88: CUDA error: out of memory\nAborted (core dumped)\n"
RELAYS = [
    "2026-03-03 10:00:0{n},595 - launcher - INFO - ",
    "2024-10-07T22:54:5{n},595 [INFO ] W-9000-model_1.0-stdout MODEL_LOG - ",
    "[WARN ] PyProcess - W-196-model-stderr: ",
    "INFO:launcher:",
    "[INFO] <qwen> ",
    "2026-03-03 10:00:0{n} | DEBUG | runner:read:77 - ",
    'time="2026-03-03T10:00:0{n}Z" level=info msg=',
]


def found_in(text: str, engine: str | None = None) -> list[Finding]:
    return judge(Log(text), engine).findings


@pytest.mark.parametrize("relay", RELAYS)
def test_the_level_of_a_program_that_relays_a_log_is_not_that_of_its_lines(relay: str):
    lines = [relay.format(n=n) + line for n, line in enumerate(CRASH.splitlines(keepends=True))]
    assert [(one.id, one.evidence[:6]) for one in found_in("".join(lines))] == [("log-cuda-memory", "line 2")]


@pytest.mark.parametrize("logger", ["INFO 10-06 18:54:2{n} [x.py:1] ", "INFO:     ", "note\nnote {n}: INFO "])
def test_lines_of_an_engine_keep_their_calm_level(logger: str):
    noted = "".join(f"{logger.format(n=n)}CUDA error: out of memory\n" for n in range(3))
    assert not any(one.severity == "blocks" for one in found_in(noted))


MEMORY = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
MODULE = "ModuleNotFoundError: No module named 'flash_attn'\n"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (MEMORY.replace(" ", "\u00a0"), "log-cuda-memory"),
        (MEMORY.replace(" ", "\u202f"), "log-cuda-memory"),
        (MEMORY.replace("memory", "mem\u200bory"), "log-cuda-memory"),
        ("\ufeff" + MODULE, "log-module-missing"),
        (MODULE.replace(" '", " \u2018").replace("'", "\u2019"), "log-module-missing"),
        (MODULE.replace("'", "&#39;"), "log-module-missing"),
        (MODULE.replace("'", "&#x27;"), "log-module-missing"),
    ],
)
def test_what_a_page_or_a_chat_made_of_a_character_is_undone(text: str, rule: str):
    [plain] = found_in("start\n" + (MODULE if rule == "log-module-missing" else MEMORY))
    [found] = found_in("start\n" + text)
    assert found == plain and found.id == rule


def test_html_codes_are_undone_only_in_a_page():
    assert Log("a &lt; b &amp;&amp; c").text == "a &lt; b &amp;&amp; c"
    assert Log("a &lt; &quot;b&quot;").text == 'a < "b"'
