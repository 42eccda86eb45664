"""The CUDA path on a GPU: the Model contract, text that no drafter changes, graphs, memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from contract import cuda_models, nan_model, tiny_models
from contract.emulated_codes import EmulatedKernels
from contract.model_contract import ModelContract
from slipstream.backends.torch.batch import SequenceRows
from slipstream.backends.torch.cuda.batch import CudaBatch
from slipstream.backends.torch.cuda.bucket import make_batch
from slipstream.backends.torch.cuda.kernels.fp8 import pack_fp8
from slipstream.backends.torch.cuda.kernels.hopper_products import HopperProducts
from slipstream.backends.torch.cuda.kernels.linear import SkinnyProducts, Tiling
from slipstream.backends.torch.cuda.kernels.quantised_kernels import QuantisedKernels
from slipstream.backends.torch.cuda.kernels.quantised_layout import CodedLinear, pack_part
from slipstream.backends.torch.cuda.kernels.streamed import StreamedProducts, can_stream
from slipstream.backends.torch.cuda.kernels.tilings import FP8_CANDIDATES, FP8_WIDE, STREAMED, WIDE
from slipstream.backends.torch.cuda.quantised_ops import QuantisedOps
from slipstream.backends.torch.kv_pool import KVPool, PooledSequence
from slipstream.backends.torch.load import load_model
from slipstream.backends.torch.model import TorchModel
from slipstream.backends.torch.ops import Hidden, LayerCache, LayerStep, Linear, Norm, RopeTable
from slipstream.backends.torch.options import TorchOptions
from slipstream.core.engine import Engine
from slipstream.core.protocols import ScoreRequest, prefill
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Drafter, Limits
from slipstream.core.tree import ROOT
from slipstream.drafters.model import DraftModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.errors import CapacityError
from slipstream.loading import LoadedModel
from slipstream.models.config import DecoderConfig
from slipstream.models.quantised import Fp8Tensor, QuantisedTensor
from slipstream.models.shapes import RandomCheckpoint
from slipstream.policy import make_policy
from tiny_coded import CASES, save_both
from tiny_fp8 import save_fp8
from unit.backends.test_quantised_cuda import WEIGHTS

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("cuda")
    return {family: cuda_models.save(family, root / family) for family in tiny_models.FAMILIES}


class TestExact(ModelContract):
    num_seeds = 2

    @pytest.fixture(scope="class", params=tiny_models.FAMILIES)
    @classmethod
    def model(cls, request: pytest.FixtureRequest, folders: dict[str, Path]) -> TorchModel:
        return cuda_models.load_on_gpu(folders[request.param], dtype="fp32", exact=True, kv_tokens=4096)


class TestExactIn16Bits(ModelContract):
    num_seeds = 2

    @pytest.fixture(scope="class", params=["bf16", "fp16"])
    @classmethod
    def model(cls, request: pytest.FixtureRequest, folders: dict[str, Path]) -> TorchModel:
        return cuda_models.load_on_gpu(folders["qwen2-bias-tied"], dtype=request.param, exact=True, kv_tokens=4096)


class TestDefault(ModelContract):
    tolerance = 2e-4
    num_seeds = 2

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, folders: dict[str, Path]) -> TorchModel:
        return cuda_models.load_on_gpu(folders["llama3-scaled-tied"], dtype="fp32", kv_tokens=4096)


class TestQuantised(ModelContract):
    """The file's own codes, with 8-bit activations."""

    num_seeds = 1

    @pytest.fixture(
        scope="class", params=[("llama", "Q4_0"), ("qwen2", "Q4_1"), ("qwen3", "Q5_0"), "awq", "int8 by row"]
    )
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchModel:
        folder = tmp_path_factory.mktemp("quantised")
        spec = request.param
        path = (
            tiny_models.save_quantised(*spec, folder) if isinstance(spec, tuple) else save_both(CASES[spec], folder)[0]
        )
        return cuda_models.load_on_gpu(path, exact=True, kv_tokens=4096)

    def test_it_keeps_the_codes(self, model: TorchModel) -> None:
        assert model.info.dtype == "int8"


class TestFp8(ModelContract):
    num_seeds = 1

    @pytest.fixture(scope="class", params=["compressed-tensors by tensor", "fbgemm"])
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchModel:
        folder, _ = save_fp8(request.param, tmp_path_factory.mktemp("fp8"))
        return cuda_models.load_on_gpu(folder, exact=True, kv_tokens=4096)

    def test_it_keeps_fp8(self, model: TorchModel) -> None:
        assert model.info.dtype == "fp8"


@pytest.mark.parametrize("rows", [16, 32, 64, 128, 256])
def test_every_fp8_weight_is_converted_exactly(rows: int) -> None:
    """One row for each input, with a one in it: the product is the weights themselves."""
    device = torch.device("cuda", 0)
    codes = np.resize(np.delete(np.arange(256, dtype=np.uint8), [127, 255]), (96, 256))
    weight = pack_fp8([Fp8Tensor("", codes, np.full(96, 0.5, np.float32))], None, device)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float() * 0.5
    products = SkinnyProducts(torch.bfloat16, device, 96, 2)
    narrow = FP8_CANDIDATES["add"][0]
    for tiling in FP8_CANDIDATES["add"] if rows == 16 else FP8_WIDE[rows]:
        tiling = tiling if rows == 16 else tiling.like(narrow, 256, 2)
        stream = torch.zeros(rows, 96, dtype=torch.bfloat16, device=device)
        squares = torch.zeros(2, rows, dtype=torch.int64, device=device)
        hidden = Hidden(stream, torch.empty_like(stream), squares)
        x = torch.eye(256, dtype=torch.bfloat16, device=device)[:rows]
        products.add(x, weight, hidden, Norm(torch.ones(256, device=device), 1e-5), tiling)
        assert torch.equal(stream.float().cpu(), values.T[:rows])


STREAMED_SHAPES = {
    "few outputs": DecoderConfig("llama", 256, 576, 1536, 1, 9, 3, 64, 512, 1e-5, 1e4),
    "parts that end early": DecoderConfig("llama", 256, 832, 2112, 1, 13, 1, 64, 512, 1e-5, 1e4),
    "more tiles than warps": DecoderConfig("llama", 256, 256, 57344, 1, 16, 16, 16, 512, 1e-5, 1e4),
}


@pytest.mark.skipif(not can_stream(torch.device("cuda", 0)), reason="this GPU has no such kernels")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("config", STREAMED_SHAPES.values(), ids=STREAMED_SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_streamed_products_have_the_bits_of_the_others(
    config: DecoderConfig, dtype: torch.dtype, has_bias: bool
) -> None:
    """A stream goes from one kind of kernel to the other with the number of rows."""
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    hidden_size, width = config.hidden_size, config.num_heads * config.head_dim
    streamed = StreamedProducts.for_model(config, dtype, device)
    outputs = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    assert streamed
    products = SkinnyProducts(dtype, device, max(hidden_size, outputs), 2, {"streamed": streamed})

    def weight(outputs: int, inputs: int) -> Linear:
        data = (torch.randn(outputs, inputs, device=device) / 30).to(dtype)
        return Linear(data, outputs, inputs, torch.randn(outputs, device=device) if has_bias else None)

    weights = {
        "qkv": weight(outputs, hidden_size),
        "project": weight(outputs, hidden_size),
        "gate": replace(weight(2 * config.intermediate_size, hidden_size), bias=None),  # no model has one there
        "add": weight(hidden_size, width),
    }
    pool = KVPool(config, 512, dtype, device)
    rope = RopeTable(*(torch.randn(512, config.head_dim // 2, device=device) for _ in range(2)))
    cache = LayerCache(pool.keys[0], pool.values[0])

    def results(kind: str, tiling: Tiling, x: torch.Tensor, batch: CudaBatch) -> list[torch.Tensor]:
        norm = Norm(torch.linspace(0.5, 2, max(weights[kind].inputs, hidden_size), device=device), 1e-5)
        squares = torch.linspace(1e9, 2e11, 2 * len(x), device=device).to(torch.int64).view(2, len(x))
        hidden = Hidden(x, x, squares)
        if kind == "add":
            stream = torch.linspace(-2, 2, len(x) * hidden_size, device=device).to(dtype).view(len(x), hidden_size)
            hidden = Hidden(stream, torch.empty_like(stream), squares)
            products.add(x, weights[kind], hidden, norm, tiling)
            assert hidden.scaled is not None
            return [stream, hidden.scaled, squares]
        if kind == "qkv":
            cache.keys.zero_(), cache.values.zero_()
            queries = products.qkv(hidden, norm, weights[kind], LayerStep(rope, batch, config, cache), tiling)
            return [queries, cache.keys.clone(), cache.values.clone()]
        return [products.normed(hidden, norm, weights[kind], tiling, kind == "gate")]

    for rows in (1, 3, 8, 9, 16):
        batch = make_batch(config, pool, rows, 512, device)
        sequences = [PooledSequence(pool, 0) for _ in range(rows)]
        for i, sequence in enumerate(sequences):
            sequence.pages = [i]
        batch.fill([SequenceRows(sequence, 7 + i, [5]) for i, sequence in enumerate(sequences)])
        for kind in weights:
            x = torch.randn(rows, weights[kind].inputs, device=device).to(dtype)
            for tiling in STREAMED[kind]:
                plain = Tiling(32, 64, 3, split=tiling.split)
                for ours, theirs in zip(*(results(kind, one, x, batch) for one in (tiling, plain)), strict=True):
                    assert torch.equal(ours, theirs), (kind, rows, tiling.split)


@pytest.mark.skipif(not can_stream(torch.device("cuda", 0)), reason="some of them are for Hopper")
@pytest.mark.parametrize("rows", [17, 32, 50, 64, 100, 256])
@pytest.mark.parametrize("split", [1, 2])
def test_every_tiling_of_many_rows_has_the_bits_of_few(rows: int, split: int) -> None:
    torch.manual_seed(0)
    device, narrow = torch.device("cuda", 0), Tiling(32, 64, 6, split=split)
    others = {"hopper": HopperProducts(torch.bfloat16, device)}
    products, norm = (
        SkinnyProducts(torch.bfloat16, device, 1152, 2, others),
        Norm(torch.rand(1536, device=device), 1e-5),
    )
    weight = Linear((torch.randn(1152, 1536, device=device) / 30).bfloat16(), 1152, 1536)
    x, stream = (torch.randn(rows, width, device=device).bfloat16() for width in (1536, 1152))
    squares = torch.full((2, rows), 10**11, dtype=torch.int64, device=device)

    def results(tiling: Tiling, rows: int) -> list[torch.Tensor]:
        own = Hidden(stream[:rows].clone(), torch.empty_like(stream[:rows]), squares[:, :rows].clone())
        products.add(x[:rows], weight, own, norm, tiling)
        read = Hidden(x[:rows], x[:rows], squares[:, :rows].clone())
        normed = [products.normed(read, norm, weight, tiling, gated=g) for g in ([False, True] if split == 1 else [])]
        return [own.x, own.scaled, own.squares.T, *normed]

    few = results(narrow, 8)
    for tiling in WIDE[next(size for size in WIDE if rows <= size)]:
        many = results(tiling.like(narrow, 1536, 2), rows)
        assert all(torch.equal(own[:8], one) for own, one in zip(many, few, strict=True)), tiling


@pytest.mark.parametrize("rows", [1, 8, 16, 17])
def test_a_product_of_floats_beside_codes(rows: int) -> None:
    """Files keep some weights as floats; the residual stream is float32 there."""
    torch.manual_seed(0)
    device, config = torch.device("cuda", 0), STREAMED_SHAPES["few outputs"]
    ops = QuantisedOps(config, torch.bfloat16, device, False, QuantisedKernels(device))
    weight = ops.pack(torch.randn(576, 1536, device=device) / 30)
    x, stream = torch.randn(rows, 1536, device=device).bfloat16(), torch.randn(rows, 576, device=device)
    expected = stream + x.float() @ weight.data.float().T
    ops.add(x, weight, Hidden(stream), Norm(torch.ones(576, device=device), 1e-5))
    assert torch.allclose(stream, expected, atol=2e-2)


@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
def test_products_with_codes_are_those_of_the_emulation_bit_for_bit(weight: QuantisedTensor) -> None:
    """In any company; and so are tables and unpacked weights."""
    torch.manual_seed(0)
    device, x, emulated = torch.device("cuda", 0), torch.randn(75, weight.shape[1]), EmulatedKernels()
    kernels, here, there = QuantisedKernels(device), pack_part(weight, torch.device("cpu")), pack_part(weight, device)
    expected = torch.empty(75, weight.shape[0])
    emulated.multiply(emulated.quantise(x, "plain"), CodedLinear.of([here], None), expected)
    for rows in (1, 4, 5, 8, 9, 16, 20, 33, 64, 75):
        out = torch.full((rows, weight.shape[0]), float("nan"), device=device)
        kernels.multiply(kernels.quantise(x[:rows].to(device), "plain"), CodedLinear.of([there], None), out)
        assert torch.equal(out.cpu(), expected[:rows])
    ids = torch.tensor([0, 19, weight.shape[0] - 1], dtype=torch.int32)
    assert torch.equal(kernels.lookup(there, ids.to(device)).cpu(), emulated.lookup(here, ids))
    floats, on_device = (torch.zeros(weight.shape[0] - 16, weight.shape[1], dtype=torch.bfloat16) for _ in range(2))
    emulated.unpack(here, 16, floats)
    on_device = on_device.to(device)
    kernels.unpack(there, 16, on_device)
    assert torch.equal(on_device.cpu(), floats)


@pytest.fixture(scope="module")
def random_model() -> Iterator[LoadedModel]:
    """A 0.5B shape: large enough for real tilings, quick to make."""
    checkpoint = RandomCheckpoint("qwen-0.5b")
    options = TorchOptions(device="cuda", context_length=2048, kv_tokens=49152, exact=True)
    yield LoadedModel(load_model(checkpoint, options), checkpoint.tokenizer)
    torch.cuda.empty_cache()


SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.8, seed=4),
    "top-p": Sampling(temperature=0.9, top_p=0.8, seed=9),
    "penalised": Sampling(temperature=0.7, repetition_penalty=1.2, seed=2),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_no_drafter_changes_the_text(random_model: LoadedModel, sampling: Sampling) -> None:
    model = random_model.model
    drafters: list[Drafter] = [SuffixDrafter(), DraftModelDrafter(model), DraftModelDrafter(model.first_layers(6))]
    prompt = [(i * 7919) % 50_000 for i in range(90)]
    limits = Limits(max_tokens=150, ignore_eos=True)
    plain = Engine(model, random_model.tokenizer).generate(prompt, sampling, limits).result().tokens
    for drafter in drafters:
        engine = Engine(model, random_model.tokenizer, drafter, make_policy("fixed(5)"))
        assert engine.generate(prompt, sampling, limits).result().tokens == plain, drafter.name


def test_a_stream_reads_the_same_alone_and_among_others(random_model: LoadedModel) -> None:
    model, limits = random_model.model, Limits(max_tokens=80, ignore_eos=True)
    prompts = [[(i * 31 + seed * 977) % 50_000 for i in range(20 + 9 * seed)] for seed in range(12)]
    alone = [Engine(model, random_model.tokenizer).generate(p, Sampling(), limits).result().tokens for p in prompts]
    engine = Engine(model, random_model.tokenizer, DraftModelDrafter(model), make_policy("fixed(3)"))
    together = [engine.generate(p, Sampling(), limits) for p in prompts]
    assert [g.result().tokens for g in together] == alone
    assert model.num_open == 0  # type: ignore[attr-defined]


def test_plain_decoding_runs_ahead_across_pages_and_to_the_end_of_the_context(random_model: LoadedModel) -> None:
    """What runs ahead must stop at the context's end, and leave no trace when a stream is left in the middle."""
    model = random_model.model
    engine = Engine(model, random_model.tokenizer)
    prompt = [(i * 13) % 50_000 for i in range(1960)]
    full = engine.generate(prompt, Sampling(), Limits(max_tokens=500, ignore_eos=True)).result()
    assert full.finish_reason == "length"
    assert len(full.stream.tokens) == 2048
    for token in engine.generate(prompt, Sampling(), Limits(max_tokens=500, ignore_eos=True)):
        if len(full.tokens) > 5 and token.id == full.tokens[5]:
            break
    again = engine.generate(prompt, Sampling(), Limits(max_tokens=40, ignore_eos=True)).result()
    assert again.tokens == full.tokens[:40]


def test_a_row_has_the_same_bits_among_256(random_model: LoadedModel) -> None:
    model = random_model.model
    assert model.info.max_rows == 256
    places = [model.open([], 48) for _ in range(256)]
    for i, place in enumerate(places):
        prefill(model, place, [(j * 31 + i * 7) % 50_000 for j in range(40 + i % 3)])
    alone = {i: model.score([ScoreRequest(places[i], [i])])[0].row(ROOT).copy() for i in (0, 100, 255)}
    for count in (17, 64, 101, 256):
        scores = model.score([ScoreRequest(place, [i]) for i, place in enumerate(places[:count])])
        assert all((scores[i].row(ROOT) == row).all() for i, row in alone.items() if i < count)
    for place in places:
        place.close()


def test_a_prompt_reads_the_same_in_one_forward_and_in_small_ones(random_model: LoadedModel) -> None:
    """Long forwards round differently: cuBLAS, and attention in blocks. Beside it a row that decodes."""
    checkpoint = RandomCheckpoint("qwen-0.5b")
    long = load_model(checkpoint, TorchOptions(device="cuda", context_length=2048, kv_tokens=16384))
    assert long.info.max_rows > 1000
    tokens = [(i * 7919) % 50_000 for i in range(1000)]
    rows = []
    for model in (random_model.model, long):
        place, beside = model.open([], 1200), model.open([], 100)
        prefill(model, beside, tokens[:50])
        if model is long:
            scores = model.score([ScoreRequest(place, tokens), ScoreRequest(beside, [9])])
        else:
            prefill(model, place, tokens[:-1])
            scores = model.score([ScoreRequest(place, tokens[-1:]), ScoreRequest(beside, [9])])
        rows.append(np.stack([score.row(ROOT).copy() for score in scores]))
        for sequence in (place, beside):
            sequence.close()
    exact, own = rows
    assert np.linalg.norm(own - exact) / np.linalg.norm(exact) < 0.05  # what bf16 loses on the way


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_token_with_nan_fails_its_own_stream(dtype: str, tmp_path: Path) -> None:
    folder = nan_model.save(tmp_path)
    model = cuda_models.load_on_gpu(folder, dtype=dtype, kv_tokens=2048, exact=True)
    nan_model.assert_poison_stays_in_its_streams(model, folder)


def test_a_model_that_does_not_fit_is_refused_with_the_plan() -> None:
    free, _ = torch.cuda.mem_get_info()
    tokens = free // (2 * 80 * 8 * 128 * 2) + 1
    with pytest.raises(CapacityError, match=r"weights .* GB, keys and values of .* GB, graphs .* were free"):
        load_model(RandomCheckpoint("llama-70b"), TorchOptions(device="cuda", kv_tokens=tokens))
