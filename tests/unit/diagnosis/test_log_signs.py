"""A log without a failure: whether it shows the engine at work, waits, or compares two runs."""

from __future__ import annotations

import pytest

from slipstream.diagnosis.logs import explain, judge
from slipstream.parsing.log_reading import Log

WAITING = "DEBUG 05-16 13:12:16 [core_client.py:425] Waiting for 1 core engine proc(s) to start: {{0}}, try {n}\n"
SPEED = "Processed prompts: 100%|█| 10/10 [00:33<00:00, est. speed input: 40.85 toks/s, output: {speed} toks/s\n"


def ids(text: str) -> list[str]:
    return [finding.id for finding in judge(Log(text)).findings]


@pytest.mark.parametrize(
    "line",
    [
        '127.0.0.1 - - [12/Jul/2026 21:38:04] "GET /api/v1/model HTTP/1.1" 200 -',
        "slot print_timing: id  0 | task 0 | n_gen =   3591, tg =  47.42 t/s",
        "Output token throughput (tok/s):         6148.70",
        "Finished streaming response",
        "Load Text Model OK: True",
        "Running on local URL:  http://0.0.0.0:7860",
        "- Average: 22,390ms (22.4 seconds)",
    ],
)
def test_a_line_that_shows_work_is_enough(line: str):
    assert ids(f"some line\n{line}\nanother\n") == []


def test_a_line_of_a_start_gives_a_note_and_none_gives_unknown():
    assert ids("load_tensors: offloading 28 repeating layers to GPU\n") == ["log-not-ready"]
    [finding] = judge(Log("one\nWARNING: odd thing\nlast line\n```\n")).findings
    assert (finding.id, finding.severity) == ("log-no-sign", "unknown")
    assert finding.evidence == "line 2: WARNING: odd thing"
    assert judge(Log("one\nlast line\n")).findings[0].evidence == "line 2: last line"


def test_a_log_that_ends_with_waiting_is_an_unfinished_start():
    assert ids("".join(WAITING.format(n=n) for n in range(3))) == ["log-start-unfinished"]
    assert ids(WAITING.format(n=1)) == ["log-no-sign"]
    assert ids("".join(WAITING.format(n=n) for n in range(3)) + "INFO loading the weights\n") == ["log-not-ready"]
    assert ids("INFO 07-30 12:25:10 [pynccl.py:113] vLLM is using nccl==2.28\n") == ["log-start-unfinished"]


@pytest.mark.parametrize(
    ("plain", "speculative"),
    [
        ("python bench_speculative.py", "python bench_speculative.py --with_speculation True"),
        ("without mtp", "with mtp"),
        ("baseline", "ngram, 5 tokens"),
        ("llama-cli -m A.gguf", "llama-cli -m A.gguf -md B.gguf"),
    ],
)
def test_two_runs_in_one_log_are_compared_by_the_lines_above_them(plain: str, speculative: str):
    slower = f"{plain}\n{SPEED.format(speed=300)}{speculative}\n{SPEED.format(speed=70)}"
    [finding] = explain(slower)
    assert finding.id == "log-slower-than-plain" and "70 tokens/s" in finding.cause and "4.3x" in finding.cause
    faster = f"{plain}\n{SPEED.format(speed=70)}{speculative}\n{SPEED.format(speed=300)}"
    assert explain(faster) == []
