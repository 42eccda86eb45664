"""From a GGUF file to a LlamaCppModel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from slipstream.backends.llamacpp.context import Context, ContextFacts
from slipstream.backends.llamacpp.exactness import most_rows_that_keep_their_bits
from slipstream.backends.llamacpp.forward import ExactForward, Forward, SharedForward
from slipstream.backends.llamacpp.library import last_complaint, library, listening
from slipstream.backends.llamacpp.model import LlamaCppModel
from slipstream.backends.llamacpp.offload import find_devices, read_report, warn_of_unused_gpu
from slipstream.backends.llamacpp.options import MAX_SEQUENCES, LlamaCppOptions
from slipstream.backends.llamacpp.sequences import Sequences
from slipstream.core.protocols import ModelInfo
from slipstream.errors import CapacityError, UnsupportedModelError
from slipstream.host import free_memory, physical_cores
from slipstream.models.config import LONGEST_UNASKED_CONTEXT
from slipstream.models.gguf.file import GgufFile

log = logging.getLogger("slipstream")

Report = Callable[[float], None]

_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}  # ggml_type
_TYPE_BYTES = {"f32": 4.0, "f16": 2.0, "q4_0": 18 / 32, "q8_0": 34 / 32, "bf16": 2.0}
_FLASH = {"auto": -1, "off": 0, "on": 1}
_ROPE_SCALING = {"none": 0, "linear": 1, "yarn": 2, "longrope": 3}
_CACHE_SHARE = 0.25  # share of the free memory for keys and values: a draft model may be loaded next
_USUAL_TOKENS = 8192  # minimum tokens of the cache, over all streams, if memory allows
_MARGIN = 256  # cells for drafts under way
_EXACT_STREAMS = 8  # each has a cache of its own
_RECURRENT_SNAPSHOTS = 16  # tokens that a recurrent state can be rewound


@dataclass(frozen=True, slots=True)
class CacheTypes:
    keys: str
    values: str

    @property
    def bytes_per_value(self) -> float:
        """Of a key's and a value's element together."""
        return _TYPE_BYTES[self.keys] + _TYPE_BYTES[self.values]


@dataclass(frozen=True, slots=True)
class CachePlan:
    types: CacheTypes
    num_ids: int
    max_streams: int
    context_length: int
    cells: int  # of all streams, or of each stream if they have separate caches
    token_bytes: int
    is_asked: bool  # a requested size is not reduced to what fits

    @property
    def total_bytes(self) -> int:
        return self.cells * self.token_bytes

    @property
    def can_shrink(self) -> bool:
        return not self.is_asked and self.cells - _MARGIN > _USUAL_TOKENS

    def halved(self) -> CachePlan:
        tokens = (self.cells - _MARGIN) // 2
        return replace(self, context_length=min(self.context_length, tokens), cells=tokens + _MARGIN)


def load_model(
    file: GgufFile, options: LlamaCppOptions | None = None, report: Report = lambda share: None
) -> LlamaCppModel:
    """Loads a GGUF file into llama.cpp. `report` gets the share that is loaded.

    Raises UsageError, CapacityError, MissingDependencyError, and UnsupportedModelError if llama.cpp refuses it.
    """
    options = options or LlamaCppOptions()
    lib = library()
    gpu_layers = options.gpu_layers(file.num_layers, bool(lib.llama_supports_gpu_offload()) and bool(find_devices()))
    with listening() as heard:
        model = _load_weights(lib, file, options, gpu_layers, report)
        with _freed_on_failure(lib, model):
            context, plan = _make_context(lib, model, file, options, gpu_layers)
    offload = read_report(heard, file.num_layers)
    log.info("%s: %s", file.name, offload.text())
    warn_of_unused_gpu(offload, gpu_layers)
    sequences = Sequences(context, plan.max_streams)
    forward: Forward = SharedForward(sequences)
    if options.exact:
        forward = ExactForward(sequences, 1 if gpu_layers else most_rows_that_keep_their_bits(context))
    info = ModelInfo(
        name=file.name,
        backend="llamacpp",
        device=offload.device,
        dtype=file.quantisation,
        vocab_size=context.facts.vocab_size,
        context_length=plan.context_length,
        weight_bytes=lib.llama_model_size(model),
        batch_invariant=options.exact,
        max_rows=options.max_rows,
    )
    return LlamaCppModel(info, context, sequences, forward)


def _load_weights(lib: Any, file: GgufFile, options: LlamaCppOptions, gpu_layers: int, report: Report) -> Any:
    params = lib.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    params.use_extra_bufts = options.repack

    def progress(share: float, _: object) -> bool:
        report(share)
        return True

    params.progress_callback = callback = lib.llama_progress_callback(progress)
    model = lib.llama_model_load_from_file(str(file.path).encode(), params)
    del callback  # it had to live until here
    if not model:
        raise UnsupportedModelError(
            f"llama.cpp ({lib.__version__}) can't load {file.path}, a valid GGUF file of the architecture "
            f"{file.architecture!r}. {last_complaint()}. A newer llama-cpp-python may support it"
        )
    return model


@contextmanager
def _freed_on_failure(lib: Any, model: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        lib.llama_model_free(model)
        raise


def _make_context(
    lib: Any, model: Any, file: GgufFile, options: LlamaCppOptions, gpu_layers: int
) -> tuple[Context, CachePlan]:
    plan = _plan(lib, model, file, options, on_gpu=gpu_layers > 0)
    context = _try_context(lib, model, options, plan, gpu_layers)
    while not context and plan.can_shrink:  # buffers, which grow with the context too, did not fit
        plan = plan.halved()
        context = _try_context(lib, model, options, plan, gpu_layers)
    if not context:
        raise CapacityError(
            f"not enough memory for a context of {file.name}: keys and values of {plan.cells} tokens need "
            f"{plan.total_bytes / 1e9:.1f} GB, and {free_memory() / 1e9:.1f} GB are free; {last_complaint()}. Lower "
            "--context or max_streams, or use a smaller type for keys and values (--kv-type q8_0)"
        )
    facts = ContextFacts(
        vocab_size=lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)),
        num_ids=lib.llama_n_seq_max(context),
        num_cells=lib.llama_n_ctx_seq(context),
        max_rows=lib.llama_n_batch(context),
        is_shared=not options.exact,
        on_cpu=gpu_layers == 0,
        can_cut=not (lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)),
    )
    return Context(lib, model, context, facts), plan


def _try_context(lib: Any, model: Any, options: LlamaCppOptions, plan: CachePlan, gpu_layers: int) -> Any:
    # On the CPU the library would allocate more memory than there is, and the system would kill the process.
    has_room = gpu_layers > 0 or plan.total_bytes <= free_memory()
    return has_room and lib.llama_init_from_model(model, _context_params(lib, options, plan, gpu_layers))


def _cache_types(options: LlamaCppOptions, on_gpu: bool) -> CacheTypes:
    """On the CPU llama.cpp's flash attention sums keys in the order of their cells for any number of rows, unless keys
    and values have the same 16-bit type. Then it uses different sums for one row of a long text, for a few rows and for
    many, each the fastest for its number. With values in bf16 a row has the same bits for any number of rows, which
    `exact` needs.
    """
    if options.kv_type not in ("auto", "f16"):
        return CacheTypes(options.kv_type, options.kv_type)
    return CacheTypes("f16", "bf16" if options.exact and not on_gpu else "f16")


def _plan(lib: Any, model: Any, file: GgufFile, options: LlamaCppOptions, on_gpu: bool) -> CachePlan:
    types = _cache_types(options, on_gpu)
    heads, kv_heads = max(1, lib.llama_model_n_head(model)), max(1, lib.llama_model_n_head_kv(model))
    width = lib.llama_model_n_embd(model) // heads * kv_heads
    token_bytes = int(lib.llama_model_n_layer(model) * width * types.bytes_per_value)
    max_streams = min(options.max_streams, _EXACT_STREAMS) if options.exact else options.max_streams
    num_ids = max_streams + _EXACT_STREAMS if options.exact else min(MAX_SEQUENCES, 2 * max_streams + 64)
    free = sum(device.free_bytes for device in find_devices()) if on_gpu else free_memory()
    copies = num_ids if options.exact else 1
    affordable = int(free * _CACHE_SHARE) // (token_bytes * copies)
    longest = int(file.context_length / min(1.0, options.rope_freq_scale or 1.0))
    context = min(options.context_length or LONGEST_UNASKED_CONTEXT, longest)
    wanted = context if options.exact else max(context, min(_USUAL_TOKENS, context * max_streams))
    at_least = context if options.context_length else 1
    tokens = options.kv_tokens or max(at_least, min(wanted, affordable))
    is_asked = bool(options.context_length or options.kv_tokens)
    cells = tokens + _MARGIN
    return CachePlan(types, num_ids, max_streams, min(context, tokens), cells, token_bytes * copies, is_asked)


def _flash_attention(options: LlamaCppOptions, types: CacheTypes) -> str:
    if options.exact or types not in (CacheTypes("f32", "f32"), CacheTypes("f16", "f16")):
        return "on"  # only there are values of other types summed, and sums the same wherever a token lies
    if options.flash_attention == "auto" and types.keys == "f32":
        return "off"  # flash attention would round them to f16
    return options.flash_attention


def _context_params(lib: Any, options: LlamaCppOptions, plan: CachePlan, gpu_layers: int) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = plan.cells * (plan.num_ids if options.exact else 1)
    params.n_batch = 2 * options.max_rows  # tokens that a stream reads again are added to its rows
    params.n_ubatch = options.max_rows
    params.n_outputs_max = params.n_outputs_max_per_seq = options.max_rows
    params.n_seq_max = plan.num_ids
    params.n_rs_seq = _RECURRENT_SNAPSHOTS
    params.n_threads = options.threads or physical_cores()
    params.n_threads_batch = options.threads_batch or params.n_threads
    params.kv_unified = not options.exact
    params.swa_full = True  # a window that drops old tokens could not be rewound
    params.type_k, params.type_v = _TYPES[plan.types.keys], _TYPES[plan.types.values]
    params.flash_attn_type = _FLASH[_flash_attention(options, plan.types)]
    params.offload_kqv = params.op_offload = gpu_layers > 0
    params.rope_freq_base = options.rope_freq_base or 0.0
    params.rope_freq_scale = options.rope_freq_scale or 0.0
    if options.rope_scaling:
        params.rope_scaling_type = _ROPE_SCALING[options.rope_scaling]
    return params
