"""Keys and values in 8 bits: what is written, what is read, and attention over it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from slipstream.backends.torch.coded_cache import TOGETHER, read_cells, vector_width, write_cells
from slipstream.backends.torch.cpu.library import kernels
from slipstream.backends.torch.ops import LayerCache, RopeTable
from slipstream.backends.torch.options import TorchOptions
from slipstream.backends.torch.reference import ReferenceOps
from slipstream.errors import UsageError
from slipstream.models.config import DecoderConfig
from unit.backends.native_steps import NativeSteps
from unit.backends.test_native_ops import CONFIG, NUM_PAGES, PAGE_SIZE, make_batch, rope_table


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=[32, 64, 96, 128])
def config(request: pytest.FixtureRequest) -> DecoderConfig:
    return replace(CONFIG, head_dim=request.param)


def empty_cache(config: DecoderConfig) -> LayerCache:
    shape = (NUM_PAGES * PAGE_SIZE, config.num_kv_heads, vector_width(config.head_dim, torch.int8))
    return LayerCache(torch.zeros(shape, dtype=torch.int8), torch.zeros(shape, dtype=torch.int8))


def full_cache(config: DecoderConfig) -> LayerCache:
    cache, cells = empty_cache(config), torch.arange(NUM_PAGES * PAGE_SIZE)
    for part in (cache.keys, cache.values):
        write_cells(part, cells, torch.randn(len(cells), config.num_kv_heads, config.head_dim))
    return cache


def native() -> NativeSteps:
    library = kernels()
    assert library is not None
    return NativeSteps(library, torch.float32)


def test_what_is_read_is_within_half_a_step_of_what_was_written(config: DecoderConfig) -> None:
    cache, cells = empty_cache(config).keys, torch.tensor([3, 70, 5])
    vectors = torch.randn(3, config.num_kv_heads, config.head_dim) * torch.tensor([1e-3, 1.0, 1e3]).view(3, 1, 1)
    vectors[1, 0, 0] = 500.0  # an outlier costs its own group alone
    write_cells(cache, cells, vectors)
    found = read_cells(cache, cells, config.head_dim)
    groups = vectors.view(3, config.num_kv_heads, -1, TOGETHER)
    step = (groups.abs().amax(-1) / 127).repeat_interleave(TOGETHER, -1)
    assert bool(((found - vectors).abs() <= step * 0.5001).all())


def test_a_number_that_is_not_finite_is_seen_by_whoever_reads_it() -> None:
    cache = empty_cache(replace(CONFIG, head_dim=64)).values
    vectors = torch.randn(3, CONFIG.num_kv_heads, 64)
    vectors[0, 0, 1], vectors[1, 0, 40], vectors[2] = float("nan"), float("inf"), 0.0
    write_cells(cache, torch.arange(3), vectors)
    found = read_cells(cache, torch.arange(3), 64)
    assert found[0, 0, :32].isnan().all() and found[0, 0, 32:].isfinite().all()
    assert found[1, 0, 32:].isnan().all() and bool((found[2] == 0).all())


def rows_for(config: DecoderConfig) -> torch.Tensor:
    return torch.randn(make_batch().num_rows, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)


def test_the_kernels_write_the_codes_of_plain_torch(config: DecoderConfig) -> None:
    qkv, batch, rope = rows_for(config), make_batch(), rope_table(config)
    straight = RopeTable(torch.ones_like(rope.cosine), torch.zeros_like(rope.sine))  # so that both have the same bits
    written, expected = empty_cache(config), empty_cache(config)
    native().rope_write(qkv.clone(), batch, config, straight, None, written)
    ReferenceOps(torch.float32).rope_write(qkv.clone(), batch, config, straight, None, expected)
    everything = torch.arange(NUM_PAGES * PAGE_SIZE)
    for mine, other in ((written.keys, expected.keys), (written.values, expected.values)):
        got, wanted = (read_cells(part, everything, config.head_dim) for part in (mine, other))
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0.02)  # a code may fall to either side of a half
        assert (mine != other).float().mean() < 0.01


@pytest.mark.parametrize("window", [None, 5])
def test_attention_equals_plain_torch(config: DecoderConfig, window: int | None) -> None:
    config, batch, cache, qkv = (
        replace(config, sliding_window=window),
        make_batch(),
        full_cache(config),
        rows_for(config),
    )
    got = native().attend(qkv, batch, config, cache)
    expected = ReferenceOps(torch.float32).attend(qkv, batch, config, cache)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_row_has_the_same_bits_in_any_company(config: DecoderConfig) -> None:
    batch, cache, qkv, ops = make_batch(), full_cache(config), rows_for(config), native()
    together = ops.attend(qkv, batch, config, cache)
    for r in range(batch.num_rows):
        alone = ops.attend(qkv[r : r + 1].clone(), make_batch([r]), config, cache)
        assert torch.equal(alone[0], together[r])


def test_an_unknown_type_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="kv_type 'q4_0': the torch backend has auto, q8_0"):
        TorchOptions(kv_type="q4_0")
