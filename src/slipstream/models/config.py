"""DecoderConfig: what a Llama-family decoder needs to know of itself, whichever file format it came from."""

from __future__ import annotations

from dataclasses import dataclass

# Tokens. What a model gets where nobody asks for more: some files state billions, and a plan for them would take what
# memory there is.
LONGEST_UNASKED_CONTEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The shape of one decoder. Both readers (HF config.json, GGUF metadata) fill it; the backends read only this."""

    architecture: str  # "llama", "mistral", "qwen2", "qwen3": as the file names it, lower case
    vocab_size: int  # rows of the embedding, padding included
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    rope_theta: float
    rope_divisors: tuple[float, ...] | None = (
        None  # [head_dim / 2] each inverse frequency is divided by; llama3, linear
    )
    sliding_window: int | None = None  # a row sees this many positions, itself included; None: all
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_head: bool = False  # the output head is the embedding

    def usable_context(self, asked: int | None) -> int:
        """Tokens of context: what was asked for, at most the model's own."""
        return min(asked or LONGEST_UNASKED_CONTEXT, self.context_length)

    def inverse_frequencies(self) -> list[float]:
        """The rotary inverse frequencies, rope scaling applied. Length head_dim / 2."""
        half = self.head_dim // 2
        plain = [self.rope_theta ** (-2.0 * i / self.head_dim) for i in range(half)]
        if self.rope_divisors is None:
            return plain
        return [f / d for f, d in zip(plain, self.rope_divisors, strict=True)]
