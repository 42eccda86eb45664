"""NativeOps: the decoder's steps through the compiled CPU kernels. Batch-invariant; activations are float32, or 8-bit
codes where a weight is quantised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from slipstream.backends.torch.batch import Batch
from slipstream.backends.torch.coded_cache import is_coded
from slipstream.backends.torch.cpu.weights import NativeLinear, NativePart, QuantPacker, pack_floats
from slipstream.backends.torch.ops import (
    ChainChoice,
    DraftHead,
    EagerOps,
    Features,
    Layer,
    LayerCache,
    Linear,
    Norm,
    Outputs,
    QKNorm,
    RopeTable,
    Stack,
    StackCache,
    Weight,
    parts_of,
)
from slipstream.core.noise import stream_key
from slipstream.core.protocols import Extension, Logits
from slipstream.core.sampling import Sampling
from slipstream.errors import UsageError
from slipstream.models.config import DecoderConfig
from slipstream.models.quantised import QuantisedTensor

_POINTER, _INT, _FLOAT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_double


def _all(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class _CRows(ctypes.Structure):
    """`struct rows` of kernels.c."""

    _fields_ = [("indices", _POINTER), *_all(_INT, "rows outputs sequences max_pages page_size max_keys")]


class _CAttention(ctypes.Structure):
    """`struct attention` of kernels.c."""

    _fields_ = [
        *_all(_INT, "heads kv_heads dim window"),
        *_all(_POINTER, "cosine sine q_norm k_norm k_cache v_cache"),
        *(("coded", _INT), ("eps", _FLOAT)),
    ]


class _CFeatures(ctypes.Structure):
    """`struct features` of layer.c."""

    _fields_ = [("layers", _POINTER), ("count", _INT), ("out", _POINTER)]


class _CLayer(ctypes.Structure):
    """`struct layer` of layer.c."""

    _fields_ = [
        ("attention", _CAttention),
        *_all(_POINTER, "qkv output gate_up down attention_norm mlp_norm"),
        ("eps", _FLOAT),
    ]


class _CDecoder(ctypes.Structure):
    """`struct decoder` of layer.c."""

    _fields_ = [*_all(_POINTER, "embedding head layers"), ("count", _INT), ("final_norm", _POINTER), ("eps", _FLOAT)]


class _CHead(ctypes.Structure):
    """`struct head` of layer.c."""

    _fields_ = [
        *(*_all(_POINTER, "fuse feature_gains"), ("feature_norms", _INT)),
        *_all(_POINTER, "layer embedding logits rough token_norm final_norm token_ids"),
        *_all(ctypes.c_int32, "from_norm norm_output"),
    ]


class _CChoice(ctypes.Structure):
    """`struct choice` of layer.c."""

    _fields_ = [("temperature", _DOUBLE), ("keys", _POINTER), *_all(_DOUBLE, "least chance"), ("taken", _INT)]


class NativeOps(EagerOps):
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
        library.slip_set_threads(torch.get_num_threads())
        self._room = torch.empty(0)
        self._decoders: dict[tuple[int, int], tuple[Stack, _CDecoder]] = {}
        self._layers: dict[tuple[int, int], tuple[Layer, LayerCache, _CLayer]] = {}
        self._head: tuple[DraftHead, _CHead] | None = None

    # -- weights ------------------------------------------------------------------------------------------------------

    def pack(self, weight: Weight | Sequence[Weight], bias: torch.Tensor | None = None) -> Linear:
        parts = parts_of(weight)
        bias = None if bias is None else bias.float().contiguous()
        return NativeLinear(self._packed(parts), parts[0].shape[1], bias)

    def _packed(self, parts: Sequence[Weight]) -> list[NativePart]:
        """Weights that are all floats become one part; otherwise each is a part of its own."""
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

    def forward(self, stack: Stack, batch: Batch, cache: StackCache, features: Features | None) -> Outputs:
        """In one call: for one row of a small model, calls of each step would take as long as the work."""
        logits = torch.empty(batch.num_outputs, stack.head.outputs)
        likeliest = torch.empty(batch.num_outputs, dtype=torch.int32)
        kept = ctypes.byref(_c_features(features)) if features else None
        self._call(
            self._lib.slip_forward, self._c_decoder(stack, cache), ctypes.byref(_c_rows(batch)), kept,
            logits.data_ptr(), likeliest.data_ptr(),
        )  # fmt: skip
        return Outputs(logits, likeliest)

    def lookup(self, table: Linear, tokens: torch.Tensor) -> torch.Tensor:
        ids = tokens.int()
        out = torch.empty(ids.shape[0], table.inputs)
        self._lib.slip_embed(_native(table).address, ids.data_ptr(), ids.shape[0], out.data_ptr())
        return out

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        out = torch.empty(x.shape)
        self._lib.slip_rms_norm(x.data_ptr(), norm.gain.data_ptr(), norm.eps, x.shape[0], x.shape[1], out.data_ptr())
        return out

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        out = torch.empty(x.shape[0], weight.outputs)
        self._call(self._lib.slip_linear, _native(weight).address, x.data_ptr(), x.shape[0], 0, out.data_ptr())
        return out

    def head_layer(self, head: DraftHead, token: torch.Tensor, x: torch.Tensor, batch: Batch) -> None:
        rows = ctypes.byref(_c_rows(batch))
        self._call(self._lib.slip_head_layer, self._c_head(head), rows, token.data_ptr(), x.data_ptr())

    def read_features(self, head: DraftHead, features: torch.Tensor, batch: Batch) -> torch.Tensor:
        x, features = torch.empty(batch.num_rows, head.fuse.outputs), features.contiguous()
        rows = ctypes.byref(_c_rows(batch))
        self._call(self._lib.slip_read_features, self._c_head(head), rows, features.data_ptr(), x.data_ptr())
        return x

    def draft_chains(
        self, head: DraftHead, features: torch.Tensor, batch: Batch, choices: Sequence[ChainChoice]
    ) -> list[Extension]:
        """In one call."""
        steps, chains = max(choice.steps for choice in choices), len(choices)
        keys = [(ctypes.c_uint64 * steps)(*choice.keys) for choice in choices]
        c_choices = (_CChoice * chains)()
        for at, (choice, own) in enumerate(zip(choices, keys, strict=True)):
            c_choices[at] = _CChoice(choice.temperature, ctypes.addressof(own), choice.least_chance, 1.0, 0)
        tokens, chances = (ctypes.c_int32 * (steps * chains))(), (ctypes.c_float * (steps * chains))()
        features = features.contiguous()
        self._call(
            self._lib.slip_draft_chains, self._c_head(head), ctypes.byref(_c_rows(batch)), steps, c_choices,
            features.data_ptr(), tokens, chances,
        )  # fmt: skip
        ends = [chains * min(own.taken, choice.steps) for own, choice in zip(c_choices, choices, strict=True)]
        return [Extension(tokens[at:end:chains], chances[at:end:chains]) for at, end in enumerate(ends)]

    def chosen(self, logits: Logits, sampling: Sampling, position: int) -> int | None:
        if sampling.narrows or sampling.changes_logits:
            return None
        key = 0 if sampling.is_greedy else stream_key(sampling.seed, position)
        return int(self._lib.slip_choose(logits.ctypes.data, len(logits), sampling.temperature, key))

    # -- what C reads -------------------------------------------------------------------------------------------------

    def _call(self, function: Callable[..., int], *arguments: object) -> None:
        """Calls a function with scratch memory, again if it needs more: it then did nothing but return how much."""
        while needed := function(*arguments, self._room.data_ptr(), self._room.shape[0]):
            self._room = torch.empty(needed * 5 // 4)

    def _c_decoder(self, stack: Stack, cache: StackCache) -> int:
        """The C view of a decoder and its cache, made once."""
        key = (id(stack), cache.keys.data_ptr())
        if key not in self._decoders:
            views = [
                self._c_layer(layer, stack.rope, stack.config, cache.of(i)) for i, layer in enumerate(stack.layers)
            ]
            layers, norm = (ctypes.c_void_p * len(views))(*views), stack.final_norm
            view = _CDecoder(
                _native(stack.embedding).address, _native(stack.head).address, ctypes.addressof(layers), len(views),
                norm.gain.data_ptr(), norm.eps,
            )  # fmt: skip
            view.kept = layers  # the address is valid while this lives
            self._decoders[key] = (stack, view)
        return ctypes.addressof(self._decoders[key][1])

    def _c_layer(self, layer: Layer, rope: RopeTable, config: DecoderConfig, cache: LayerCache) -> int:
        """The C view of a layer and its cache, made once. An early-exit draft has it with another cache."""
        key = (id(layer), cache.keys.data_ptr())
        if key not in self._layers:
            linears = (_native(part).address for part in (layer.qkv, layer.output, layer.gate_up, layer.down))
            view = _CLayer(
                _c_attention(config, rope, layer.qk_norm, cache), *linears,
                layer.attention_norm.gain.data_ptr(), layer.mlp_norm.gain.data_ptr(), config.norm_eps,
            )  # fmt: skip
            self._layers[key] = (layer, cache, view)
        return ctypes.addressof(self._layers[key][2])

    def _c_head(self, head: DraftHead) -> int:
        """The C view of a draft head, made once."""
        if self._head is None or self._head[0] is not head:
            config, gains = head.config, torch.cat([norm.gain for norm in head.feature_norms] or [torch.empty(0)])
            rough = _native(head.logits).rough(self._packer)
            view = _CHead(
                _native(head.fuse).address, gains.data_ptr(), len(head.feature_norms),
                self._c_layer(head.layer, head.rope, config.layer, head.cache), _native(head.embedding).address,
                _native(head.logits).address, rough.address if rough else None, head.token_norm.gain.data_ptr(),
                head.final_norm.gain.data_ptr(), head.token_ids.data_ptr(), config.norm_before_residual,
                config.norm_output,
            )  # fmt: skip
            view.kept = gains, rough  # their addresses are valid while these live
            self._head = (head, view)
        return ctypes.addressof(self._head[1])


def _native(weight: Linear) -> NativeLinear:
    assert isinstance(weight, NativeLinear)
    return weight


def _c_features(features: Features) -> _CFeatures:
    layers = (ctypes.c_int64 * len(features.layers))(*features.layers)
    view = _CFeatures(ctypes.addressof(layers), len(layers), features.out.data_ptr())
    view.kept = layers  # the address is valid while this lives
    return view


def _c_rows(batch: Batch) -> _CRows:
    return _CRows(
        batch.indices.data_ptr(), batch.num_rows, batch.num_outputs, batch.num_sequences, batch.max_pages,
        batch.page_size, batch.max_keys,
    )  # fmt: skip


def _c_attention(config: DecoderConfig, rope: RopeTable, norm: QKNorm | None, cache: LayerCache) -> _CAttention:
    norms = (norm.query.data_ptr(), norm.key.data_ptr()) if norm else (None, None)
    return _CAttention(
        config.num_heads, config.num_kv_heads, config.head_dim, config.sliding_window or 0,
        rope.cosine.data_ptr(), rope.sine.data_ptr(), *norms,
        cache.keys.data_ptr(), cache.values.data_ptr(), is_coded(cache.keys), config.norm_eps,
    )  # fmt: skip
