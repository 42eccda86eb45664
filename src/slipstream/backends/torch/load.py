"""From a checkpoint to a TorchModel on a device."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from slipstream.backends.torch.batch import Batch
from slipstream.backends.torch.coded_cache import TOGETHER
from slipstream.backends.torch.cpu.library import FALLBACK_COST, kernels
from slipstream.backends.torch.cpu.ops import NativeOps
from slipstream.backends.torch.decoder import Decoder, load_decoder
from slipstream.backends.torch.eager import EagerRunner
from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool
from slipstream.backends.torch.memory import CacheNeed, explained, fp8_bytes, plan_memory, weight_bytes
from slipstream.backends.torch.model import Cuts, Runner, TorchModel
from slipstream.backends.torch.ops import LayerCache, Ops
from slipstream.backends.torch.options import DTYPES, TorchOptions, keeps_codes, pick_device, pick_dtype
from slipstream.backends.torch.reference import ReferenceOps
from slipstream.core.protocols import DEFAULT_PROMPT_ROWS, ModelInfo
from slipstream.core.turn import TURN
from slipstream.errors import UsageError
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.config import DecoderConfig
from slipstream.models.tensors import EMBEDDING, expected_tensors

if TYPE_CHECKING:
    from slipstream.backends.torch.cuda.batch import DeviceRows
    from slipstream.backends.torch.cuda.ops import TritonOps

log = logging.getLogger("slipstream")

Report = Callable[[float], None]
_CODED_ON_GPU = (64, 128, 256)  # head_dim: both halves are powers of two, and consist of whole groups
_REPEATS = 9  # runs of a step whose time is measured
_READING = 0.7  # share of the loading time, if graphs are captured afterwards


@dataclass(frozen=True, slots=True)
class _Setup:
    """How a model is loaded. Models that are cut from it share all but the name."""

    name: str
    device: torch.device
    dtype: str
    context: int  # tokens of a stream, at most
    kv_tokens: int  # of all streams together
    kv_dtype: torch.dtype  # int8: codes
    max_rows: int  # of a forward
    prompt_rows: int  # of one prompt in a forward: as many as keep the device busy

    @property
    def num_positions(self) -> int:
        """How many positions a token can have: each needs a cell of the cache."""
        return min(self.context, -(-self.kv_tokens // PAGE_SIZE) * PAGE_SIZE)


def load_model(
    checkpoint: Checkpoint, options: TorchOptions | None = None, report: Report = lambda share: None
) -> TorchModel:
    """Loads a checkpoint on a device. `report` gets the share that is loaded. Raises CapacityError, UsageError."""
    options = options or TorchOptions()
    device = pick_device(options.device)
    dtype = pick_dtype(options.dtype, device)
    if options.threads:
        torch.set_num_threads(options.threads)
    config = checkpoint.config
    context = config.usable_context(options.context_length)
    graphed = device.type == "cuda" and _has_kernels(config)
    item_bytes, codes = DTYPES[dtype].itemsize, _keeps_codes(checkpoint, options, device, graphed)
    fp8 = graphed and _keeps_fp8(checkpoint, options, device)
    weights = fp8_bytes(checkpoint, item_bytes) if fp8 else weight_bytes(checkpoint, item_bytes, codes, device)
    kv_dtype = _kv_dtype(options, config, device, DTYPES[dtype])
    cache = CacheNeed(kv_dtype, options.kv_tokens)
    plan = plan_memory(checkpoint, weights, 4 if codes else item_bytes, context, cache, device)
    rows = (plan.max_rows, plan.max_rows if device.type == "cuda" else DEFAULT_PROMPT_ROWS)
    stored = "int8" if codes else "fp8" if fp8 else dtype
    setup = _Setup(checkpoint.name, device, stored, context, plan.kv_tokens, kv_dtype, *rows)
    with explained(plan, device), torch.inference_mode(), _no_rounds_on(device):
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if graphed:
            return _load_graphed(checkpoint, setup, options, report)
        ops = _pick_ops(device, DTYPES[dtype], options.exact, codes)
        decoder = load_decoder(checkpoint, ops, device, setup.num_positions, report)
        pool = KVPool(config, plan.kv_tokens, kv_dtype, device)

        def runner(decoder: Decoder[Batch], pool: KVPool) -> Runner:
            return EagerRunner(decoder, pool, device)

        return _model(setup, decoder, pool, runner)


def _no_rounds_on(device: torch.device) -> AbstractContextManager[None]:
    """A CUDA graph can't be captured while another thread uses the device. The CPU serves both."""
    return TURN.taken() if device.type == "cuda" else nullcontext()


def _keeps_codes(checkpoint: Checkpoint, options: TorchOptions, device: torch.device, graphed: bool) -> bool:
    """Whether there are quantised weights, and kernels that multiply with their codes."""
    if not keeps_codes(options, device):
        return False
    if not any(checkpoint.quant_format(name) for name in expected_tensors(checkpoint.config)):
        return False
    return kernels() is not None if device.type == "cpu" else graphed and _can_compile()


def _keeps_fp8(checkpoint: Checkpoint, options: TorchOptions, device: torch.device) -> bool:
    """Whether there are weights in FP8 with a scale for each output, in sizes that the kernels take."""
    from slipstream.backends.torch.cuda.kernels.fp8 import MIN_TILE

    config = checkpoint.config
    sizes = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    if not keeps_codes(options, device) or any(size % MIN_TILE for size in sizes):
        return False
    return any(checkpoint.fp8(name) for name in expected_tensors(config) if name != EMBEDDING)


def _can_compile() -> bool:
    from slipstream.backends.torch.cuda.kernels.nvrtc import NvrtcError, nvrtc_version

    try:
        nvrtc_version()
    except NvrtcError as error:
        log.warning(
            "%s. Quantised weights are unpacked to 16 bits until then, which takes 3 to 4 times the memory", error
        )
        return False
    return True


def _kv_dtype(options: TorchOptions, config: DecoderConfig, device: torch.device, floats: torch.dtype) -> torch.dtype:
    if options.kv_type == "auto":
        return torch.float32 if device.type == "cpu" else floats
    fits = config.head_dim in _CODED_ON_GPU if device.type == "cuda" else config.head_dim % TOGETHER == 0
    if not fits:
        sizes = " or ".join(map(str, _CODED_ON_GPU)) if device.type == "cuda" else f"a multiple of {TOGETHER}"
        raise UsageError(
            f"kv_type {options.kv_type} needs heads of {sizes} numbers on {device.type}, and this model has "
            f"{config.head_dim}: leave it at auto"
        )
    return torch.int8


def _pick_ops(device: torch.device, dtype: torch.dtype, exact: bool, codes: bool) -> Ops[Batch]:
    library = kernels() if device.type == "cpu" else None
    return NativeOps(library, dtype, codes) if library else ReferenceOps(dtype, row_by_row=exact)


def _has_kernels(config: DecoderConfig) -> bool:
    """Whether the GPU kernels can run this model; otherwise plain torch runs it, slowly."""
    if importlib.util.find_spec("triton") is None:
        log.warning("Triton is not installed (pip install triton): the GPU uses plain torch, %s", FALLBACK_COST)
        return False
    sizes = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    if any(size % 16 for size in sizes) or config.head_dim % 2:
        log.warning("sizes %s are not multiples of 16: the GPU uses plain torch, %s", sizes, FALLBACK_COST)
        return False
    return True


def _graphed_ops(config: DecoderConfig, setup: _Setup, options: TorchOptions) -> TritonOps:
    from slipstream.backends.torch.cuda.kernels.quantised_kernels import QuantisedKernels
    from slipstream.backends.torch.cuda.ops import Fp8Ops, TritonOps
    from slipstream.backends.torch.cuda.quantised_ops import QuantisedOps

    dtype, streams = DTYPES[pick_dtype(options.dtype, setup.device)], options.kernels == "auto"
    if setup.dtype == "int8":
        return QuantisedOps(config, dtype, setup.device, options.exact, QuantisedKernels(setup.device), streams)
    return (Fp8Ops if setup.dtype == "fp8" else TritonOps)(config, dtype, setup.device, options.exact, streams)


def _load_graphed(checkpoint: Checkpoint, setup: _Setup, options: TorchOptions, report: Report) -> TorchModel:
    from slipstream.backends.torch.cuda.kernels.linear import MAX_ROWS
    from slipstream.backends.torch.cuda.runner import CudaRunner

    device = setup.device
    if options.exact:  # no more rows than have the same bits in any company
        setup = replace(setup, max_rows=MAX_ROWS, prompt_rows=MAX_ROWS)
    ops = _graphed_ops(checkpoint.config, setup, options)
    decoder = load_decoder(checkpoint, ops, device, setup.num_positions, lambda share: report(_READING * share))
    pool = KVPool(checkpoint.config, setup.kv_tokens, setup.kv_dtype, device)
    _choose_kernels(decoder, ops, pool, device)

    def runner(decoder: Decoder[DeviceRows], pool: KVPool) -> Runner:
        graphs = CudaRunner(decoder, pool, setup.max_rows, device, rounds_large_heads=keeps_codes(options, device))
        graphs.warm_up(lambda share: report(_READING + (1 - _READING) * share))
        return graphs

    return _model(setup, decoder, pool, runner)


def _choose_kernels(decoder: Decoder[DeviceRows], ops: TritonOps, pool: KVPool, device: torch.device) -> None:
    """Chooses by measurement, once on a machine."""
    from slipstream.backends.torch.cuda.kernels.tilings import WIDE

    config, measure = decoder.config, partial(_measure_tilings, decoder, ops, pool, device)
    first, norms = decoder.layers[0], "with" if config.qk_norm else "no"
    sizes = f"{first.qkv.outputs}x{config.hidden_size}x{config.intermediate_size} {first.gate_up.data.dtype}"
    model = f"{config.num_layers} layers of {sizes}, {norms} norms of heads, cache {pool.keys.dtype}"
    ops.tilings.choose_streamed(model, partial(measure, [1]), partial(_seconds_of_step, decoder, pool, device))
    measure(WIDE)  # as many rows as streams and drafts have


def _seconds_of_step(decoder: Decoder[DeviceRows], pool: KVPool, device: torch.device) -> float:
    """Seconds of a forward of one row; infinite if the GPU can't run its kernels."""
    from slipstream.backends.torch.cuda.bucket import TargetBucket
    from slipstream.backends.torch.cuda.device_time import least_seconds
    from slipstream.backends.torch.cuda.kernels.nvrtc import NvrtcError

    bucket = TargetBucket(decoder, pool, 1, device)
    try:
        bucket.capture()
    except NvrtcError as error:
        log.warning("kernels in CUDA C++ don't run on this GPU, so Triton's are used: %s", error)
        return float("inf")
    return least_seconds(bucket.run, _REPEATS)


def _measure_tilings(
    decoder: Decoder[DeviceRows], ops: TritonOps, pool: KVPool, device: torch.device, counts: Iterable[int]
) -> None:
    """Finds the best tilings for products of each of these numbers of rows."""
    from slipstream.backends.torch.cuda.bucket import make_batch
    from slipstream.backends.torch.cuda.ops import qkv_kind

    layers, cache = decoder.layers, LayerCache(pool.keys[0], pool.values[0])
    products = [
        (qkv_kind(layers[0].qk_norm, cache), [layer.qkv for layer in layers]),
        ("add", [layer.output for layer in layers]),
        ("gate", [layer.gate_up for layer in layers]),
        ("add", [layer.down for layer in layers]),
        ("logits", [decoder.head]),
    ]
    for rows in counts:
        batch = make_batch(decoder.config, pool, rows, len(decoder.rope.cosine), device)
        batch.fill([])  # they go to the spare page
        ops.measure(products, batch, decoder.rope, cache)


def _model(
    setup: _Setup, decoder: Decoder[Any], pool: KVPool, make_runner: Callable[[Decoder[Any], KVPool], Runner]
) -> TorchModel:
    runner = make_runner(decoder, pool)
    info = ModelInfo(
        name=setup.name,
        backend=f"torch/{decoder.ops.name}",
        device=str(setup.device),
        dtype=setup.dtype,
        vocab_size=decoder.head.outputs,
        context_length=min(setup.context, pool.longest_stream),
        weight_bytes=decoder.weight_bytes(),
        batch_invariant=decoder.ops.batch_invariant,
        max_rows=runner.max_rows or setup.max_rows,
        extends=runner.extends,
        runs_ahead=runner.runs_ahead,
        num_readable=decoder.embedding.outputs,
        decoding_rows=runner.decoding_rows,
        prompt_rows=setup.prompt_rows,
    )

    def first_layers(count: int) -> TorchModel:
        first = decoder.first_layers(count)
        with _no_rounds_on(setup.device):
            own = KVPool(first.config, pool.num_pages * PAGE_SIZE, pool.keys.dtype, setup.device)
            return _model(replace(setup, name=f"{setup.name}[:{count}]"), first, own, make_runner)

    def first_tokens(count: int) -> TorchModel:
        smaller = decoder.first_tokens(count)
        with _no_rounds_on(setup.device):
            return _model(replace(setup, name=f"{setup.name} (head {count})"), smaller, pool, make_runner)

    cuts = Cuts(first_layers, first_tokens)
    return TorchModel(info, pool, runner, decoder.config.num_layers, cuts, decoder.nonfinite_weight)
