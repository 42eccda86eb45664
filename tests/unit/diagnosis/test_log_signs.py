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


START = "INFO [api_server.py:1] vLLM API server version 0.15.1\nINFO:     Application startup complete.\n"
UVICORN = 'INFO:     10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" {}\n'


@pytest.mark.parametrize(
    ("log", "answered"),
    [
        (START + UVICORN.format("400 Bad Request") * 2 + UVICORN.format("404 Not Found"), "All 3 requests"),
        ("srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 400\n", "All 1 requests"),
        ('[GIN] 2026/11/05 - 10:00:00 | 404 |  1.2ms | 127.0.0.1 | POST "/api/chat"\n', "answered 404"),
        (START + UVICORN.format("400 Bad Request") + UVICORN.format("200 OK"), None),
        (UVICORN.format("200 OK") + START + UVICORN.format("401 Unauthorized"), "API key"),
    ],
)
def test_a_log_with_nothing_but_refusals_gets_no_all_clear(log: str, answered: str | None):
    found = judge(Log(log)).findings
    assert [finding.id for finding in found] == ([] if answered is None else ["log-requests-refused"])
    assert answered is None or answered in found[0].cause
    assert not found or found[0].evidence.startswith(f"line {log.count(chr(10))}: ")


STATS = (
    "INFO [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {}, Running: {}\n"
)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("", ["log-nothing-generated"]),
        (STATS.format("0.0 tokens/s", "1 reqs"), ["log-nothing-generated"]),
        (STATS.format("45.1 tokens/s", "1 reqs"), []),
        (STATS.format("0.4 tokens/s", "1 reqs"), []),
        (STATS.format("0.0 tokens/s", "1 reqs").replace("prompt throughput: 0.0", "prompt throughput: 812.3"), []),
        (STATS.format("0.0 tokens/s", "1 reqs").replace("prompt throughput: 0.0", "prompt throughput: 0.2"), []),
        (STATS.format("0.0 tokens/s", "0 reqs"), []),
        (UVICORN.format("200 OK"), []),
    ],
)
def test_a_request_that_gets_no_token_is_no_work(after: str, expected: list[str]):
    assert ids(START + STATS.format("0.0 tokens/s", "1 reqs") + after) == expected


def test_a_line_of_a_start_gives_a_note_and_none_gives_unknown():
    assert ids("load_tensors: offloading 28 repeating layers to GPU\n") == ["log-not-ready"]
    [finding] = judge(Log("one\nWARNING: odd thing\nlast line\n```\n")).findings
    assert (finding.id, finding.severity) == ("log-no-sign", "unknown")
    assert finding.evidence == "line 2: WARNING: odd thing"
    assert judge(Log("one\nlast line\n")).findings[0].evidence == "line 2: last line"


def test_a_log_that_ends_with_waiting_is_an_unfinished_start():
    assert ids("".join(WAITING.format(n=n) for n in range(3))) == ["log-start-unfinished"]
    assert ids(WAITING.format(n=1)) == ["log-start-unfinished"]
    assert ids(WAITING.format(n=1) + "\nThanks in advance!\n") == ["log-start-unfinished"]
    assert ids(f"### Logs\n```\n{WAITING.format(n=1)}```\n") == ["log-start-unfinished"]
    report = f"It hangs.\n```text\n{WAITING.format(n=1)}\n```\n</details>\n\nThe GPU is idle.\nPlease help, thanks!\n"
    assert ids(report) == ["log-start-unfinished"]
    assert ids("".join(WAITING.format(n=n) for n in range(3)) + "INFO loading the weights\n") == ["log-not-ready"]
    assert ids("INFO 07-30 12:25:10 [pynccl.py:113] vLLM is using nccl==2.28\n") == ["log-start-unfinished"]


@pytest.mark.parametrize(
    ("plain", "speculative"),
    [
        ("python bench_speculative.py", "python bench_speculative.py --with_speculation True"),
        ("without mtp", "with mtp"),
        ("baseline", "ngram, 5 tokens"),
        ("llama-cli -m A.gguf", "llama-cli -m A.gguf -md B.gguf"),
        ("vllm serve A \\\n--port 1", "vllm serve A \\\n--port 1 \\\n--speculative-config '{}'\npython bench.py"),
    ],
)
def test_two_runs_in_one_log_are_compared_by_the_lines_above_them(plain: str, speculative: str):
    slower = f"{plain}\n{SPEED.format(speed=300)}{speculative}\n{SPEED.format(speed=70)}"
    [finding] = explain(slower)
    assert finding.id == "log-slower-than-plain" and "70 tokens/s" in finding.cause and "4.3x" in finding.cause
    faster = f"{plain}\n{SPEED.format(speed=70)}{speculative}\n{SPEED.format(speed=300)}"
    assert explain(faster) == []


THROUGHPUT = "num request: 2000\nttft: 62.9 ms\navg_throughput: {speed}tokens/s\n"
TABLE = "bs | tok/s\n-- | --\n1 | {plain}\n\nbs | steps | tok/s | acc len\n-- | -- | -- | --\n1 | 3 | {fast} | 2\n"
ROWS = "| method | tok/s |\n| --- | --- |\n| baseline | {plain} |\n| eagle3 | {fast} |\n"
COLUMNS = "| prompt | baseline tok/s | draft tok/s |\n|---|---|---|\n| code | {plain} | {fast} |\n"
TIMES = "python run.py\nTotal time: {fast} s\npython run.py --assistant-model B\nTotal time: {plain} s\n"


@pytest.mark.parametrize("report", [TABLE, ROWS, COLUMNS, TIMES])
def test_speeds_in_tables_and_times_are_compared(report: str):
    [finding] = explain(report.format(plain="222.4", fast="159.7"))
    assert finding.id == "log-slower-than-plain" and "1.4x" in finding.cause
    assert explain(report.format(plain="159.7", fast="222.4")) == []


def test_throughput_below_commands_is_compared_by_its_words():
    plain, drafts = "python -m server --model A\n", "python -m server --model A \\\n--speculative-model B \\\n"
    [finding] = explain(plain + THROUGHPUT.format(speed="1,485.5") + drafts + THROUGHPUT.format(speed="301.0"))
    assert finding.id == "log-slower-than-plain" and "1485.5 tokens/s" in finding.cause


def test_a_number_is_read_from_its_first_digit_and_a_warm_up_is_no_answer():
    assert explain("GPU KV cache size: 1,126,400 tokens\nInitial profiling/warmup run took 107.62 s\n", "vllm") == []
    assert explain("KV cache size: 1,126,400 tokens\nrun took 107.62 s\n") == []


def test_a_cache_that_stays_full_is_named():
    full = "Decode batch. #running-req: 35, #token: 959430, token usage: 0.96\n"
    [finding] = explain(full * 2)
    assert finding.id == "log-cache-full" and "96% of the KV cache is in use by 35 requests" in finding.cause
    assert explain(full + full.replace("0.96", "0.41")) == [] == explain(full)


def test_a_fix_is_that_of_the_platform_or_engine_of_the_log():
    def fix(text: str, engine: str | None = None) -> str:
        return explain(text, engine)[0].fix

    assert "CUDA_ARCH" in fix("CUDA error: invalid device function\n")
    assert "HIP_VISIBLE_DEVICES" in fix("ROCm error: invalid device function\n")
    assert "netstat" in fix("Error: listen tcp 127.0.0.1:11434: bind: Only one usage of each socket address\n")
    assert "OLLAMA_HOST" in fix("Error: listen tcp 127.0.0.1:11434: bind: address already in use\n", "ollama")
    assert "--mem-fraction-static" in fix("Input length (16 tokens) exceeds the maximum allowed length (5)\n", "sglang")


@pytest.mark.parametrize(
    ("log", "quoted"),
    [
        (
            "ERROR [core.py:7]     x = f(y)\nERROR [core.py:7]     assert a == b\nERROR [core.py:7] AssertionError\n",
            "assert",
        ),
        (
            "ERROR [core.py:7] EngineCore failed to start.\nERROR [core.py:7] Traceback (most recent call last):\n"
            'ERROR [core.py:7]   File "a.py", line 2, in f\nERROR [core.py:7]     assert a == b\n'
            "ERROR [core.py:7] AssertionError\n",
            "assert a == b",
        ),
        ("[error] Error: Received load-error\n- Caused By: TypeError: no 'find'\n", "Caused By: TypeError"),
        ('ERROR 1 [core.py:7]   File "a.py", line 2, in f\nlinker fatal : no input\n', "linker fatal"),
    ],
)
def test_the_line_that_tells_most_is_quoted(log: str, quoted: str):
    [finding] = explain(log)
    assert finding.id == "log-unknown" and quoted in finding.evidence


def test_the_cause_shortly_before_the_last_answer_replaces_a_general_end():
    answer = '[GIN] 2025/04/14 - 20:20:48 | 200 | 3.4s | 127.0.0.1 | POST "/api/chat"\n'
    end = 'time=2025 level=ERROR source=server.go:449 msg="llama runner terminated" error="exit status 2"\n'
    error = "CUDA error: an illegal memory access was encountered\n"
    assert [finding.id for finding in explain(answer + error + answer + end, "ollama")] == ["log-cuda-illegal"]
    assert [finding.id for finding in explain(error + "x\n" * 2_000 + answer + end, "ollama")] == ["log-runner-ended"]


def test_speeds_that_name_their_way_are_compared_in_both_orders():
    [finding] = explain("with eagle: 59 tps\nwithout eagle: 61 tps\n")
    assert finding.id == "log-slower-than-plain" and "3% slower" in finding.cause


def test_two_speeds_may_stand_in_one_line():
    [finding] = explain("Without speculation: 25.3 tokens/s, with speculation: 12.1 tokens/s\n")
    assert finding.id == "log-slower-than-plain" and "2.1x" in finding.cause
    assert finding.evidence == "line 1: with speculation: 12.1 tokens/s"
    assert not explain("Without speculation: 12.1 tokens/s, with speculation: 25.3 tokens/s\n")
    assert explain("without eagle: 61 tps\nwith eagle: 59 tps\n")[0].id == finding.id
    assert explain("with eagle: 90 tps\nwithout eagle: 61 tps\n") == []


def test_a_table_with_a_faster_draft_is_work():
    table = "category  base_avg_pred_t/s  spec_avg_pred_t/s  decode_speedup\ncoding  51.55  84.54  1.64x\n"
    assert judge(Log(table)).findings == []


def test_the_timings_of_an_answer_are_read():
    log = '{\n  "predicted_per_second": 18.05,\n  "draft_n": 347,\n  "draft_n_accepted": 65\n}\n'
    [finding] = judge(Log(log)).findings
    assert finding.id == "log-acceptance-low" and finding.evidence == 'line 4: "draft_n_accepted": 65'
    assert judge(Log(log.replace("65", "300"))).findings == []


@pytest.mark.parametrize(
    ("said", "is_slower"),
    [
        ("With the draft I get 12.1 t/s, without it 19.4 t/s.", True),
        ("With the draft I get 29.1 t/s, without it 19.4 t/s.", False),
        ("Without speculative decoding: 40 tokens/s. With: 31 tokens/s.", True),
        ("Without speculative decoding: 31 tokens/s. With: 40 tokens/s.", False),
        ("speedup: 0.82x", True),
        ("speedup: 1.82x", False),
        ("speedup: 0.82x\nspeedup: 1.4x", False),
        ("n=6 gives 18.10 t/s vs 24.84 MTP-OFF - 27% SLOWER.", True),
        ("eagle3: 20.1 t/s, 2.1x slower", True),
        ("18.1 t/s: without the draft it is 27% slower", False),
        ("18.1 t/s, prefill with the draft is 10% slower", False),
    ],
)
def test_a_sentence_that_calls_speculation_slower_gets_no_all_clear(said: str, is_slower: bool):
    assert ids(f"{said}\n") == ["log-slower-than-plain"] * is_slower
