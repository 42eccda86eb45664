"""What makes a model faster where speculation does not: each alternative with the gain expected on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipstream.findings import Finding, rule
from slipstream.predict.forecast import forecast
from slipstream.predict.machine import Machine
from slipstream.predict.memory import ASSUMED_CONTEXT, MemoryUser, Need
from slipstream.predict.sizes import KV_BYTES, KvType, Sizes, kv_bytes
from slipstream.predict.speed import PlacedModel

WORTH_SAYING = 1.05  # smaller gains are not reported
TARGET_BITS = 4.85  # Q4_K_M: the smallest quantisation with little effect on answers
STREAMS = 8
KV_SMALLER: KvType = "q8"

GPU_OFFLOAD = rule(
    "fit-try-gpu", "note", "Run the model on the GPU",
    "Decoding reads all weights for each token: at {cpu:.0f} GB/s from main memory, at {gpu:.0f} GB/s on {name}.",
    "llama.cpp: -ngl 99; Ollama: `ollama ps` must say GPU; Slipstream: --device cuda. Expected: {gain:.1f}x.",
)  # fmt: skip
PARTIAL_OFFLOAD = rule(
    "fit-try-partial-offload", "note", "Run part of the layers on the GPU",
    "{share:.0%} of the weights fit on {name}; the rest stays in main memory and limits the speed.",
    "llama.cpp: -ngl {layers}. Expected: {gain:.1f}x over the CPU alone.",
)  # fmt: skip
PROMPT_CACHE = rule(
    "fit-try-prompt-cache", "note", "Cache repeated prompts",
    "Reading a prompt of {prompt:,} tokens takes about {prompt_s:.1f} s before the first token. That is {share:.0%} "
    "of the time of an answer of {answer} tokens. A prompt cache skips the part that repeats.",
    "Put the repeated text at the beginning of the prompt. vLLM: --enable-prefix-caching; llama-server: --cache-reuse "
    "256; Slipstream caches prompts by default. Expected: up to {gain:.1f}x for whole answers.",
)  # fmt: skip
KV_TYPE = rule(
    "fit-try-kv-type", "note", "Use a smaller KV cache",
    "At {context:,} tokens the KV cache has {kv:.1f} GB, the weights {weights:.1f} GB. Both are read for each token.",
    "Slipstream: --kv-type q8_0; llama.cpp: -ctk q8_0 -ctv q8_0 (with -fa on); vLLM: --kv-cache-dtype fp8; TabbyAPI: "
    "cache_mode: Q8. Expected: {gain:.2f}x at full context, and half the memory.",
)  # fmt: skip
FLASH_ATTENTION = rule(
    "fit-try-flash-attention", "note", "Use flash attention",
    "Without it, reading 512 prompt tokens needs about {scores:.1f} GB for attention scores at {context:,} tokens, "
    "and llama.cpp can't use a quantised KV cache.",
    "llama.cpp: -fa on; vLLM and SGLang use it by default from compute capability 8.0 on.",
)  # fmt: skip
RIGHT_SIZE = rule(
    "fit-try-right-size", "note", "Set the context and max_tokens to what the task needs",
    "A context of {context:,} tokens reserves {kv:.1f} GB for each stream, used or not. The longest answer allowed is "
    "{answer:,} tokens.",
    "Set the context to what the longest prompt and answer need (llama.cpp: -c, vLLM: --max-model-len) and max_tokens "
    "to the task: with 512 instead of {answer:,}, an answer that does not end by itself stops {factor:.0f}x sooner.",
)  # fmt: skip
MORE_STREAMS = rule(
    "fit-try-more-streams", "note", "Answer several requests at the same time",
    "One stream reads all weights for one token; {streams} streams read them once for {streams} tokens.",
    "For throughput, send requests at the same time: vLLM --max-num-seqs {streams}, llama-server -np {streams}. "
    "Expected: {gain:.1f}x the tokens/s over all streams; a single answer does not get faster.",
)  # fmt: skip
QUANTISATION = rule(
    "fit-try-quantisation", "note", "Use a smaller quantisation",
    "Each weight takes {bits:.1f} bits. With Q4_K_M ({target:.2f} bits) there is less to read for each token.",
    "Use a Q4_K_M GGUF, AWQ or 4-bit EXL2 version of this model. Expected: {gain:.1f}x. Another quantisation changes "
    "the answers slightly.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """A request. The defaults are assumed, and findings say so."""

    context: int = ASSUMED_CONTEXT  # the context length set for the engine
    prompt_tokens: int = 1024
    answer_tokens: int = 256
    max_tokens: int = 2048
    kv: KvType = "f16"


def alternatives(
    machine: Machine, sizes: Sizes, engine: MemoryUser, workload: Workload | None = None, on_gpu: bool = True
) -> list[Finding]:
    """What helps instead of speculation, in the order to try it.

    `on_gpu`: whether the model runs on the GPU now, if there is one with enough memory.
    """
    work = workload or Workload()
    here = machine if on_gpu else replace(machine, gpus=())
    now = forecast(here, sizes, None, engine, Need(work.context, work.kv)).target
    found = [
        _gpu_offload(machine, sizes, engine, Need(work.context, work.kv), on_gpu),
        _quantisation(sizes),
        _prompt_cache(now, work),
        _more_streams(now),
        _kv_type(sizes, work),
        _flash_attention(sizes, work),
        _right_size(sizes, work),
    ]
    return [finding for finding in found if finding is not None]


def _gpu_offload(machine: Machine, sizes: Sizes, engine: MemoryUser, need: Need, on_gpu: bool) -> Finding | None:
    best, slow = (forecast(here, sizes, None, engine, need) for here in (machine, replace(machine, gpus=())))
    made, gain = best.memory, slow.target.forward_s(1) / best.target.forward_s(1)
    if not made.gpus or not made.fits:
        return None
    evidence, name = f"{sizes.name}: {sizes.weight_bytes / 1e9:.1f} GB", machine.gpus[made.gpus[0].index].name
    if made.main:
        layers = sum(share.num_layers for share in made.gpus)
        share = layers / (layers + made.main.num_layers)
        return PARTIAL_OFFLOAD.finding(evidence, share=share, name=name, layers=layers, gain=gain)
    if on_gpu:
        return None
    cpu, gpu = (expected.target.device.bandwidth / 1e9 for expected in (slow, best))
    return GPU_OFFLOAD.finding(evidence, cpu=cpu, gpu=gpu, name=name, gain=gain)


def _quantisation(sizes: Sizes) -> Finding | None:
    bits = sizes.weight_bytes * 8 / sizes.num_parameters
    gain = bits / TARGET_BITS
    if (
        gain < 1.5
    ):  # small models have 6 bits as Q4_K_M: their embeddings weigh more, and some of their widths don't fit
        return None
    return QUANTISATION.finding(
        f"{sizes.name}: {sizes.weight_bytes / 1e9:.1f} GB for {sizes.num_parameters / 1e9:.2f} billion weights",
        bits=bits, target=TARGET_BITS, gain=gain,
    )  # fmt: skip


def _prompt_cache(now: PlacedModel, work: Workload) -> Finding | None:
    prompt_s = 2 * now.num_parameters * work.prompt_tokens / now.device.flops
    answer_s = work.answer_tokens * now.forward_s(1)
    gain = (prompt_s + answer_s) / answer_s
    if gain < WORTH_SAYING:
        return None
    return PROMPT_CACHE.finding(
        f"{work.prompt_tokens:,} prompt tokens, {work.answer_tokens} answer tokens{_assumed(work)}",
        prompt=work.prompt_tokens, prompt_s=prompt_s, share=prompt_s / (prompt_s + answer_s),
        answer=work.answer_tokens, gain=gain,
    )  # fmt: skip


def _more_streams(now: PlacedModel) -> Finding | None:
    one, many = now.forward_s(1), now.forward_s(STREAMS)
    gain = STREAMS * one / many
    if gain < WORTH_SAYING:
        return None
    return MORE_STREAMS.finding(f"one stream: {1 / one:.1f} tokens/s expected", streams=STREAMS, gain=gain)


def _kv_type(sizes: Sizes, work: Workload) -> Finding | None:
    full, half = (kv_bytes(sizes, work.context, KV_BYTES[kv]) for kv in (work.kv, KV_SMALLER))
    gain = (sizes.weight_bytes + full) / (sizes.weight_bytes + half)
    if work.kv != "f16" or gain < WORTH_SAYING:
        return None
    return KV_TYPE.finding(
        f"KV cache as {work.kv}{_assumed(work)}",
        context=work.context,
        kv=full / 1e9,
        weights=sizes.weight_bytes / 1e9,
        gain=gain,
    )


def _flash_attention(sizes: Sizes, work: Workload) -> Finding | None:
    # The number of query heads is not known here; four per KV head is the most common.
    scores = 512 * work.context * sizes.num_kv_heads * 4 * 4
    if scores < 1 << 30:
        return None
    return FLASH_ATTENTION.finding(
        f"{work.context:,} tokens of context{_assumed(work)}", scores=scores / 1e9, context=work.context
    )


def _right_size(sizes: Sizes, work: Workload) -> Finding | None:
    needed = work.prompt_tokens + work.max_tokens
    if work.context < 2 * needed and work.max_tokens <= 512:
        return None
    return RIGHT_SIZE.finding(
        f"context {work.context:,}, max_tokens {work.max_tokens:,}{_assumed(work)}",
        context=work.context, kv=kv_bytes(sizes, work.context, KV_BYTES[work.kv]) / 1e9, answer=work.max_tokens,
        factor=max(work.max_tokens / 512, 1),
    )  # fmt: skip


def _assumed(work: Workload) -> str:
    return " (assumed)" if work == Workload() else ""
