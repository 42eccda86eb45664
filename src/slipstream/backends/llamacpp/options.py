"""LlamaCppOptions: how llama.cpp loads a GGUF model on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from slipstream.errors import UsageError
from slipstream.host import check_threads

KVType = Literal["auto", "f32", "f16", "q8_0", "q4_0"]
FlashAttention = Literal["auto", "on", "off"]
RopeScaling = Literal["none", "linear", "yarn", "longrope"]
MAX_SEQUENCES = 256  # llama.cpp's own limit, streams and branches of drafts together


@dataclass(frozen=True, slots=True)
class LlamaCppOptions:
    """None and `auto` are chosen by the model, the library and the machine."""

    backend: ClassVar[str] = "llamacpp"
    n_gpu_layers: int | None = None  # 0: none, -1: all; None: all if the build has GPU support
    threads: int | None = None  # None: one per physical core
    threads_batch: int | None = None  # for prompts; None: as `threads`
    max_rows: int = 512  # rows of one forward (llama.cpp's n_ubatch)
    context_length: int | None = None  # at most the model's own, unless rope settings extend it
    kv_tokens: int | None = None  # tokens of all streams together that the cache holds
    kv_type: KVType = "auto"  # of keys and values; auto: f16, or the types that `exact` needs
    flash_attention: FlashAttention = "auto"
    max_streams: int = 32
    exact: bool = False  # logits with the same bits regardless of other rows, even if slower
    repack: bool = True  # rearrange weights for the CPU's fastest kernels; needs their memory twice
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None  # 0.5 doubles the context
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        for name, kind in (("kv_type", KVType), ("flash_attention", FlashAttention), ("rope_scaling", RopeScaling)):
            value, expected = getattr(self, name), get_args(kind)
            if value is not None and value not in expected:
                raise UsageError(f"{name} is {value!r}; expected {', '.join(expected)}")
        check_threads("threads", self.threads)
        check_threads("threads_batch", self.threads_batch)
        for name in ("context_length", "kv_tokens", "max_streams"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")
        for name in ("rope_freq_base", "rope_freq_scale"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name} is {value}; expected more than 0")
        if not 16 <= self.max_rows <= 4096:
            raise UsageError(f"max_rows is {self.max_rows}; expected 16 to 4096")
        if self.max_streams > MAX_SEQUENCES // 2:
            raise UsageError(f"max_streams is {self.max_streams}; llama.cpp supports at most {MAX_SEQUENCES // 2}")
        if self.kv_type in ("q8_0", "q4_0") and self.flash_attention == "off":
            raise UsageError(f"kv_type {self.kv_type} needs flash attention: leave --flash-attention at auto or on")
        if self.exact and self.kv_type == "f32":
            raise UsageError("exact needs flash attention, which rounds f32 to f16: leave kv_type at auto, or use q8_0")
        if self.exact and self.flash_attention == "off":
            raise UsageError(
                "exact needs flash attention, because its sums don't depend on the place of a token in the cache"
            )

    def gpu_layers(self, num_layers: int, build_offloads: bool) -> int:
        """The number of layers on the GPU; the output counts as one. Raises UsageError for an impossible number."""
        most = num_layers + 1
        wanted = (-1 if build_offloads else 0) if self.n_gpu_layers is None else self.n_gpu_layers
        if not -1 <= wanted <= most:
            raise UsageError(
                f"n_gpu_layers is {wanted}; the model has {num_layers} layers and an output: expected 0 (none) to "
                f"{most}, or -1 (all)"
            )
        if wanted and not build_offloads:
            raise UsageError(
                f"n_gpu_layers is {wanted}, but this llama-cpp-python was built without GPU support: every layer "
                "would run on the CPU. Build it for your GPU (docs/llamacpp.md has the flags), or leave n_gpu_layers "
                "out"
            )
        return most if wanted == -1 else wanted
