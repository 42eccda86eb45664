"""vLLM: its command line, and the keys of `--speculative-config`."""

from __future__ import annotations

from pathlib import Path

from slipstream.engines.vllm.methods import VLLM_NAMES
from slipstream.parsing.flag_table import Flag, Gone, Table, names_in

VERSION = "vLLM 0.32.0"

QUANTISATIONS = (
    *("awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "fp8", "fbgemm_fp8", "fp_quant"),
    *("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "humming", "compressed-tensors"),
    *("experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online"),
    *("fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token"),
    *("mxfp8", "gguf", "bitsandbytes"),  # the last two: earlier versions
)
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")


# Names for `mtp` with a model type in front; taken with a warning.
MTP_NAMES = (
    *("deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp", "glm_ocr_mtp"),
    *("ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp"),
    *("qwen3_5_mtp", "longcat_flash_mtp", "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp"),
    *("kimi_k3_mtp", "pangu_ultra_moe_mtp", "step3p5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp", "inkling_mtp"),
    "glm5_next_mtp",
)

SPECULATIVE = Table(
    engine="vllm",
    version=VERSION,
    source="vllm/config/speculative.py of the wheel",
    flags=(
        Flag("method", choices=(*VLLM_NAMES, *MTP_NAMES)),
        Flag("model"),
        Flag("num_speculative_tokens", "int", at_least=1),
        Flag("draft_tensor_parallel_size", "int", at_least=1),
        Flag("prompt_lookup_max", "int", at_least=1),
        Flag("prompt_lookup_min", "int", at_least=1),
        Flag("num_speculative_tokens_per_batch_size", "list"),
        Flag("use_heterogeneous_vocab", "bool"),
        Flag("draft_sample_method", choices=("greedy", "probabilistic")),
        Flag("rejection_sample_method", choices=("standard", "synthetic", "block")),
        Flag("synthetic_acceptance_rates", "list"),
        Flag("synthetic_acceptance_length", "float", at_least=1),
        Flag("quantization", choices=QUANTISATIONS),
        Flag("max_model_len", "int", at_least=1),
        Flag("enforce_eager", "bool"),
        Flag("parallel_drafting", "bool"),
        Flag("disable_padded_drafter_batch", "bool"),
        Flag("disable_eagle_block_drop", "bool"),
        Flag("use_local_argmax_reduction", "bool"),
        Flag("enable_adaptive_verification", "bool"),
        Flag("index_share_for_mtp_iteration", "bool"),
        Flag("dspark_draft_topk", "int", at_least=1),
        Flag("suffix_decoding_max_tree_depth", "int", at_least=1),
        Flag("suffix_decoding_max_cached_requests", "int", at_least=0),
        Flag("suffix_decoding_max_spec_factor", "float", at_least=0),
        Flag("suffix_decoding_min_token_prob", "float", at_least=0, at_most=1),
    ),
    others=frozenset(
        ("moe_backend", "attention_backend", "kv_cache_dtype", "revision", "code_revision", "draft_load_config")
    ),
    gone=(
        Gone("tensor_parallel_size", '"draft_tensor_parallel_size"'),
        Gone("draft_model", '"model"'),
        Gone("speculative_model", '"model"'),
        Gone("num_draft_tokens", '"num_speculative_tokens"'),
        Gone("ngram_prompt_lookup_max", '"prompt_lookup_max"'),
        Gone("ngram_prompt_lookup_min", '"prompt_lookup_min"'),
        Gone("disable_by_batch_size", '"num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 256, 0]]'),
        Gone("disable_mqa_scorer", "nothing instead: remove it"),
        Gone("disable_logprobs", "nothing instead: remove it"),
        Gone("acceptance_method", '"rejection_sample_method"'),
        Gone("posterior_threshold", "nothing instead: remove it"),
        Gone("posterior_alpha", "nothing instead: remove it"),
        Gone("speculative_token_tree", "nothing instead: remove it"),
    ),
)

# Keys that belong to some methods only.
KEYS_OF_METHODS: dict[str, tuple[str, ...]] = {
    "prompt_lookup_max": ("ngram", "ngram_gpu"),
    "prompt_lookup_min": ("ngram", "ngram_gpu"),
    "suffix_decoding_max_tree_depth": ("suffix",),
    "suffix_decoding_max_cached_requests": ("suffix",),
    "suffix_decoding_max_spec_factor": ("suffix",),
    "suffix_decoding_min_token_prob": ("suffix",),
    "parallel_drafting": ("draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"),
    "use_heterogeneous_vocab": ("draft_model",),
    "dspark_draft_topk": ("dspark",),
    "index_share_for_mtp_iteration": ("mtp",),
}
REFUSED_WITH_OTHERS = ("use_heterogeneous_vocab", "dspark_draft_topk", "index_share_for_mtp_iteration")

# vLLM takes the method from these parts of the draft's name, unless one of these methods is given.
METHODS_BY_NAME = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}

FLAGS = Table(
    engine="vllm",
    version=VERSION,
    source="vllm/engine/arg_utils.py and the server's arguments in the wheel",
    flags=(
        Flag("--speculative-config", "json", aliases=("-sc",)),
        Flag("--spec-method", choices=(*VLLM_NAMES, *MTP_NAMES)),
        Flag("--spec-model"),
        Flag("--spec-tokens", "int", at_least=1),
        Flag("--model"),
        Flag("--dtype", choices=DTYPES),
        Flag("--quantization", choices=QUANTISATIONS, aliases=("-q",)),
        Flag("--tensor-parallel-size", "int", aliases=("-tp",), at_least=1),
        Flag("--pipeline-parallel-size", "int", aliases=("-pp",), at_least=1),
        Flag("--data-parallel-size", "int", aliases=("-dp",), at_least=1),
        Flag("--max-model-len", "size", at_least=1, words=("auto", "-1")),
        Flag("--max-num-seqs", "int", at_least=1),
        Flag("--max-num-batched-tokens", "size", at_least=1),
        Flag("--gpu-memory-utilization", "float", at_least=0.01, at_most=1),
        Flag("--port", "int", at_least=0, at_most=65535),
        Flag("--seed", "int"),
        Flag("--compilation-config", "json", aliases=("-cc",)),
        Flag("--hf-overrides", "json"),
        Flag("--kv-transfer-config", "json"),
        Flag("--enforce-eager", "switch"),
        Flag("--trust-remote-code", "switch"),
        Flag("--enable-prefix-caching", "switch"),
        Flag("--enable-chunked-prefill", "switch"),
        Flag("--async-scheduling", "switch"),
        Flag("--enable-expert-parallel", "switch", aliases=("-ep",)),
        Flag("--disable-log-stats", "switch"),
        Flag("--per-request-spec-decode-metrics", choices=("none", "summary", "detailed"), since="0.29.0"),
    ),
    gone=(
        Gone("--speculative-model", """--speculative-config '{"method": "draft_model", "model": "..."}'"""),
        Gone("--num-speculative-tokens", """--speculative-config '{"num_speculative_tokens": 5}'"""),
        Gone("--ngram-prompt-lookup-max", """--speculative-config '{"method": "ngram", "prompt_lookup_max": 4}'"""),
        Gone("--ngram-prompt-lookup-min", """--speculative-config '{"method": "ngram", "prompt_lookup_min": 2}'"""),
        Gone(
            "--speculative-draft-tensor-parallel-size",
            """--speculative-config '{"draft_tensor_parallel_size": 1}'""",
        ),
        Gone("--speculative-model-quantization", """--speculative-config '{"quantization": "..."}'"""),
        Gone("--speculative-max-model-len", """--speculative-config '{"max_model_len": 4096}'"""),
        Gone(
            "--speculative-disable-by-batch-size",
            """--speculative-config '{"num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 256, 0]]}'""",
        ),
        Gone(
            "--spec-decoding-acceptance-method",
            """--speculative-config '{"rejection_sample_method": "standard"}'""",
        ),
        Gone("--speculative-disable-mqa-scorer", "nothing instead: remove it"),
        Gone("--typical-acceptance-sampler-posterior-threshold", "nothing instead: remove it"),
        Gone("--typical-acceptance-sampler-posterior-alpha", "nothing instead: remove it"),
        Gone("--disable-logprobs-during-spec-decoding", "nothing instead: remove it"),
        Gone("--use-v2-block-manager", "nothing instead: remove it"),
        Gone("--num-scheduler-steps", "--async-scheduling"),
        Gone("--num-lookahead-slots", "nothing instead: remove it"),
        Gone("--swap-space", "--kv-offloading-size"),
        Gone("--max-seq-len-to-capture", "--max-cudagraph-capture-size"),
        Gone("--guided-decoding-backend", "--structured-outputs-config"),
        Gone("--disable-log-requests", "nothing: requests are only logged with --enable-log-requests"),
        Gone("--rope-scaling", "--hf-overrides"),
        Gone("--rope-theta", "--hf-overrides"),
        Gone("--task", "--runner or --convert"),
    ),
    others=names_in(Path(__file__).with_name("flags.txt")),
)
