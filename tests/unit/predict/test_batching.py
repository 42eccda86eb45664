"""The model of cost and acceptance over batch size, and the guide that prints its tables."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from batching import STREAMS, AssumedDrafter, Gpus, Load, LoadTable, schedule
from scaling_tables import guide_cases, published, table
from slipstream.engines.engine_types import EngineSettings
from slipstream.engines.vllm.driver import speculative_config
from slipstream.errors import UsageError
from slipstream.predict.sizes import kv_bytes
from slipstream.predict.speed import FORWARD_S

GUIDE = Path(__file__).parents[3] / "docs" / "scaling.md"
LLAMA_8B = published("Llama-3.1-8B-Instruct", 4096)
LLAMA_70B = published("Llama-3.3-70B-Instruct", 8192)
LOOKUP = AssumedDrafter("n-gram", 0.6)
H100 = Gpus("NVIDIA H100 80GB HBM3")


def load(streams: int, gpus: Gpus = H100, context: int = 1024) -> Load:
    return Load(LLAMA_8B, gpus, streams, context)


def test_the_guides_tables_are_what_the_code_computes():
    text = GUIDE.read_text()
    for case in guide_cases():
        assert "\n".join(table(case)).strip() in text, f"regenerate with python tools/scaling_tables.py: {case.title}"


def test_the_guides_comparison_with_an_h200_is_what_the_code_computes():
    at = {streams: load(streams, Gpus("H200"), context=384) for streams in (1, 8, 32)}
    one, eight, many = (at[streams].tokens_per_s() * streams for streams in at)
    gains = [at[streams].speedup(AssumedDrafter("free", 0.8), 4) for streams in (1, 32)]
    text = " ".join(GUIDE.read_text().split())
    assert f"the model says {one:,.0f}, {eight:,.0f} and {many:,.0f}" in text
    assert f"the model says {gains[0]:.2f}x" in text and f"the model says {gains[1]:.1f}x" in text


def test_one_stream_reads_the_weights_once():
    reading_s = LLAMA_8B.weight_bytes / (3350e9 * 0.6)
    assert 1 / load(1).tokens_per_s() == pytest.approx(reading_s + FORWARD_S, rel=0.03)


def test_many_streams_read_their_own_cache_too():
    few, many = load(64, context=64), load(64, context=4096)
    more_s = 64 * kv_bytes(LLAMA_8B, 4096 - 64) / (3350e9 * 0.6)
    assert many.step_s(LLAMA_8B, 1) - few.step_s(LLAMA_8B, 1) == pytest.approx(more_s, rel=0.1)


def test_speculation_buys_less_the_more_streams_there_are():
    gains = [load(streams).speedup(LOOKUP, 4) for streams in STREAMS]
    assert gains == sorted(gains, reverse=True) and gains[0] > 2 > gains[-1]
    lengths = [load(streams).best_length(LOOKUP) for streams in STREAMS]
    assert lengths == sorted(lengths, reverse=True)


def test_long_contexts_keep_it_useful_longer():
    assert load(256, context=2048).speedup(LOOKUP, 2) > load(256, context=128).speedup(LOOKUP, 2)


def test_it_is_off_where_it_does_not_gain():
    hopeless = AssumedDrafter("n-gram on random text", 0.01)
    assert load(1).best_length(hopeless) == 0
    assert (
        load(256, Gpus("L4"), context=64).best_length(AssumedDrafter("draft as large as its target", 0.6, LLAMA_8B))
        == 0
    )


def test_simulated_rounds_agree_with_the_formula():
    """Every round drafts 4 tokens for 32 streams; each is taken with a chance of 0.6, until the first that is not."""
    rng, at, length, rounds = np.random.default_rng(0), load(32), 4, 4000
    taken = np.cumprod(rng.random((rounds, 32, length)) < LOOKUP.acceptance, axis=2).sum(axis=2)
    seconds = rounds * at.step_s(LLAMA_8B, length + 1)
    assert (taken + 1).sum() / 32 / seconds == pytest.approx(at.tokens_per_s(LOOKUP, length), rel=0.01)


def test_gpus_that_share_layers_pay_for_their_messages():
    one, four = (Load(LLAMA_70B, Gpus("H100", count), 1).tokens_per_s() for count in (1, 4))
    assert 2.5 < four / one < 4


def test_a_schedule_is_one_that_vllm_takes():
    entries = schedule(LoadTable("", LLAMA_8B, H100, (LOOKUP,)), LOOKUP)
    assert entries[0][0] == 1 and entries[-1][1] == STREAMS[-1]
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(entries))
    by_hand = speculative_config(EngineSettings("m", method="ngram", draft_length=4, draft_streams=64))
    assert all(len(entry) == 3 for entry in by_hand["num_speculative_tokens_per_batch_size"])


def test_an_unknown_gpu_lists_the_known():
    with pytest.raises(UsageError, match="H100"):
        Gpus("Voodoo 2").device  # noqa: B018
