"""TorchModel: a decoder with its KV pool, as the core's Model."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from slipstream.backends.torch.batch import build_batch
from slipstream.backends.torch.cpu.library import kernels
from slipstream.backends.torch.cpu.ops import NativeOps
from slipstream.backends.torch.decoder import Decoder, load_decoder
from slipstream.backends.torch.kv_pool import PAGE_SIZE, KVPool, PooledSequence
from slipstream.backends.torch.ops import Ops
from slipstream.backends.torch.reference import ReferenceOps
from slipstream.core.protocols import ModelInfo, ScoreRequest, Scores
from slipstream.errors import ContextFullError, UsageError
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.config import DecoderConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MAX_ROWS = 512
_DEFAULT_STREAMS = 32
_TOKENS_A_STREAM = 1024


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """How a model is put on a device. None and `auto` are chosen by what the machine has."""

    device: str = "auto"  # auto, cpu, cuda, cuda:1 …
    dtype: str = "auto"  # fp32, bf16, fp16; auto: fp32 on the CPU, bf16 on a GPU
    context_length: int | None = None  # at most the model's own
    kv_tokens: int | None = None  # tokens of all streams together that the cache holds
    exact: bool = False  # bit-identical logits in any company, where the kernels don't give that anyway
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r} is unknown; expected auto, {', '.join(DTYPES)}")
        for name in ("context_length", "kv_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")


class TorchScores:
    """Logits of one request. Rows: ROOT first, then the nodes."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits  # [nodes + 1, vocab] float32
        self._best: list[int] | None = None

    def row(self, node: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self._logits[node + 1].cpu().numpy()
        return row

    def argmax(self, node: int) -> int:
        if self._logits.device.type == "cpu":  # numpy finds one row's maximum faster than torch finds all
            return int(self.row(node).argmax())
        if self._best is None:
            self._best = self._logits.argmax(-1).tolist()
        return self._best[node + 1]


class TorchModel:
    def __init__(
        self, name: str, decoder: Decoder, pool: KVPool, dtype: str, context_length: int, device: torch.device
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._device = device
        self._info = ModelInfo(
            name=name,
            backend=f"torch/{decoder.ops.name}",
            device=str(device),
            dtype=dtype,
            vocab_size=decoder.config.vocab_size,
            context_length=context_length,
            weight_bytes=decoder.weight_bytes(),
            batch_invariant=decoder.ops.batch_invariant,
            max_rows=MAX_ROWS,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def num_layers(self) -> int:
        return self._decoder.config.num_layers

    @property
    def num_open(self) -> int:
        """Streams that have a place in the cache now."""
        return self._pool.num_open

    def open(self, tokens: Seq[int] = (), reserve: int = 0) -> PooledSequence:
        return self._pool.open(list(tokens), reserve)

    def can_open(self, reserve: int) -> bool:
        return self._pool.can_open(reserve)

    def forget_prompts(self) -> None:
        self._pool.forget_closed()

    @torch.inference_mode()
    def score(self, requests: Seq[ScoreRequest]) -> list[Scores]:
        rows = sum(request.num_rows for request in requests)
        if rows > MAX_ROWS or any(not request.pending for request in requests):
            raise ValueError(f"a forward takes 1 to {MAX_ROWS} rows and a pending token each; got {rows} rows")
        for request in requests:
            self._check(request)
        parts = []
        for request in requests:
            sequence = request.sequence
            assert isinstance(sequence, PooledSequence)
            sequence.prepare(request.pending, request.tree.tokens)
            parts.append((sequence, request.pending, request.tree))
        logits = self._decoder.forward(build_batch(parts, PAGE_SIZE, self._device), self._pool)
        sizes = [len(request.tree) + 1 for request in requests]
        return [TorchScores(part) for part in torch.split(logits, sizes)]

    def _check(self, request: ScoreRequest) -> None:
        """The kernels trust ids and positions: what is out of range would read foreign memory."""
        tokens, vocab = [*request.pending, *request.tree.tokens], self._info.vocab_size
        if min(tokens) < 0 or max(tokens) >= vocab:
            raise ValueError(f"token ids are 0 to {vocab - 1}; got {min(tokens)} to {max(tokens)}")
        length = request.sequence.length + len(request.pending)
        if length + len(request.tree) > self._info.context_length:
            length += max(request.tree.depths(), default=0)
            if length > self._info.context_length:
                raise ContextFullError(f"{length} tokens do not fit a context of {self._info.context_length}")

    def first_layers(self, count: int) -> TorchModel:
        """A model of the same weights cut after `count` layers, with a cache of its own."""
        if not 1 <= count < self.num_layers:
            raise UsageError(f"an exit after {count} layers; {self._info.name} has {self.num_layers}, expected fewer")
        decoder = self._decoder.first_layers(count)
        pool = KVPool(decoder.config, self._pool.num_pages * PAGE_SIZE, self._pool.keys.dtype, self._device)
        name = f"{self._info.name}[:{count}]"
        return TorchModel(name, decoder, pool, self._info.dtype, self._info.context_length, self._device)


def load_model(
    checkpoint: Checkpoint, options: TorchOptions | None = None, report: Callable[[float], None] = lambda share: None
) -> TorchModel:
    """Puts a checkpoint on a device. `report` is told the share that is loaded."""
    options = options or TorchOptions()
    device = _pick_device(options.device)
    dtype = options.dtype if options.dtype != "auto" else ("fp32" if device.type == "cpu" else "bf16")
    if options.threads:
        torch.set_num_threads(options.threads)
    config = checkpoint.config
    context = min(options.context_length or config.context_length, config.context_length)
    with torch.inference_mode():
        ops = _pick_ops(device, DTYPES[dtype], options.exact)
        decoder = load_decoder(checkpoint, ops, device, context, report)
    tokens = options.kv_tokens or _default_kv_tokens(config, context)
    pool = KVPool(config, tokens, ops.activation_dtype, device)
    return TorchModel(checkpoint.name, decoder, pool, dtype, context, device)


def _pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device {name!r} is unknown; expected auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported; expected auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: this torch ({torch.__version__}) sees no CUDA device; use --device cpu")
    return device


def _pick_ops(device: torch.device, dtype: torch.dtype, exact: bool) -> Ops:
    library = kernels() if device.type == "cpu" else None
    return NativeOps(library, dtype) if library else ReferenceOps(dtype, row_by_row=exact)


def _default_kv_tokens(config: DecoderConfig, context: int) -> int:
    """One full context and a usual load of streams, within a quarter of the memory that is free."""
    wanted = max(context, _DEFAULT_STREAMS * _TOKENS_A_STREAM) + PAGE_SIZE * _DEFAULT_STREAMS
    token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    affordable = _available_bytes() // 4 // token_bytes
    return max(min(wanted, affordable), 2 * PAGE_SIZE)


def _available_bytes() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return 8 << 30
