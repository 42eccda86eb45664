"""Each step of the compiled kernels against plain torch, and against itself in other company."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.backends.torch.batch import Batch, RowLists
from slipstream.backends.torch.cpu.library import kernels
from slipstream.backends.torch.ops import LayerCache, Norm, QKNorm, RopeTable
from slipstream.backends.torch.reference import ReferenceOps
from slipstream.core.sampling import Sampling, sample
from slipstream.models.config import DecoderConfig
from unit.backends.native_steps import NativeSteps

ROW_COUNTS = [*range(1, 21), 33]
SHAPES = [(16, 32), (131, 40), (88, 61), (7, 5), (300, 129)]  # outputs, inputs; most leave a partial block
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CONFIG = DecoderConfig(
    architecture="llama", vocab_size=131, hidden_size=40, intermediate_size=88, num_layers=1, num_heads=6,
    num_kv_heads=2, head_dim=22, context_length=128, norm_eps=1e-5, rope_theta=10000.0,
)  # fmt: skip
PAGE_SIZE = 8
NUM_PAGES = 12


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


def native_in(dtype: str) -> NativeSteps:
    library = kernels()
    assert library is not None
    return NativeSteps(library, DTYPES[dtype])


def close(got: torch.Tensor, expected: torch.Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=atol)


# -- linear -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_linear_equals_the_product_with_the_rounded_weight(dtype: str, outputs: int, inputs: int) -> None:
    ops = native_in(dtype)
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
    rounded = weight.to(DTYPES[dtype]).float()
    with_bias, without = ops.pack(weight, bias), ops.pack(weight)
    for rows in ROW_COUNTS:
        x = torch.randn(rows, inputs)
        close(ops.linear(x, without), x @ rounded.T, atol=1e-4)
        close(ops.linear(x, with_bias), x @ rounded.T + bias, atol=1e-4)


@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_add_adds_to_what_is_there(native: NativeSteps, reference: ReferenceOps, with_bias: bool) -> None:
    weight, bias = torch.randn(37, 29), torch.randn(37) if with_bias else None
    for rows in ROW_COUNTS:
        x, residual = torch.randn(rows, 29), torch.randn(rows, 37)
        expected = residual + reference.linear(x, reference.pack(weight, bias))
        native.linear_add(x, native.pack(weight, bias), residual)
        close(residual, expected, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_row_of_linear_has_the_same_bits_in_any_company(dtype: str, outputs: int, inputs: int) -> None:
    ops = native_in(dtype)
    weight, x = ops.pack(torch.randn(outputs, inputs), torch.randn(outputs)), torch.randn(33, inputs)
    alone = torch.cat([ops.linear(x[i : i + 1], weight) for i in range(33)])
    for rows in ROW_COUNTS:
        assert torch.equal(ops.linear(x[:rows], weight), alone[:rows])
        assert torch.equal(ops.linear(x[33 - rows :].contiguous(), weight), alone[33 - rows :])


def test_a_row_of_linear_add_has_the_same_bits_in_any_company(native: NativeSteps) -> None:
    weight, x, start = native.pack(torch.randn(37, 29)), torch.randn(33, 29), torch.randn(33, 37)
    alone = start.clone()
    for i in range(33):
        native.linear_add(x[i : i + 1], weight, alone[i : i + 1])
    for rows in ROW_COUNTS:
        together = start.clone()
        native.linear_add(x[:rows], weight, together[:rows])
        assert torch.equal(together[:rows], alone[:rows])
        assert torch.equal(together[rows:], start[rows:])


def test_packing_takes_weights_of_any_float_type(native: NativeSteps) -> None:
    weight, x = torch.randn(20, 12).bfloat16(), torch.randn(3, 12)
    close(native.linear(x, native.pack(weight)), x @ weight.float().T)


# -- embed, norm, swiglu ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_reads_rows_of_the_packed_table(dtype: str) -> None:
    ops, table = native_in(dtype), torch.randn(131, 29)
    tokens = torch.tensor([0, 130, 15, 16, 17, 127, 128, 0])
    assert torch.equal(ops.lookup(ops.pack(table), tokens), table.to(DTYPES[dtype]).float()[tokens])


@pytest.mark.parametrize("width", [1, 5, 16, 40, 577])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_norm_equals_plain_torch(native: NativeSteps, reference: ReferenceOps, width: int, scale: float) -> None:
    x, weight = torch.randn(33, width) * scale, torch.rand(width) + 0.5
    close(native.norm(x, Norm(weight, 1e-5)), reference.norm(x, Norm(weight, 1e-5)))


def test_norm_of_zeros_is_zero(native: NativeSteps) -> None:
    assert torch.equal(native.norm(torch.zeros(2, 40), Norm(torch.ones(40), 1e-5)), torch.zeros(2, 40))


@pytest.mark.parametrize("scale", [0.1, 5.0, 80.0, 1000.0])
def test_swiglu_equals_plain_torch_at_any_magnitude(native: NativeSteps, reference: ReferenceOps, scale: float) -> None:
    gate_up = torch.randn(33, 2 * 89) * scale
    close(native.swiglu(gate_up), reference.swiglu(gate_up), atol=1e-30)


def test_swiglu_at_its_edges(native: NativeSteps, reference: ReferenceOps) -> None:
    gates = torch.tensor([0.0, 87.0, 88.0, 89.0, 127.0, 129.0, 200.0, 1e4, 1e20])
    gate = torch.cat((gates, -gates))
    gate_up = torch.cat((gate, torch.full_like(gate, 2.0)))[None]
    close(native.swiglu(gate_up), reference.swiglu(gate_up), atol=1e-15)


@pytest.mark.parametrize("op", ["norm", "swiglu"])
def test_a_row_of_norm_or_swiglu_has_the_same_bits_in_any_company(native: NativeSteps, op: str) -> None:
    x, weight = torch.randn(33, 2 * 89), torch.rand(2 * 89)

    def run(rows: torch.Tensor) -> torch.Tensor:
        return native.norm(rows, Norm(weight, 1e-5)) if op == "norm" else native.swiglu(rows)

    alone = torch.cat([run(x[i : i + 1]) for i in range(33)])
    for rows in ROW_COUNTS:
        assert torch.equal(run(x[:rows]), alone[:rows])


# -- the cache ----------------------------------------------------------------------------------------------------


def rope_table(config: DecoderConfig) -> RopeTable:
    angles = torch.arange(config.context_length)[:, None] * torch.tensor(config.inverse_frequencies())
    return RopeTable(angles.cos().contiguous(), angles.sin().contiguous())


def random_cache() -> LayerCache:
    shape = (NUM_PAGES * PAGE_SIZE, CONFIG.num_kv_heads, CONFIG.head_dim)
    return LayerCache(torch.randn(shape), torch.randn(shape))


PAGES = ([7, 2, 11, 0], [5, 9, 1, 0])
Row = tuple[int, int, int, list[int]]  # sequence, prefix, cell, extras
ROWS: list[Row] = [
    (0, 1, 20, []), (0, 2, 21, []), (0, 9, 22, []), (0, 17, 30, []), (0, 20, 33, [33]), (0, 20, 35, [34, 35]),
    (0, 20, 36, [33, 36]), (0, 24, 40, []), (1, 8, 41, []), (1, 3, 42, []), (1, 16, 80, [80]), (1, 16, 3, [81, 50, 3]),
]  # fmt: skip


def make_batch(chosen: Sequence[int] = range(len(ROWS))) -> Batch:
    """Two sequences with pages out of order: prompt rows, rows in the middle, and draft rows with extras."""
    return batch_of([ROWS[r] for r in chosen])


def batch_of(chosen: Sequence[Row]) -> Batch:
    rows = RowLists()
    for sequence, prefix, cell, extras in chosen:
        rows.add(0, prefix + len(extras) - 1, cell, sequence, prefix, extras)
    return rows.build(PAGES, PAGE_SIZE, torch.device("cpu"))


QKV_WIDTH = (CONFIG.num_heads + 2 * CONFIG.num_kv_heads) * CONFIG.head_dim


@pytest.mark.parametrize("with_norm", [False, True])
def test_rope_write_equals_plain_torch(native: NativeSteps, reference: ReferenceOps, with_norm: bool) -> None:
    batch, rope, cache = make_batch(), rope_table(CONFIG), random_cache()
    norm = QKNorm(torch.rand(CONFIG.head_dim), torch.rand(CONFIG.head_dim)) if with_norm else None
    qkv = torch.randn(batch.num_rows, QKV_WIDTH)
    expected_qkv, expected = qkv.clone(), LayerCache(cache.keys.clone(), cache.values.clone())
    native.rope_write(qkv, batch, CONFIG, rope, norm, cache)
    reference.rope_write(expected_qkv, batch, CONFIG, rope, norm, expected)
    close(qkv, expected_qkv)
    close(cache.keys, expected.keys)
    assert torch.equal(cache.values, expected.values)


def test_rope_write_gives_a_row_the_same_bits_in_any_company(native: NativeSteps) -> None:
    batch, rope = make_batch(), rope_table(CONFIG)
    norm = QKNorm(torch.rand(CONFIG.head_dim), torch.rand(CONFIG.head_dim))
    qkv, cache = torch.randn(batch.num_rows, QKV_WIDTH), random_cache()
    together = qkv.clone()
    native.rope_write(together, batch, CONFIG, rope, norm, cache)
    for r in range(batch.num_rows):
        alone = qkv[r : r + 1].clone()
        native.rope_write(alone, make_batch([r]), CONFIG, rope, norm, random_cache())
        assert torch.equal(alone[0], together[r])


@pytest.mark.parametrize("window", [None, 1, 2, 5, 19, 100])
def test_attend_equals_plain_torch(native: NativeSteps, reference: ReferenceOps, window: int | None) -> None:
    config, batch, cache = replace(CONFIG, sliding_window=window), make_batch(), random_cache()
    qkv = torch.randn(batch.num_rows, QKV_WIDTH)
    close(native.attend(qkv, batch, config, cache), reference.attend(qkv, batch, config, cache))


def test_attend_with_scores_far_apart(native: NativeSteps, reference: ReferenceOps) -> None:
    batch, cache = make_batch(), random_cache()
    qkv = torch.randn(batch.num_rows, QKV_WIDTH) * 200
    close(native.attend(qkv, batch, CONFIG, cache), reference.attend(qkv, batch, CONFIG, cache), atol=1e-4)


@pytest.mark.parametrize("window", [None, 5])
def test_attend_gives_a_row_the_same_bits_in_any_company_and_order(native: NativeSteps, window: int | None) -> None:
    config, batch, cache = replace(CONFIG, sliding_window=window), make_batch(), random_cache()
    qkv = torch.randn(batch.num_rows, QKV_WIDTH)
    together = native.attend(qkv, batch, config, cache)
    orders = [[r] for r in range(batch.num_rows)] + [torch.randperm(batch.num_rows)[:n].tolist() for n in (2, 5, 12)]
    for rows in orders:
        alone = native.attend(qkv[rows].contiguous(), make_batch(rows), config, cache)
        assert torch.equal(alone, together[rows])


def test_attend_does_not_see_where_in_memory_the_keys_lie(native: NativeSteps) -> None:
    """A draft's row keeps its bits when the draft is committed and its keys are moved."""
    linear, cache = make_batch([7]), random_cache()  # 24 keys on pages 7, 2, 11
    cells = [page * PAGE_SIZE + i for page in (7, 2, 11) for i in range(PAGE_SIZE)]
    as_draft = batch_of([(0, 20, 40, [3, 61, 90, 9])])
    for copy, original in zip((3, 61, 90, 9), cells[20:], strict=True):
        cache.keys[copy], cache.values[copy] = cache.keys[original], cache.values[original]
    qkv = torch.randn(1, QKV_WIDTH)
    assert torch.equal(native.attend(qkv, linear, CONFIG, cache), native.attend(qkv, as_draft, CONFIG, cache))


def test_attend_stays_within_its_scratch_whichever_thread_asks() -> None:
    """A limit that holds for one thread alone lets a server's thread use all cores, and write beyond the scratch."""
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        ops = native_in("fp32")
        batch, cache = make_batch(), random_cache()
        qkv = torch.randn(batch.num_rows, QKV_WIDTH)
        ops.attend(qkv, batch, CONFIG, cache)  # takes a quarter more room than one thread needs
        ops._room.fill_(7.0)
        worker = threading.Thread(target=ops.attend, args=(qkv, batch, CONFIG, cache))
        worker.start()
        worker.join()
    finally:
        torch.set_num_threads(usual)
        native_in("fp32")  # its number of threads is the library's
    assert torch.all(ops._room[-(len(ops._room) // 5) :] == 7.0)
    assert not torch.all(ops._room == 7.0)


# -- choosing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [1, 15, 511, 513, 49152])
@pytest.mark.parametrize("temperature", [0.0, 0.05, 0.8, 30.0])
def test_a_token_is_chosen_as_the_host_chooses_it(native: NativeSteps, vocab: int, temperature: float) -> None:
    rows = np.random.default_rng(vocab).standard_normal((40, vocab)).astype(np.float32) * 6
    for position, row in enumerate(rows):
        row[: vocab // 3] = -np.inf
        row = np.round(row) if position % 2 else row  # with ties
        sampling = Sampling(temperature=temperature, seed=position % 3)
        assert native.chosen(row, sampling, position) == sample(row, sampling, position)


@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 600, 999])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_logits_that_are_not_finite_choose_no_token(
    native: NativeSteps, wrong: float, at: int, temperature: float
) -> None:
    row = np.linspace(-5, 5, 1000, dtype=np.float32)
    row[at] = wrong
    token = native.chosen(row, Sampling(temperature=temperature), 3)
    assert token is not None and token < 0


def test_the_host_chooses_where_tokens_are_excluded(native: NativeSteps) -> None:
    row = np.zeros(8, np.float32)
    settings = [
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.0, "logit_bias": {3: 1.0}},
        {"logit_bias": {3: 1.0}},
    ]
    assert [native.chosen(row, Sampling(**own), 0) for own in settings] == [None, None, None]
