"""NativeOps: the decoder's steps through the compiled CPU kernels. Batch-invariant; activations are float32, or 8-bit
codes where a weight is quantised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from slipstream.backends.torch.batch import INDICES, Batch
from slipstream.backends.torch.coded_cache import is_coded
from slipstream.backends.torch.cpu.weights import BLOCK, NativeLinear, NativePart, QuantPacker, pack_floats
from slipstream.backends.torch.ops import (
    ChainChoice,
    ChainHead,
    DraftLayer,
    Features,
    Hidden,
    Layer,
    LayerCache,
    LayerStep,
    Linear,
    Norm,
    QKNorm,
    RopeTable,
    SmallSteps,
    Stack,
    StackCache,
    Weight,
)
from slipstream.core.noise import stream_key
from slipstream.core.protocols import Logits
from slipstream.core.sampling import Sampling
from slipstream.errors import UsageError
from slipstream.models.config import DecoderConfig
from slipstream.models.quantised import QuantisedTensor


class _CBatch(ctypes.Structure):
    """`struct batch` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in INDICES),
        *((name, ctypes.c_int64) for name in ("rows", "max_pages", "page_size")),
    ]


class _CAttention(ctypes.Structure):
    """`struct attention` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "dim", "window")),
        *((name, ctypes.c_void_p) for name in ("cosine", "sine", "q_norm", "k_norm", "k_cache", "v_cache")),
        ("coded", ctypes.c_int64),
        ("eps", ctypes.c_float),
    ]


class _CFeatures(ctypes.Structure):
    """`struct features` of layer.c."""

    _fields_ = [("layers", ctypes.c_void_p), ("count", ctypes.c_int64), ("out", ctypes.c_void_p)]


class _CLayer(ctypes.Structure):
    """`struct layer` of layer.c."""

    _fields_ = [
        ("attention", _CAttention),
        *((name, ctypes.c_void_p) for name in ("qkv", "output", "gate_up", "down", "attention_norm", "mlp_norm")),
        ("eps", ctypes.c_float),
    ]


class _CHead(ctypes.Structure):
    """`struct head` of layer.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("fuse", "feature_gains")),
        ("feature_norms", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("layer", "embedding", "logits")),
        *((name, ctypes.c_void_p) for name in ("token_norm", "final_norm", "token_ids")),
        *((name, ctypes.c_int32) for name in ("from_norm", "norm_output")),
    ]


class _CChoice(ctypes.Structure):
    """`struct choice` of layer.c."""

    _fields_ = [
        ("temperature", ctypes.c_double),
        ("keys", ctypes.c_void_p),
        *((name, ctypes.c_double) for name in ("least", "chance")),
    ]


class NativeOps(SmallSteps[Batch]):
    """With `takes_quantised`, weights that a file has as codes stay codes, and floats of 16 bits stay that."""

    name = "native"
    drafts_chains = True
    activation_dtype = torch.float32
    batch_invariant = True

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype, takes_quantised: bool = False) -> None:
        if dtype == torch.float16 and not library.slip_has_f16():
            raise UsageError("dtype fp16: the C compiler has no half-precision type here; use fp32 or bf16")
        self.takes_quantised = takes_quantised
        self._lib = library
        self._dtype = dtype
        self._packer = QuantPacker(library.slip_quant_tile(), bool(library.slip_unsigned_codes()))
        self._threads = torch.get_num_threads()
        library.slip_set_threads(self._threads)
        self._scratch = torch.empty(0)
        self._batch: tuple[Batch, _CBatch] | None = None
        self._stacks: dict[tuple[int, int], tuple[Stack, ctypes.Array[ctypes.c_void_p]]] = {}
        self._layers: dict[tuple[int, int], tuple[Layer, LayerCache, _CLayer]] = {}
        self._head: tuple[ChainHead, _CHead] | None = None

    # -- weights ------------------------------------------------------------------------------------------------------

    def pack(self, weight: Weight | Sequence[Weight], bias: torch.Tensor | None = None) -> Linear:
        parts = [weight] if isinstance(weight, Weight) else weight
        bias = None if bias is None else bias.float().contiguous()
        return NativeLinear(self._packed(parts), parts[0].shape[1], bias)

    def _packed(self, parts: Sequence[Weight]) -> list[NativePart]:
        """Neighbours that are floats become one part, as they always were."""
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        if len(tensors) == len(parts):
            return [self._pack_floats(tensors[0] if len(tensors) == 1 else torch.cat(tensors))]
        return [self._pack_part(part) for part in parts]

    def _pack_part(self, part: Weight) -> NativePart:
        if isinstance(part, torch.Tensor):
            return self._pack_floats(part)
        assert isinstance(part, QuantisedTensor)
        return self._packer.pack(part)

    def _pack_floats(self, weight: torch.Tensor) -> NativePart:
        keeps = self.takes_quantised and weight.dtype == torch.bfloat16
        return pack_floats(weight, weight.dtype if keeps else self._dtype)

    def first_outputs(self, weight: Linear, count: int) -> Linear:
        return _native(weight).first_outputs(count)

    # -- steps --------------------------------------------------------------------------------------------------------

    def lookup(self, table: Linear, tokens: torch.Tensor) -> torch.Tensor:
        rows = tokens.shape[0]
        out = torch.empty(rows, table.inputs)
        self._lib.slip_embed(_native(table).address, tokens.data_ptr(), rows, out.data_ptr())
        return out

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        out = torch.empty(x.shape)
        self._lib.slip_rms_norm(x.data_ptr(), norm.gain.data_ptr(), norm.eps, x.shape[0], x.shape[1], out.data_ptr())
        return out

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        out = torch.empty(x.shape[0], weight.outputs)
        self._linear(x, weight, 0, out)
        return out

    def project(self, hidden: Hidden, norm: Norm, weight: Linear) -> torch.Tensor:
        """Norm and product in one call: after each the host's caches are cold, and little steps take long."""
        x = hidden.x
        out = torch.empty(x.shape[0], weight.outputs)
        room = self._room(self._lib.slip_project_floats(x.shape[0], weight.inputs))
        self._lib.slip_project(
            _native(weight).address, norm.gain.data_ptr(), norm.eps, x.data_ptr(), x.shape[0], out.data_ptr(), room
        )
        return out

    def linear_add(self, x: torch.Tensor, weight: Linear, residual: torch.Tensor) -> None:
        self._linear(x, weight, 1, residual)

    def _linear(self, x: torch.Tensor, weight: Linear, add: int, out: torch.Tensor) -> None:
        rows = x.shape[0]
        room = self._room(self._lib.slip_acts_floats(rows, weight.inputs))
        self._lib.slip_linear(_native(weight).address, x.data_ptr(), rows, add, out.data_ptr(), room)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, width = gate_up.shape
        out = torch.empty(rows, width // 2)
        self._lib.slip_swiglu(gate_up.data_ptr(), rows, width // 2, out.data_ptr())
        return out

    def rope_write(
        self,
        qkv: torch.Tensor,
        batch: Batch,
        config: DecoderConfig,
        rope: RopeTable,
        norm: QKNorm | None,
        cache: LayerCache,
    ) -> None:
        attention = _c_attention(config, rope, norm, cache)
        self._lib.slip_rope_write(ctypes.addressof(attention), self._c_batch(batch), qkv.data_ptr())

    def attend(self, qkv: torch.Tensor, batch: Batch, config: DecoderConfig, cache: LayerCache) -> torch.Tensor:
        out = torch.empty(len(qkv), config.num_heads * config.head_dim)
        attention, max_keys = _c_attention(config, None, None, cache), _whole_blocks(batch.max_keys)
        room = self._room(self._lib.slip_attend_floats(max_keys))
        self._lib.slip_attend(
            ctypes.addressof(attention), self._c_batch(batch), qkv.data_ptr(), max_keys, room, out.data_ptr()
        )
        return out

    def layers(self, hidden: Hidden, stack: Stack, batch: Batch, cache: StackCache, features: Features | None) -> None:
        """All of them in one call: for one row of a small model, calls would take as long as the work."""
        layers, max_keys = self._c_stack(stack, cache), _whole_blocks(batch.max_keys)
        room = self._room(self._lib.slip_layer_floats(layers[0], batch.num_rows, max_keys))
        kept = ctypes.byref(_c_features(features)) if features else None
        x, c_batch = hidden.x.data_ptr(), self._c_batch(batch)
        self._lib.slip_layers(layers, len(layers), c_batch, x, max_keys, room, kept)

    def head_layer(self, token: torch.Tensor, x: torch.Tensor, layer: DraftLayer, step: LayerStep[Batch]) -> None:
        max_keys = _whole_blocks(step.batch.max_keys)
        c_layer = self._c_layer(layer.layer, step.rope, step.config, step.cache)
        room = self._room(self._lib.slip_layer_floats(c_layer, step.batch.num_rows, max_keys))
        gain, batch = layer.token_norm.gain.data_ptr(), self._c_batch(step.batch)
        self._lib.slip_head_layer(c_layer, gain, layer.from_norm, batch, token.data_ptr(), x.data_ptr(), max_keys, room)

    def read_features(self, head: ChainHead, features: torch.Tensor, batch: Batch) -> torch.Tensor:
        rows, max_keys, c_head = batch.num_rows, _whole_blocks(batch.max_keys), self._c_head(head)
        x, c_batch, features = torch.empty(rows, head.fuse.outputs), self._c_batch(batch), features.contiguous()
        room = self._room(self._lib.slip_read_floats(c_head, rows, max_keys))
        addresses = (tensor.data_ptr() for tensor in (batch.tokens, features, x))
        self._lib.slip_read_features(c_head, c_batch, *addresses, max_keys, room)
        return x

    def draft_chains(
        self, head: ChainHead, x: torch.Tensor, batch: Batch, choices: Sequence[ChainChoice]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, steps, max_keys = len(x), len(choices[0].keys), _whole_blocks(batch.max_keys)
        c_head, of_a_step = self._c_head(head), _CBatch.from_buffer_copy(_CBatch.from_address(self._c_batch(batch)))
        of_a_step.rows = rows
        keys = torch.from_numpy(np.array([choice.keys for choice in choices], np.uint64))
        c_choices = (_CChoice * rows)()
        for at, (choice, own) in enumerate(zip(choices, keys, strict=True)):
            c_choices[at] = _CChoice(choice.temperature, own.data_ptr(), choice.least_chance, 1.0)
        tokens, chances = torch.empty(steps, rows, dtype=torch.int64), torch.empty(steps, rows)
        room = self._room(self._lib.slip_chains_floats(c_head, rows, max_keys))
        taken = self._lib.slip_draft_chains(
            c_head, ctypes.addressof(of_a_step), steps, ctypes.addressof(c_choices), x.data_ptr(), max_keys,
            tokens.data_ptr(), chances.data_ptr(), room,
        )  # fmt: skip
        return tokens[:taken], chances[:taken]

    def chosen(self, logits: Logits, sampling: Sampling, position: int) -> int | None:
        """Greedy choices are as fast on the host; noise for a whole vocabulary is not."""
        if sampling.is_greedy or sampling.narrows or sampling.changes_logits:
            return None
        key = stream_key(sampling.seed, position)
        return int(self._lib.slip_choose(logits.ctypes.data, len(logits), sampling.temperature, key))

    # -- what C reads -------------------------------------------------------------------------------------------------

    def _room(self, num_floats: int) -> int:
        """The address of scratch memory, for one call."""
        if self._scratch.shape[0] < num_floats:
            self._scratch = torch.empty(num_floats * 5 // 4)
        return self._scratch.data_ptr()

    def _c_batch(self, batch: Batch) -> int:
        """The C view of a batch, made once for all layers of a forward."""
        if self._batch is None or self._batch[0] is not batch:
            address = batch.indices.data_ptr()
            indices = (address + start * batch.indices.itemsize for start in batch.starts())
            self._batch = (batch, _CBatch(*indices, batch.num_rows, batch.max_pages, batch.page_size))
        return ctypes.addressof(self._batch[1])

    def _c_stack(self, stack: Stack, cache: StackCache) -> ctypes.Array[ctypes.c_void_p]:
        """The C views of all layers, made once."""
        key = (id(stack.layers), cache.keys.data_ptr())
        if key not in self._stacks:
            views = [
                self._c_layer(layer, stack.rope, stack.config, cache.of(i)) for i, layer in enumerate(stack.layers)
            ]
            self._stacks[key] = (stack, (ctypes.c_void_p * len(views))(*views))
        return self._stacks[key][1]

    def _c_layer(self, layer: Layer, rope: RopeTable, config: DecoderConfig, cache: LayerCache) -> int:
        """The C view of a layer and its cache, made once. A draft of the first layers has them with another cache."""
        key = (id(layer), cache.keys.data_ptr())
        if key not in self._layers:
            linears = (_native(part).address for part in (layer.qkv, layer.output, layer.gate_up, layer.down))
            view = _CLayer(
                _c_attention(config, rope, layer.qk_norm, cache), *linears,
                layer.attention_norm.gain.data_ptr(), layer.mlp_norm.gain.data_ptr(), config.norm_eps,
            )  # fmt: skip
            self._layers[key] = (layer, cache, view)
        return ctypes.addressof(self._layers[key][2])

    def _c_head(self, head: ChainHead) -> int:
        """The C view of a draft head, made once."""
        if self._head is None or self._head[0] is not head:
            own, gains = head.layer, torch.cat([norm.gain for norm in head.feature_norms] or [torch.empty(0)])
            view = _CHead(
                _native(head.fuse).address, gains.data_ptr(), len(head.feature_norms),
                self._c_layer(own.layer, head.rope, head.config, head.cache), _native(head.embedding).address,
                _native(head.logits).address, own.token_norm.gain.data_ptr(), head.final_norm.gain.data_ptr(),
                head.token_ids.data_ptr(), own.from_norm, head.norm_output,
            )  # fmt: skip
            view.kept = gains  # the address is of no use without it
            self._head = (head, view)
        return ctypes.addressof(self._head[1])


def _native(weight: Linear) -> NativeLinear:
    assert isinstance(weight, NativeLinear)
    return weight


def _c_features(features: Features) -> _CFeatures:
    layers = (ctypes.c_int64 * len(features.layers))(*features.layers)
    view = _CFeatures(ctypes.addressof(layers), len(layers), features.out.data_ptr())
    view.kept = layers  # the address is of no use without it
    return view


def _whole_blocks(keys: int) -> int:
    return -(-keys // BLOCK) * BLOCK


def _c_attention(config: DecoderConfig, rope: RopeTable | None, norm: QKNorm | None, cache: LayerCache) -> _CAttention:
    rotation = (rope.cosine.data_ptr(), rope.sine.data_ptr()) if rope else (None, None)
    norms = (norm.query.data_ptr(), norm.key.data_ptr()) if norm else (None, None)
    return _CAttention(
        config.num_heads, config.num_kv_heads, config.head_dim, config.sliding_window or 0, *rotation, *norms,
        cache.keys.data_ptr(), cache.values.data_ptr(), is_coded(cache.keys), config.norm_eps,
    )  # fmt: skip
