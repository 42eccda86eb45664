"""Figures of logs, in each engine's spelling."""

from __future__ import annotations

import pytest

from slipstream.diagnosis.log_figures import figures
from slipstream.diagnosis.logs import explain
from slipstream.parsing.log_reading import Log

VLLM = (
    "(APIServer pid=1) INFO 05-21 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 3.03, Accepted "
    "throughput: 3.87 tokens/s, Drafted throughput: 5.72 tokens/s, Accepted: 337 tokens, Drafted: 498 tokens, "
    "Per-position acceptance rate: 0.837, 0.669, 0.524, Avg Draft acceptance rate: 67.7%"
)
VLLM_OLD = (
    "INFO 08-26 12:07:05 metrics.py:427] Speculative metrics: Draft acceptance rate: 0.655, System efficiency: 0.649, "
    "Number of speculative tokens: 4, Number of accepted tokens: 1735, Number of draft tokens: 2648, Number of emitted"
)
SGLANG = (
    "[2025-10-22 10:27:57 TP0] Decode batch. #running-req: 1, #token: 186, token usage: 0.00, accept len: 1.95, accept "
    "rate: 0.49, cuda graph: True, gen throughput (token/s): 178.86, #queue-req: 0, "
)
TABBY = (
    "Metrics: 100 tokens generated in 5 seconds (Process: at 727.64 T/s, Generate: 28.2 T/s, Context: 15766 "
    "tokens, Draft: 40 / 64 tokens accepted (62.50%))"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (VLLM, {"acceptance": 337 / 498, "tokens_per_step": 3.03}),
        ("Avg Draft acceptance rate: 62.5%", {"acceptance": 0.625}),
        (VLLM_OLD, {"acceptance": 1735 / 2648}),
        (SGLANG, {"acceptance": 0.49, "tokens_per_step": 1.95, "tokens_per_s": 178.86}),
        (TABBY, {"acceptance": 0.625, "tokens_per_s": 28.2}),
        ("draft acceptance rate = 0.57576 (  171 accepted /   297 generated)", {"acceptance": 171 / 297}),
        ("draft acceptance rate = 0.76190 (112/147)", {"acceptance": 112 / 147}),
        (
            "print_timing: task 0 | draft acceptance = 0.98444 (  886 accepted /   900 generated), mean len =  4.94",
            {"acceptance": 886 / 900, "tokens_per_step": 4.94},
        ),
        ("accept    = 34.320%", {"acceptance": 0.3432}),
        ("eval rate:            22.30 tokens/s", {"tokens_per_s": 22.3}),  # ollama run --verbose
        ("prompt eval rate:     222.30 tokens/s", {}),
        ("       eval time =    1834.34 ms /    61 tokens (   30.07 ms per token,    33.25 tokens per second)", {
            "tokens_per_s": 33.25,
        }),
        ("prompt eval time =    1834.34 ms /    61 tokens (   30.07 ms per token,    33.25 tokens per second)", {}),
        ("Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 74.7 tokens/s", {"tokens_per_s": 74.7}),
        ("decoded  371 tokens in   34.412 seconds, speed:   10.781 t/s", {"tokens_per_s": 10.781}),
        ("load_tensors: offloaded 33/33 layers to GPU", {"gpu_layers": 33}),
        ("llama_new_context_with_model: KV self size  = 2048.00 MiB, K (f16): 1024", {"kv_bytes": 2**31}),
        ("llama_kv_cache_unified: size =  512.00 MiB (  4096 cells,  32 layers)", {"kv_bytes": 2**29}),
        ("Available KV cache memory: 2.00 GiB", {"kv_bytes": 2**31}),
        ("GPU KV cache size: 251,920 tokens", {"kv_tokens": 251_920}),
        (
            "KV Cache is allocated. #tokens: 2243474, K size: 59.91 GB, V size: 59.91 GB",
            {"kv_bytes": 119.82e9, "kv_tokens": 2_243_474},
        ),
        ("nothing of it", {}),
    ],
)  # fmt: skip
def test_each_engine_is_read_in_its_own_words(line, expected):
    log = f"INFO start\n{line}\nINFO end\n"
    found = {figure.name: figure.value for figure in figures(Log(log))}
    assert found == pytest.approx(expected)
    assert all(figure.line == 2 for figure in figures(Log(log)))


def test_the_last_line_counts_and_acceptance_is_summed():
    log = "\n".join([SGLANG, VLLM, SGLANG.replace("178.86", "20"), VLLM.replace("337", "160"), "end"])
    found = {figure.name: figure for figure in figures(Log(log))}
    assert found["tokens_per_s"].value == 20 and found["tokens_per_s"].line == 3
    assert found["acceptance"].value == pytest.approx((337 + 160) / (2 * 498)) and found["acceptance"].of == 996


def test_odd_lines_do_no_harm():
    for line in ("accept rate: .", "offloaded 1/0 layers to GPU", "draft acceptance = x ( 5 accepted / 0 generated)"):
        assert isinstance(figures(Log(line)), list)


def test_a_page_of_metrics_has_the_acceptance_and_no_errors():
    page = (
        "# HELP vllm:request_success_total Count of requests.\n"
        'vllm:request_success_total{{engine="0",finished_reason="error",model_name="m"}} 0.0\n'
        'vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} 2.5e+06\n'
        'vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {}\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} 9.0\n'
        "http_requests_failed_total 0.0\n"
    )
    assert explain(page.format("1.25e+06")) == []
    [finding] = explain(page.format("50.0"))
    assert finding.id == "log-acceptance-near-zero" and "50 of 2,500,000" in finding.cause
