"""SGLang: the flags of `sglang serve` and `python -m sglang.launch_server`, and its speculative algorithms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.parsing.flag_table import Flag, Gone, Table, names_in

TREE_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
ALGORITHMS = (*TREE_ALGORITHMS, "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP", "NONE")
NEEDS_DRAFT_MODEL = ("EAGLE3", "STANDALONE", "DFLASH")  # EAGLE and NEXTN may find their head in the target
REJECTION_SAMPLING = ("EAGLE", "EAGLE3", "NEXTN")
ADAPTIVE = ("EAGLE", "EAGLE3", "NEXTN")
ADAPTIVE_STEPS = (0, 1, 3, 5, 7)  # without --speculative-adaptive-config
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
QUANTISATIONS = (
    *("awq", "fp8", "mxfp8", "gptq", "gptq_marlin", "awq_marlin", "bitsandbytes", "gguf", "modelopt", "modelopt_fp8"),
    *("modelopt_fp4", "nvfp4_online", "modelopt_mixed", "petit_nvfp4", "w8a8_int8", "w8a8_fp8", "moe_wna16", "w4afp8"),
    *("mxfp4", "auto-round", "auto-round-int8", "compressed-tensors", "modelslim", "mxfp_w4a8", "quark"),
    *("quark_int4fp8_moe", "quark_mxfp4", "mlx_q4", "mlx_q8", "unquant", "humming"),
)
_S = "--speculative"


@dataclass(frozen=True, slots=True)
class BlockSize:
    """The flag for the length of a head that drafts a block at once. It verifies a block and `num_more` tokens."""

    flag: str
    num_more: int


BLOCK_SIZES = {
    "DFLASH": BlockSize(f"{_S}-dflash-block-size", 0),
    "DSPARK": BlockSize(f"{_S}-dspark-block-size", 1),
}

FLAGS = Table(
    engine="sglang",
    version="SGLang 0.5.23",
    source="sglang/srt/arg_groups of the wheel",
    abbreviates=True,
    flags=(
        Flag(f"{_S}-algorithm", choices=ALGORITHMS),
        Flag(f"{_S}-draft-model-path", aliases=(f"{_S}-draft-model",)),
        Flag(f"{_S}-draft-model-revision"),
        Flag(f"{_S}-num-steps", "int", at_least=0),
        Flag(f"{_S}-eagle-topk", "int", at_least=1),
        Flag(f"{_S}-num-draft-tokens", "int", at_least=1),
        Flag(f"{_S}-dflash-block-size", "int", at_least=1),
        Flag(f"{_S}-dspark-block-size", "int", at_least=1),
        Flag(f"{_S}-accept-threshold-single", "float", at_least=0, at_most=1),
        Flag(f"{_S}-accept-threshold-acc", "float", at_least=0, at_most=1),
        Flag(f"{_S}-use-rejection-sampling", "switch"),
        Flag(f"{_S}-use-block-verification", "switch"),
        Flag(f"{_S}-token-map"),
        Flag(f"{_S}-attention-mode", choices=("prefill", "decode")),
        Flag(f"{_S}-draft-kv-cache-dtype", choices=("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16")),
        Flag(f"{_S}-draft-window-size", "int", at_least=1),
        Flag(f"{_S}-draft-sink-size", "int", at_least=0),
        Flag(f"{_S}-draft-model-quantization", choices=QUANTISATIONS),
        Flag(f"{_S}-adaptive", "switch"),
        Flag(f"{_S}-ngram-min-bfs-breadth", "int", at_least=1),
        Flag(f"{_S}-ngram-max-bfs-breadth", "int", at_least=1),
        Flag(f"{_S}-ngram-match-type", choices=("BFS", "PROB")),
        Flag(f"{_S}-ngram-max-trie-depth", "int", at_least=1),
        Flag(f"{_S}-ngram-capacity", "int", at_least=1),
        Flag(f"{_S}-ngram-external-sam-budget", "int", at_least=0),
        Flag("--uno-lora-path"),
        Flag("--model-path", aliases=("--model",)),
        Flag("--dtype", choices=DTYPES),
        Flag("--quantization", choices=QUANTISATIONS),
        Flag("--tp-size", "int", aliases=("--tensor-parallel-size", "--tp"), at_least=1),
        Flag("--pp-size", "int", aliases=("--pipeline-parallel-size",), at_least=1),
        Flag("--dp-size", "int", aliases=("--data-parallel-size", "--dp"), at_least=1),
        Flag("--mem-fraction-static", "float", at_least=0.01, at_most=1),
        Flag("--context-length", "int", at_least=1),
        Flag("--max-running-requests", "int", at_least=1),
        Flag("--page-size", "int", at_least=1),
        Flag("--bf16-gemm-backend", choices=("auto", "cutedsl", "gemv", "torch")),
        Flag("--port", "int", at_least=0, at_most=65535),
        Flag("--trust-remote-code", "switch"),
        Flag("--disable-radix-cache", "switch"),
        Flag("--disable-overlap-schedule", "switch"),
        Flag("--enable-deterministic-inference", "switch"),
        Flag("--enable-multi-layer-eagle", "switch"),
    ),
    gone=(
        Gone(f"{_S}-ngram-min-match-window-size", f"{_S}-ngram-max-trie-depth"),
        Gone(f"{_S}-ngram-max-match-window-size", f"{_S}-ngram-max-trie-depth"),
        Gone(f"{_S}-ngram-branch-length", f"{_S}-ngram-max-trie-depth"),
        Gone(
            "--disable-cuda-graph", "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled", True
        ),
        Gone("--enable-dp-attention", "--attn-dp-size N", True),
        Gone("--monokernel-backend", "--enable-amd-monokernel", True),
    ),
    others=names_in(Path(__file__).with_name("flags.txt")),
)
