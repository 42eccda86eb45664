"""Products that stream their weights: the kernel itself on a CPU, against plain torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

pytest.importorskip("triton")

from contract.emulated_codes import EmulatedKernels
from cuda_on_cpu import StreamedOnCpu
from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.bucket import make_batch
from slipstream.backends.torch.cuda.kernels.products import Shares
from slipstream.backends.torch.cuda.kernels.streamed import StreamedProducts
from slipstream.backends.torch.cuda.ops import TritonOps
from slipstream.backends.torch.cuda.quantised_ops import QuantisedOps
from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool, PooledSequence
from slipstream.backends.torch.ops import Hidden, LayerCache, LayerStep, Linear, Norm, RopeTable
from slipstream.models.config import DecoderConfig

CPU = torch.device("cpu")
UNIT = 2**28  # of squares
CONFIG = DecoderConfig("llama", 64, 192, 320, 1, 4, 2, 48, 512, 1e-5, 1e4)
ROWS = [1, 3, 8, 9, 16]


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> StreamedOnCpu:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return StreamedOnCpu(tmp_path_factory.mktemp("kernels"), multiprocessors=3)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def weight(outputs: int, inputs: int, bias: bool = False) -> Linear:
    return Linear(numbers(outputs, inputs) / 8, outputs, inputs, torch.randn(outputs) if bias else None)


def in_parts(inputs: int, count: int) -> Shares:
    return Shares(count, -(-(inputs // 64) // count) * 64)


def normed(x: torch.Tensor, gain: torch.Tensor, eps: float) -> tuple[Hidden, torch.Tensor]:
    """As the kernels take rows, and their norm."""
    squares = (x.float() ** 2).sum(1)
    hidden = Hidden(x, (x * gain).to(x.dtype), (squares * UNIT).to(torch.int64)[None])
    return hidden, hidden.scaled.float() * torch.rsqrt(squares / x.shape[1] + eps)[:, None]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.allclose(ours.float(), theirs.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_plain_product(products: StreamedOnCpu, rows: int, parts: int) -> None:
    """320 outputs are 20 tiles: 7 for each of three blocks, and the last has room for more."""
    torch.manual_seed(rows)
    w, norm = weight(320, 576, bias=True), Norm(torch.rand(576) + 0.5, 1e-5)
    hidden, expected = normed(numbers(rows, 576), norm.gain, norm.eps)
    out = torch.full((rows, 320), float("nan"))
    products.plain(hidden, norm, w, in_parts(576, parts), out)
    assert close(out, expected @ w.data.float().T + w.bias)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_ring_is_used_again_and_again(products: StreamedOnCpu, parts: int) -> None:
    torch.manual_seed(0)
    w, norm = weight(320, 4096), Norm(torch.rand(4096) + 0.5, 1e-5)
    hidden, expected = normed(numbers(3, 4096), norm.gain, norm.eps)
    out = torch.full((3, 320), float("nan"))
    products.plain(hidden, norm, w, in_parts(4096, parts), out)
    assert torch.allclose(out, expected @ w.data.float().T, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("rows", ROWS)
def test_a_gated_product(products: StreamedOnCpu, rows: int) -> None:
    torch.manual_seed(rows)
    w, norm = weight(2 * 320, 192), Norm(torch.rand(192) + 0.5, 1e-5)
    hidden, expected = normed(numbers(rows, 192), norm.gain, norm.eps)
    out = torch.full((rows, 320), float("nan"), dtype=torch.bfloat16)
    products.gated(hidden, norm, w, out)
    gate, up = (expected @ w.data.float().T).split(320, 1)
    assert close(out, F.silu(gate) * up)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("parts", [1, 4])
def test_what_is_added_to_the_residual_stream(products: StreamedOnCpu, rows: int, parts: int) -> None:
    torch.manual_seed(rows)
    x, w, then = numbers(rows, 320), weight(192, 320), Norm(torch.rand(192) + 0.5, 1e-5)
    stream = numbers(rows, 192)
    expected = stream.float() + x.float() @ w.data.float().T
    hidden = Hidden(stream, torch.empty_like(stream), torch.zeros(1, rows, dtype=torch.int64))
    products.add(x, w, hidden, then, in_parts(320, parts))
    assert close(stream, expected) and close(hidden.scaled, stream * then.gain)
    assert torch.allclose(hidden.squares[0].double() / UNIT, (stream.double() ** 2).sum(1), rtol=1e-6)


@pytest.mark.parametrize("rows", ROWS)
def test_queries_are_rotated_and_keys_and_values_cached(products: StreamedOnCpu, rows: int) -> None:
    torch.manual_seed(rows)
    heads, half = CONFIG.num_heads + 2 * CONFIG.num_kv_heads, CONFIG.head_dim // 2
    w, norm = weight(heads * CONFIG.head_dim, CONFIG.hidden_size, bias=True), Norm(torch.rand(192) + 0.5, 1e-5)
    hidden, x = normed(numbers(rows, CONFIG.hidden_size), norm.gain, norm.eps)
    pool, rope = KVPool(CONFIG, 20 * PAGE_SIZE, torch.bfloat16, CPU), RopeTable(*torch.randn(2, 512, half))
    cache = LayerCache(pool.keys[0], pool.values[0])
    batch, sequences = make_batch(CONFIG, pool, rows, 512, CPU), [PooledSequence(pool, 0) for _ in range(rows)]
    for i, sequence in enumerate(sequences):
        sequence.pages = [rows - 1 - i]
    batch.fill([SequenceRows(sequence, i, [5]) for i, sequence in enumerate(sequences)])
    queries = torch.full((rows, CONFIG.num_heads * CONFIG.head_dim), float("nan"), dtype=torch.bfloat16)
    products.qkv(hidden, norm, w, LayerStep(rope, batch, CONFIG, cache), in_parts(192, 1), queries)

    expected = (x @ w.data.float().T + w.bias).view(rows, heads, CONFIG.head_dim)
    turned = expected[:, : CONFIG.num_heads + CONFIG.num_kv_heads]
    low, high = turned.split(half, 2)
    cosine, sine = rope.cosine[:rows, None], rope.sine[:rows, None]
    turned = torch.cat((low * cosine - high * sine, high * cosine + low * sine), 2)
    cells = torch.tensor([(rows - 1 - i) * PAGE_SIZE + i for i in range(rows)])
    assert close(queries, turned[:, : CONFIG.num_heads].flatten(1))
    assert close(cache.keys[cells], turned[:, CONFIG.num_heads :])
    assert close(cache.values[cells], expected[:, -CONFIG.num_kv_heads :])


def test_a_residual_stream_of_another_type_is_refused(products: StreamedOnCpu) -> None:
    stream = torch.zeros(1, 192)
    hidden = Hidden(stream, numbers(1, 192), torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(AssertionError):
        products.add(numbers(1, 320), weight(192, 320), hidden, Norm(torch.ones(192), 1e-5), in_parts(320, 1))


def test_beside_codes_nothing_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual stream is float32 there. A head has its own, in 16 bits."""
    asked: list[DecoderConfig] = []
    monkeypatch.setattr(StreamedProducts, "for_model", lambda config, dtype, device: asked.append(config))
    ops = QuantisedOps(CONFIG, torch.bfloat16, CPU, False, EmulatedKernels())
    assert asked == []
    ops.for_head(CONFIG)
    TritonOps(CONFIG, torch.bfloat16, CPU, False)
    assert asked == [CONFIG] * 2
    QuantisedOps(CONFIG, torch.bfloat16, CPU, False, EmulatedKernels(), heads_stream=False).for_head(CONFIG)
    TritonOps(CONFIG, torch.bfloat16, CPU, False, in_cuda=False)
    assert asked == [CONFIG] * 2


def test_a_row_has_the_same_bits_alone_and_among_others(products: StreamedOnCpu) -> None:
    torch.manual_seed(0)
    w, norm = weight(320, 576), Norm(torch.rand(576) + 0.5, 1e-5)
    x = numbers(16, 576)
    results = []
    for rows in (x, x[:5], x[:1]):
        out = torch.empty(len(rows), 320)
        products.plain(normed(rows, norm.gain, norm.eps)[0], norm, w, in_parts(576, 2), out)
        results.append(out[0])
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("tiles", [1, 36, 256, 384, 1792, 3584, 25_000])
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("row_tiles", [1, 2])
def test_a_ring_has_room_and_stages(tmp_path: Path, tiles: int, parts: int, row_tiles: int) -> None:
    each, depth, stages = StreamedOnCpu(tmp_path, 132)._cut(tiles, Shares(parts, 4096), row_tiles)
    assert each >= 1 and each * parts <= 15 and 3 <= stages <= 8
    assert stages * parts * (2 * each + row_tiles) * depth * 1024 <= 208 * 1024
