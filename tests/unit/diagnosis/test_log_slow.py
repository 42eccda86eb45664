"""Slow runs: what the numbers of a log prove, what they only suggest, and what they do not say."""

from __future__ import annotations

import pytest

from cpu_time import cpu_seconds
from slipstream.diagnosis.log_one_by_one import one_by_one
from slipstream.diagnosis.logs import explain

EVAL_TIME = (
    "llama_perf_context_print:        eval time =   22390.00 ms /   100 runs   (  223.90 ms per token,     4.47 tokens "
    "per second)"
)
ON_GPU = "load_tensors: offloaded 33/33 layers to GPU\n"
BASELINE = "| **Baseline 3B** | **14.54s** | **48.60 tok/s** | Baseline (100%) |"
SPECULATIVE = "| **Speculative (1B‚Üí3B)** | **25.80s** | **23.44 tok/s** | **‚ùå 2.1x SLOWER** |"
LOOP = """for i, draft_token in enumerate(draft_tokens):
    target_logits = self.target_generator.decode_forward_text(...)  # ‚ùå Sequential
"""


def ids(text: str) -> list[str]:
    return [finding.id for finding in explain(text)]


@pytest.mark.parametrize(
    "text", [EVAL_TIME, "22.4 s for 100 tokens", "generated 100 tokens in 22.4 seconds", "22,390 ms per 100 tokens"]
)
def test_cpu_speed_is_recognised(text):
    [finding] = explain(text)
    assert finding.id == "log-cpu-speed"
    assert "100 tokens in 22.4 s are 4.5 tokens/s" in finding.cause


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("- Average: 22,390ms (22.4 seconds)\n100 token generation", "100 tokens in 22.4 s are 4.5 tokens/s"),
        ("Mean latency: 22.4 s\nmax 100 tokens", "100 tokens in 22.4 s are 4.5 tokens/s"),
        ("224 ms per token", "224 ms per token are 4.5 tokens/s"),
        ("Generation:22.4s (224.0ms/T)", "224 ms per token are 4.5 tokens/s"),
        ("decoding: 4.5 tokens/second", "4.5 tokens/s"),
        ("4.5 tok/s", "4.5 tokens/s"),
        ("tg =   4.5 t/s", "4.5 tokens/s"),
        ("speed 4.5 tps", "4.5 tokens/s"),
        ("Output generated in 51.90 seconds (4.50 tokens/s, 80 tokens, context 761)", "4.5 tokens/s"),
    ],
)
def test_speeds_are_read_in_all_usual_spellings_and_only_suspected_without_the_models_size(text, speed):
    [finding] = explain(text)
    assert finding.id == "log-cpu-speed" and speed in finding.cause
    assert "may be the speed of a CPU" in finding.cause


@pytest.mark.parametrize(
    "text",
    [
        "- Average: 22,390ms (22.4 seconds)",  # of how many tokens?
        "Expected GPU performance: ~300ms (6.3 tok/s x ~100 tokens)",
        "Avg prompt throughput: 0.9 tokens/s, Avg generation throughput: 0.0 tokens/s",  # idle
        "est. speed input: 0.00 toks/s, output: 0.00 toks/s",
        "encoded   10 tokens in    1.945 seconds, speed:    5.141 t/s",
        "- Throughput: 63.8 tokens/second (confirmed in previous tests)",
        "22.4 s/it",  # a step of something
        ON_GPU + "4.5 tok/s",
    ],
)
def test_other_figures_are_no_cpu_speed(text):
    assert ids(text) == []


def test_cpu_speed_is_judged_by_bytes_where_the_size_is_known():
    size = "print_info: file size   = 5.33 GiB (5.70 BPW)\n"
    [finding] = explain(size + EVAL_TIME)
    assert "26 GB/s" in finding.cause and "This is the speed of a CPU" in finding.cause
    small = "print_info: file size   = 250.00 MiB (5.70 BPW)\n"
    quick = EVAL_TIME.replace("22390.00 ms", "  500.00 ms").replace("223.90 ms per", "5.00 ms per")  # 200 tokens/s
    quick = quick.replace("4.47 tokens per", "200.00 tokens per")
    assert ids(small + quick) == ["log-cpu-speed"], "52 GB/s: a CPU with a small model"
    assert ids(size + quick) == [], "1,100 GB/s: a GPU"
    assert ids(ON_GPU + size + EVAL_TIME) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rounds=10 target_forwards=28 tokens=30 drafted=40", "log-one-by-one"),
        ("target_forwards=30 tokens=30 drafted=40 accepted=18", "log-one-by-one"),
        ("target forwards: 130, tokens: 100, drafted: 120, accepted: 45", "log-one-by-one"),
        ('{"target_forwards": 60, "tokens": 30, "drafted_tokens": 40}', "log-one-by-one"),
        ('{"target_forwards": 31, "tokens": 30, "drafted_tokens": 40}', "log-one-by-one-suspected"),
        ("draft tokens: 40\ntarget forward passes: 30\ngenerated tokens: 30\n", "log-one-by-one-suspected"),
        ("target_forwards=12 tokens=30 drafted=40 accepted=18", None),
        ("rounds=10 target_forwards=10 tokens=30 drafted=40", None),
        ("target_forwards=30 tokens=30", None),  # no speculation: one forward a token is right
        # Nothing is accepted: one round for each token is right.
        ("target_forwards=100 tokens=100 drafted=400 accepted=0", "log-acceptance-near-zero"),
        ("target_forwards=100 tokens=100 drafted=400 accepted=0 rounds=100", "log-acceptance-near-zero"),
    ],
)
def test_verification_one_by_one_is_seen_in_the_counters(text, found):
    assert ids(text) == ([found] if found else [])


def test_counters_alone():
    assert not one_by_one(30, 30), "perhaps nothing was accepted"
    assert one_by_one(60, 30)
    assert one_by_one(28, 30, rounds=10)
    assert not one_by_one(0, 0)
    assert not one_by_one(30, 30, accepted=0)
    assert not one_by_one(30, 30, accepted=1), "nearly nothing accepted is slow, and no fault of the loop"


def test_forwards_told_in_a_sentence_are_counted():
    lines = (
        "**Traditional Decoding (30 tokens):**\n"
        "Draft Generation: ~10 iterations √ó 4 draft forwards = 40 √ó 1B forwards\n"
        "Target Verification: ~10 iterations √ó ~2.8 verifications = 28 √ó 3B forwards\n"
    )
    [finding] = explain(lines)
    assert finding.id == "log-one-by-one" and "28 √ó 3B" in finding.evidence
    assert "The target ran 28 times for 30 tokens (40 drafted, 10 rounds)" in finding.cause


def test_two_speeds_and_the_loop_are_enough_to_suspect_it():
    [finding] = explain(f"{BASELINE}\n{SPECULATIVE}\n```python\n{LOOP}```\n")
    assert finding.id == "log-one-by-one-suspected" and "decode_forward_text" in finding.evidence
    assert "23.44" in finding.cause and "48.6" in finding.cause and "may" in finding.cause
    assert "count the target's forward passes" in finding.fix


def test_two_speeds_alone_are_slower_than_plain_and_a_loop_alone_is_nothing():
    [finding] = explain(f"{BASELINE}\n{SPECULATIVE}\n")
    assert finding.id == "log-slower-than-plain" and "2.1x slower" in finding.cause
    assert ids(LOOP) == []
    assert ids("plain: 48.60 tok/s\nspeculative: 90 tok/s\n") == []
    assert ids("Baseline 8B ~25-30 tok/s\nSpeculative ~15-20 tok/s\n") == [], "estimates"
    assert ids("baseline: 137 tok/s\nexpected with speculative decoding: 20 tok/s") == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SpecDecoding metrics: Mean acceptance length: 1.03, Accepted: 25 tokens, Drafted: 3652 tokens", "near-zero"),
        ("draft acceptance rate = 0.06000 (   60 accepted /  1000 generated)", "near-zero"),
        ("Decode batch. accept len: 1.05, accept rate: 0.02, cuda graph: True", "near-zero"),
        ("Draft: 5 / 400 tokens accepted (1.25%))", "near-zero"),
        ("n_drafted = 912\nn_accept  = 313\naccept    = 34.320%", "low"),
        ("Decode batch. accept len: 1.02, gen throughput (token/s): 9", "near-zero"),
        ("num_accepted_tokens: 12, num_draft_tokens: 1200", "near-zero"),
        ("drafted 1200 tokens, accepted 12 tokens (1.0%)", "near-zero"),
        ("Acceptance rate: 2.1%", "near-zero"),
        # Long drafts: few of the tokens, but more than two a step.
        ("SpecDecoding metrics: Mean acceptance length: 2.37, Accepted: 89 tokens, Drafted: 975 tokens", "low"),
        ("Draft: 0 / 4 tokens accepted (0.00%))", None),  # too few
        ("SpecDecoding metrics: Mean acceptance length: 2.87, Accepted: 489 tokens, Drafted: 1572 tokens", None),
        ("draft acceptance rate = 0.57576 (  171 accepted /   297 generated)", None),
    ],
)
def test_acceptance_near_zero_is_a_finding_with_its_line(text, found):
    findings = explain(text)
    assert [finding.id for finding in findings] == ([f"log-acceptance-{found}"] if found else [])
    assert all(finding.evidence.startswith("line ") for finding in findings)


def test_no_accepted_token_at_all_has_other_causes():
    line = "SpecDecoding metrics: Accepted: {} tokens, Drafted: 900 tokens\n"
    assert "wrong input" in explain(line.format(0))[0].cause
    assert "another family" in explain(line.format(9))[0].cause


@pytest.mark.parametrize(
    "text",
    [
        "7b:\noutput: 1000\ndecode speed:  69.7 token/s\n\nspec 7b\noutput: 947\ndecode speed: 61.7 token/s",
        "no draft:\n eval time = 10000.0 ms / 500 tokens ( 20.00 ms per token, 50.00 tokens per second)\n"
        "with draft model:\n eval time = 20000.0 ms / 500 tokens ( 40.00 ms per token, 25.00 tokens per second)\n",
        "without an assistant: 20 tokens/s\nwith assistant: 14 tokens/s\n",
        "plain decode: 100 tokens in 2.0 s\nspeculative decode: 100 tokens in 3.1 s\n",
    ],
)
def test_two_speeds_are_compared_by_the_lines_above_them(text):
    assert ids(text) == ["log-slower-than-plain"]


def test_headings_are_not_looked_for_in_the_log_of_a_server():
    speeds = "".join(f"spec step\neval: {40 - n} tokens/s\nplain\neval: 50 tokens/s\n" for n in range(30))
    assert "log-slower-than-plain" not in ids(speeds)


def test_drafting_with_hundreds_of_requests_may_be_slower():
    metrics = "SpecDecoding metrics: Mean acceptance length: 2.46, Accepted: 725 tokens, Drafted: 1488 tokens\n"
    busy, quiet = (f"Avg generation throughput: 826.0 tokens/s, Running: {n} reqs, Waiting: 2 reqs\n" for n in (600, 4))
    assert ids(busy + metrics) == ["log-many-requests"]
    assert ids(quiet + metrics) == [] and ids(busy) == [] and ids(quiet * 9 + busy + metrics) == []


def test_acceptance_is_that_of_all_lines_and_not_of_one():
    slow, quick = (f"SpecDecoding metrics: Accepted: {n} tokens, Drafted: 1000 tokens\n" for n in (10, 900))
    assert ids(slow + quick * 5) == []
    assert ids(slow * 5) == ["log-acceptance-near-zero"]


def test_a_long_log_of_speeds_is_read_quickly():
    line = (
        "slot print_timing: id 0 | n_gen = 100, tg =  20.33 t/s, draft acceptance = 0.9 ( 9 accepted / 10 generated)\n"
    )
    started = cpu_seconds()
    explain(line * 500_000)  # 55 MB
    assert cpu_seconds() - started < 20


@pytest.mark.parametrize(
    ("plain", "speculative"),
    [
        ("Ohne Draft: 18,3 Token/s", "Mit Draft: 9,15 Token/s"),
        ("ohne Spekulation: 18.3 tok/s", "mit Spekulation: 9.15 tok/s"),
        ("sans brouillon : 18.3 tokens/s", "avec brouillon : 9.15 tokens/s"),
        ("sin borrador: 18.3 tokens/s", "con borrador: 9.15 tokens/s"),
        ("不用草稿模型: 18.3 tokens/s", "使用草稿模型: 9.15 tokens/s"),
    ],
)
def test_two_speeds_are_compared_in_other_languages(plain, speculative):
    [finding] = explain(f"{plain}\n{speculative}\n")
    assert finding.id == "log-slower-than-plain" and "2.0x slower" in finding.cause
    assert explain(f"{plain.replace('18', '8')}\n{speculative}\n") == []
