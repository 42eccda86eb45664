"""vLLM: its command line, the keys of `--speculative-config`, and the methods that it knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.engines.flags.table import Flag, Gone, Table, words

VERSION = "vLLM 0.32.0"
Need = Literal["required", "optional", "unused"]

QUANTISATIONS = (
    *("awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "fp8", "fbgemm_fp8", "fp_quant"),
    *("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "humming", "compressed-tensors"),
    *("experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online"),
    *("fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token"),
    *("mxfp8", "gguf", "bitsandbytes"),  # the last two: earlier versions
)
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")


@dataclass(frozen=True, slots=True)
class MethodNeeds:
    """What a speculative method asks for: a model of its own, and a number of tokens."""

    name: str
    model: Need
    tokens: Need = "required"


METHODS = (
    MethodNeeds("draft_model", "required"),
    MethodNeeds("ngram", "unused"),
    MethodNeeds("ngram_gpu", "unused"),
    MethodNeeds("suffix", "unused", "optional"),
    MethodNeeds("eagle", "required"),
    MethodNeeds("eagle3", "required"),
    MethodNeeds("medusa", "required"),
    MethodNeeds("mlp_speculator", "required", "optional"),
    MethodNeeds("mtp", "optional"),
    MethodNeeds("dflash", "required"),
    MethodNeeds("dspark", "optional", "optional"),
    MethodNeeds("extract_hidden_states", "unused"),
    MethodNeeds("custom_class", "required"),
)

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
        Flag("method", choices=(*(method.name for method in METHODS), *MTP_NAMES)),
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
    others=words("moe_backend attention_backend kv_cache_dtype revision code_revision draft_load_config"),
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
}

FLAGS = Table(
    engine="vllm",
    version=VERSION,
    source="vllm/engine/arg_utils.py and the server's arguments in the wheel",
    flags=(
        Flag("--speculative-config", "json", aliases=("-sc",)),
        Flag("--spec-method", choices=(*(method.name for method in METHODS), *MTP_NAMES)),
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
    others=words(
        """
    --kv-offloading-size --max-cudagraph-capture-size --structured-outputs-config
    --additional-config --aggregate-engine-logging --all2all-backend --allow-credentials
    --allow-deprecated-quantization --allowed-headers --allowed-local-media-path --allowed-media-domains
    --allowed-methods --allowed-origins --anthropic-disabled-thinking-effort --api-key --api-server-count
    --attention-backend --attention-config --aux-output-config --block-size --chat-template
    --chat-template-content-format --code-revision --cohere-format --cohere-is-reasoning-model
    --collect-detailed-traces --config --config-format --convert --cp-kv-cache-interleave-size
    --cpu-distributed-timeout-seconds --cpu-offload-gb --cpu-offload-params --cudagraph-capture-sizes
    --cudagraph-metrics --custom-histogram-buckets --data-parallel-address --data-parallel-backend
    --data-parallel-external-lb --data-parallel-hybrid-lb --data-parallel-multi-port-external-lb
    --data-parallel-rank --data-parallel-rpc-port --data-parallel-size-local --data-parallel-start-rank
    --data-parallel-supervisor-port --dbo-decode-token-threshold --dbo-prefill-token-threshold --dcp-comm-backend
    --dcp-kv-cache-interleave-size --dcp-q-replicate --decode-context-parallel-size --default-chat-template-kwargs
    --default-mm-loras --device-ids --device-memory-utilization --diffusion-config
    --disable-access-log-for-endpoints --disable-cascade-attn --disable-chunked-mm-input
    --disable-custom-all-reduce --disable-fastapi-docs --disable-hybrid-kv-cache-manager
    --disable-nccl-for-dp-synchronization --disable-sliding-window --disable-uvicorn-access-log
    --distributed-executor-backend --distributed-timeout-seconds --download-dir
    --dp-supervisor-probe-failure-threshold --dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s
    --dp-sync-interval --ec-manager-config --ec-transfer-config --elastic-ep-max-dp-size --enable-auto-tool-choice
    --enable-batch-sharded-sampling --enable-cumem-allocator --enable-dbo --enable-elastic-ep
    --enable-ep-weight-filter --enable-eplb --enable-fault-tolerance --enable-flash-late-interaction
    --enable-flashinfer-autotune --enable-force-include-usage --enable-hc-sp --enable-layerwise-nvtx-tracing
    --enable-log-deltas --enable-log-outputs --enable-log-requests --enable-logging-iteration-details
    --enable-lora --enable-mamba-cache-stochastic-rounding --enable-mamba-shared-prefix-checkpoint
    --enable-mfu-metrics --enable-mixed-moe-lora-format --enable-mm-embeds --enable-moe-shared-loras
    --enable-nccl-comm-suspend --enable-offline-docs --enable-per-request-metrics --enable-prompt-embeds
    --enable-prompt-tokens-details --enable-request-id-headers --enable-return-routed-experts --enable-scale-out
    --enable-server-load-tracking --enable-shm-tensor-arena --enable-sleep-mode --enable-ssl-refresh
    --enable-tokenizer-info-endpoint --enable-tower-connector-lora --enable-trace-replay --engram-config
    --eplb-config --exclude-tools-when-tool-choice-none --expert-placement-strategy --fail-on-environ-validation
    --fault-tolerance-config --fingerprint-mode --fingerprint-value --fully-sharded-loras --gdn-prefill-backend
    --generation-config --grpc --grpc-port --h11-max-header-count --h11-max-incomplete-event-size --headless
    --help --hf-config-path --hf-token --host --ignore-patterns --interleave-mm-strings --io-processor-plugin
    --ir-op-priority --jit-monitor-mode --jit-monitor-verbose --kda-decode-backend --kda-prefill-backend
    --kernel-config --kv-cache-dtype --kv-cache-dtype-skip-layers --kv-cache-memory-bytes --kv-cache-metrics
    --kv-cache-metrics-sample --kv-events-config --kv-offloading-backend --kv-sharing-fast-prefill
    --language-model-only --limit-mm-per-prompt --linear-backend --load-format --log-config-file --log-error-stack
    --log-level --logging-config --logits-processors --logprobs-mode --long-prefill-token-threshold
    --long-prefill-token-threshold-adaptive --lora-dtype --lora-modules --lora-target-modules --mamba-backend
    --mamba-block-size --mamba-cache-dtype --mamba-cache-mode --mamba-cache-philox-rounds --mamba-ssm-cache-dtype
    --mamba-ssu-algorithm --master-addr --master-port --max-cpu-loras --max-log-len --max-logprobs
    --max-lora-cls-labels --max-lora-rank --max-loras --max-num-active-seqs --max-num-queued-reqs
    --max-num-queued-tokens --max-num-scheduled-tokens --max-parallel-loading-workers --media-io-kwargs
    --middleware --mm-device-do-normalize --mm-encoder-attn-backend --mm-encoder-attn-dtype
    --mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-margin --mm-encoder-fp8-scale-save-path
    --mm-encoder-only --mm-encoder-tp-mode --mm-hasher-algorithm --mm-ipc-gpu-memory-gb --mm-processor-cache-gb
    --mm-processor-cache-type --mm-processor-device --mm-processor-kwargs --mm-shm-cache-max-object-size-mb
    --mm-tensor-ipc --model-class-overrides --model-impl --model-loader-extra-config --moe-backend --nnodes
    --node-rank --num-gpu-blocks-override --numa-bind --numa-bind-cpus --numa-bind-nodes --offload-backend
    --offload-group-size --offload-num-in-group --offload-params --offload-prefetch-step --omni
    --optimization-level --otlp-traces-endpoint --override-generation-config --per-request-spec-decode-metrics
    --performance-mode --pooler-config --prefill-context-parallel-size --prefill-schedule-interval
    --prefix-cache-retention-interval --prefix-caching-hash-algo --prefix-match-unit --profiler-config
    --pt-load-map-location --quantization-config --ray-workers-use-nsight --reasoning-config --reasoning-parser
    --reasoning-parser-plugin --renderer-num-workers --replayssm-buffer-len --response-role --return-sampling-mask
    --return-tokens-as-token-ids --revision --root-path --runner --safetensors-load-strategy
    --safetensors-prefetch-block-size --safetensors-prefetch-num-threads --scheduler-cls
    --scheduler-reserve-full-isl --scheduling-policy --served-model-name --show-hidden-metrics-for-version
    --shutdown-timeout --skip-mm-profiling --skip-tokenizer-init --sleep-mode-offload-cudagraph
    --sleep-preserve-parameter-names --sparse-indexer-topk-backend --specialize-active-lora
    --sse-keep-alive-interval --ssl-ca-certs --ssl-cert-reqs --ssl-certfile --ssl-ciphers --ssl-keyfile
    --stream-interval --swa-bounded-replay --tokenizer --tokenizer-mode --tokenizer-revision --tokens-only
    --tool-call-parser --tool-parser-plugin --tool-server --tool-strict-level --trust-request-chat-template
    --trust-request-mm-kwargs --ubatch-size --uds --use-fp64-gumbel --use-replayssm --use-tqdm-on-load
    --uvicorn-log-level --version --video-pruning-method --video-pruning-rate --watermark --watermark-config
    --weight-transfer-config --worker-cls --worker-extension-cls -O -ac -asc -dc -dcp -dpa -dpb -dpe -dph -dpl
    -dpm -dpn -dpp -dpr -h -n -pcp -r -v
    """
    ),
)
