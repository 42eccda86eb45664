"""DecoderConfig: the configuration of a Llama-family decoder, for all file formats."""

from __future__ import annotations

from dataclasses import dataclass

# Tokens. The default context: some files have billions, and reserving that many would use all memory.
LONGEST_UNASKED_CONTEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The shape of one decoder. Both readers (HF config.json, GGUF metadata) fill it; the backends read only this."""

    architecture: str  # "llama", "mistral", "qwen2", "qwen3": as in the file, in lower case
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
    rope_divisors: tuple[float, ...] | None = None  # [head_dim / 2] divisors of the inverse frequencies; llama3, linear
    sliding_window: int | None = None  # a row sees this many positions, itself included; None: all
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_head: bool = False  # the output head is the embedding

    def usable_context(self, asked: int | None) -> int:
        """Tokens of context: the requested number, at most the model's own."""
        return min(asked or LONGEST_UNASKED_CONTEXT, self.context_length)

    def inverse_frequencies(self) -> list[float]:
        """The rotary inverse frequencies with rope scaling. Length head_dim / 2."""
        half = self.head_dim // 2
        plain = [self.rope_theta ** (-2.0 * i / self.head_dim) for i in range(half)]
        if self.rope_divisors is None:
            return plain
        return [f / d for f, d in zip(plain, self.rope_divisors, strict=True)]
