"""SGLang: the flags of `sglang serve` and `python -m sglang.launch_server`, and its speculative algorithms."""

from __future__ import annotations

from slipstream.engines.flags.table import Flag, Gone, Table, words

TREE_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
ALGORITHMS = (*TREE_ALGORITHMS, "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP", "NONE")
NEEDS_DRAFT_MODEL = ("EAGLE3", "STANDALONE", "DFLASH")  # EAGLE and NEXTN may find their head in the target
WITHOUT_DRAFT_MODEL = ("NGRAM",)
REJECTION_SAMPLING = ("EAGLE", "EAGLE3", "NEXTN")
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
QUANTISATIONS = (
    *("awq", "fp8", "mxfp8", "gptq", "gptq_marlin", "awq_marlin", "bitsandbytes", "gguf", "modelopt", "modelopt_fp8"),
    *("modelopt_fp4", "nvfp4_online", "modelopt_mixed", "petit_nvfp4", "w8a8_int8", "w8a8_fp8", "moe_wna16", "w4afp8"),
    *("mxfp4", "auto-round", "auto-round-int8", "compressed-tensors", "modelslim", "mxfp_w4a8", "quark"),
    *("quark_int4fp8_moe", "quark_mxfp4", "mlx_q4", "mlx_q8", "unquant", "humming"),
)
_S = "--speculative"

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
        Flag("--dp-size", "int", aliases=("--data-parallel-size", "--dp"), at_least=1),
        Flag("--mem-fraction-static", "float", at_least=0.01, at_most=1),
        Flag("--context-length", "int", at_least=1),
        Flag("--max-running-requests", "int", at_least=1),
        Flag("--page-size", "int", at_least=1),
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
    ),
    others=words(
        """
    --abort-on-priority-when-disabled --admin-api-key --allow-auto-truncate --allowed-media-domains --api-key
    --asr-max-buffer-seconds --asr-max-concurrent-sessions --attention-backend --attention-context-parallel-size
    --attention-data-parallel-size --attn-cp-size --attn-dp-size --base-gpu-id --batch-notify-size
    --boundary-reduction --bucket-e2e-request-latency --bucket-inter-token-latency --bucket-time-to-first-token
    --c128-page-size --chat-template --checkpoint-engine-wait-weights-before-ready --chunked-prefill-size
    --completion-template --config --constrained-json-disable-any-whitespace --constrained-json-max-whitespace-cnt
    --constrained-json-whitespace-pattern --context-bucket --cp-strategy --cpu-offload-gb --crash-dump-folder
    --cuda-graph-backend-decode --cuda-graph-backend-prefill --cuda-graph-bs-decode --cuda-graph-bs-prefill
    --cuda-graph-config --cuda-graph-max-bs-decode --cuda-graph-max-bs-prefill --cuda-graph-max-seq-len-prefill
    --cuda-graph-prefill-max-context --custom-sigquit-handler --custom-weight-loader --dcp-comm-backend
    --dcp-replicate-q-proj --dcp-size --debug-cuda-graph --debug-tensor-dump-input-file --debug-tensor-dump-layers
    --debug-tensor-dump-output-folder --decode-attention-backend --decode-context-parallel-size
    --decode-log-interval --decoupled-spec-bind-endpoint --decoupled-spec-connect-endpoints --decoupled-spec-rank
    --decoupled-spec-role --decrypted-config-file --decrypted-draft-config-file --deepep-config
    --deepep-dispatcher-output-dtype --deepep-mode --deepep-v2-mode --default-chat-template-kwargs
    --default-priority-value --delete-ckpt-after-loading --detokenizer-worker-num --device
    --disable-aiter-allreduce-fusion-in-decode --disable-aiter-allreduce-fusion-in-prefill
    --disable-attn-tp-gather --disable-chunked-prefix-cache --disable-cuda-graph-padding
    --disable-custom-all-reduce --disable-decode-cuda-graph --disable-fast-image-processor
    --disable-flashinfer-autotune --disable-flashinfer-cutlass-moe-fp4-allgather --disable-hybrid-swa-memory
    --disable-outlines-disk-cache --disable-prefill-cuda-graph --disable-priority-preemption
    --disable-shared-experts-fusion --disable-tokenizer-batch-decode --disaggregation-bootstrap-port
    --disaggregation-decode-allocation-policy --disaggregation-decode-enable-offload-kvcache
    --disaggregation-decode-enable-radix-cache --disaggregation-decode-extra-slots
    --disaggregation-decode-host-receive-threshold --disaggregation-decode-polling-interval
    --disaggregation-decode-retraction-backup --disaggregation-enable-kv-checksum --disaggregation-ib-device
    --disaggregation-mode --disaggregation-transfer-backend --dist-init-addr --dist-timeout --dllm-algorithm
    --dllm-algorithm-config --dllm-fdfo --download-dir --dsa-decode-backend --dsa-paged-mqa-logits-backend
    --dsa-prefill-backend --dsa-topk-backend --dsa-triton-union --dsv4-attn-backend --dsv4-prefill-backend
    --dwdp-size --dynamic-batch-tokenizer-batch-size --dynamic-batch-tokenizer-batch-timeout --elastic-ep-backend
    --elastic-ep-initial-size --elastic-ep-join-mode --elastic-ep-join-rank-offset --elastic-ep-scale-timeout
    --enable-adaptive-dispatch-to-encoder --enable-aiter-allreduce-fusion --enable-amd-monokernel
    --enable-attn-tp-input-scattered --enable-broadcast-mm-inputs-process --enable-cache-report
    --enable-cp-decode-attn-tp --enable-cudagraph-gc --enable-custom-logit-processor
    --enable-decoder-swa-bounded-replay --enable-deepseek-v4-fp4-indexer --enable-dense-mlp-attn-tp
    --enable-dp-attention-local-control-broadcast --enable-dp-lm-head --enable-draft-weights-cpu-backup
    --enable-dsa-cache-layer-split --enable-dsa-fused-indexer --enable-dynamic-batch-tokenizer
    --enable-dynamic-chunking --enable-elastic-expert-backup --enable-encoder-swa-bounded-replay --enable-eplb
    --enable-flashinfer-allreduce-fusion --enable-flexkv --enable-forward-pass-metrics --enable-fp32-lm-head
    --enable-fused-moe-sum-all-reduce --enable-fused-qk-norm-rope --enable-hicache --enable-hierarchical-cache
    --enable-hisparse --enable-http-worker-reuseport --enable-http2 --enable-int8-mamba-checkpoint
    --enable-kv-cache-sharding --enable-layernorm-sp --enable-layerwise-nvtx-marker --enable-lean-attention
    --enable-linear-replayssm --enable-linear-replayssm-spec --enable-linker-mla-dedup --enable-lmcache
    --enable-lora --enable-lora-overlap-loading --enable-mamba-cache-stochastic-rounding
    --enable-megamoe-for-layernorm-sp --enable-memory-saver --enable-metrics --enable-metrics-for-all-schedulers
    --enable-mfu-metrics --enable-mis --enable-mixed-chunk --enable-mm-global-cache --enable-mscclpp
    --enable-multimodal --enable-nccl-nvls --enable-nvidia-megakernel --enable-p2p-check
    --enable-page-major-kv-layout --enable-paged-experts --enable-pd-role-switch --enable-pdmux
    --enable-precise-embedding-interpolation --enable-prefill-cp --enable-prefill-delayer --enable-prefix-mm-cache
    --enable-priority-scheduling --enable-profile-cuda-graph --enable-quant-communications
    --enable-request-time-stats-logging --enable-response-store --enable-return-aux-hidden-states
    --enable-return-hidden-states --enable-return-indexer-topk --enable-return-routed-experts
    --enable-scattered-sconv --enable-session-radix-cache --enable-shared-experts-attn-tp
    --enable-single-batch-overlap --enable-ssl-refresh --enable-streaming-session --enable-strict-thinking
    --enable-symm-mem --enable-tf32-matmul --enable-tokenizer-batch-encode --enable-torch-compile
    --enable-torch-compile-debug-mode --enable-torch-symm-mem --enable-tp-lm-head-all-to-all --enable-trace
    --enable-two-batch-overlap --enable-unified-cache-external-linker --enable-unified-memory
    --enable-w4a4-mxfp4-megamoe --enable-waterfill --enable-watermark --enable-weights-cpu-backup
    --encoder-bootstrap-port --encoder-only --encoder-register-urls --encoder-transfer-backend --encoder-urls
    --enforce-disable-flashinfer-allreduce-fusion --enforce-shared-experts-fusion --engine-info-bootstrap-port
    --ep --ep-dispatch-algorithm --ep-num-redundant-experts --ep-size --eplb-algorithm
    --eplb-min-rebalancing-utilization-threshold --eplb-rebalance-layers-per-chunk --eplb-rebalance-num-iterations
    --expert-balancedness-report-mode --expert-distribution-recorder-buffer-size
    --expert-distribution-recorder-mode --expert-parallel-size --experts-shared-outer-loras
    --export-metrics-to-file --export-metrics-to-file-dir --extra-metric-labels --fastapi-root-path
    --file-storage-path --flashinfer-a2a-dispatch-type --flashinfer-allreduce-fusion-backend
    --flashinfer-autotune-skip-ops --flashinfer-mla-disable-ragged --flashinfer-mxfp4-moe-precision
    --flexkv-config-file --forward-hooks --forward-pass-metrics-ipc-name --forward-pass-metrics-worker-id
    --fp4-gemm-backend --fp8-gemm-backend --fuseep-mode --gated-launch-port --gc-threshold
    --gc-warning-threshold-secs --generation-tokens-buckets --gpu-id-step --grammar-backend
    --grpc-http-sidecar-port --grpc-mode --grpc-port --grpc-response-timeout-secs --help --hf-chat-template-name
    --hicache-host-memory-fraction --hicache-host-memory-mode --hicache-io-backend --hicache-mem-layout
    --hicache-ratio --hicache-size --hicache-storage-backend --hicache-storage-backend-extra-config
    --hicache-storage-prefetch-policy --hicache-storage-prefetch-retry-max-attempts
    --hicache-storage-prefetch-retry-poll-interval --hicache-write-policy
    --hierarchical-sparse-attention-extra-config --hisparse-config --host --http2-initial-connection-window-size
    --http2-max-concurrent-streams --image-processor-backend --incremental-streaming-output --init-expert-location
    --int8-mamba-ckpt-size --is-embedding --json-model-override-args --kt-cpuinfer
    --kt-max-deferred-experts-per-token --kt-method --kt-num-gpu-experts --kt-threadpool-count --kt-weight-path
    --kv-cache-dtype --kv-canary --kv-canary-real-data --kv-canary-sweep-interval --kv-events-config
    --language-model-only --language-only --limit-mm-data-per-request --linear-attn-backend
    --linear-attn-decode-backend --linear-attn-prefill-backend --linear-attn-verify-backend
    --linear-replayssm-cache-len --lmcache-config-file --load-balance-method --load-format --load-publish-endpoint
    --load-snapshot-publish-interval --log-level --log-level-http --log-requests --log-requests-format
    --log-requests-level --log-requests-target --lora-backend --lora-drain-wait-threshold --lora-eviction-policy
    --lora-paths --lora-strict-loading --lora-target-modules --lora-use-virtual-experts --mamba-backend
    --mamba-cache-philox-rounds --mamba-full-memory-ratio --mamba-max-states-per-path --mamba-radix-cache-strategy
    --mamba-ssm-dtype --mamba-track-interval --max-ep-size --max-loaded-loras --max-lora-chunk-size
    --max-lora-rank --max-loras-per-batch --max-mamba-cache-size --max-prefill-tokens --max-queued-requests
    --max-total-tokens --media-url-max-file-size-mb --min-free-slots-delay --mlx-enable-sampling
    --mm-attention-backend --mm-enable-dp-encoder --mm-feature-transport --mm-global-cache-backend
    --mm-io-worker-num --mm-preprocess-cache-size-mb --mm-process-config --mm-processor-worker-num
    --model-checksum --model-config-parser --model-impl --model-loader-extra-config --modelexpress-config
    --modelopt-checkpoint-restore-path --modelopt-checkpoint-save-path --modelopt-export-path --modelopt-quant
    --moe-a2a-backend --moe-data-parallel-size --moe-dense-tp-size --moe-dp-size --moe-runner-backend
    --mooncake-ib-device --msprobe-dump-config --nccl-init-addr --nccl-port --nnodes --node-rank
    --num-continuous-decode-steps --num-reserved-decode-tokens --numa-node --offload-group-size --offload-mode
    --offload-num-in-group --offload-prefetch-step --optimistic-prefill-attempts --otlp-service-name
    --otlp-traces-endpoint --paged-experts-num-resident --pdmux-config-path --pipeline-parallel-size
    --ple-offload-backend --ple-offload-dir --ple-offload-embedding --pp-async-batch-depth
    --pp-max-micro-batch-size --pp-size --pre-warm-nccl --preferred-sampling-params --prefill-attention-backend
    --prefill-decode-interval --prefill-decode-interval-min-bs --prefill-delayer-forward-passes-buckets
    --prefill-delayer-max-delay-ms --prefill-delayer-max-delay-passes --prefill-delayer-queue-min-ratio
    --prefill-delayer-token-usage-low-watermark --prefill-delayer-wait-seconds-buckets
    --prefill-kv-cache-dequant-dtype --prefill-max-requests --prefill-only-disable-kv-cache
    --priority-scheduling-preemption-threshold --prompt-tokens-buckets --qsa-indexer-dtype
    --quantization-param-path --quantize-and-serve --radix-cache-backend --radix-eviction-policy
    --radix-eviction-policy-config --random-seed --reasoning-parser --remote-instance-weight-loader-backend
    --remote-instance-weight-loader-seed-instance-ip --remote-instance-weight-loader-seed-instance-service-port
    --remote-instance-weight-loader-send-weights-group-ports
    --remote-instance-weight-loader-start-seed-via-transfer-engine --retraction-policy
    --return-aux-hidden-state-layer-ids --return-hidden-states-mode --return-input-ids --return-output-ids
    --revision --rl-on-policy-target --rl-quant-profile --sampling-backend --sampling-defaults
    --sampling-mask-max-tokens --schedule-conservativeness --schedule-low-priority-values-first --schedule-policy
    --scheduler-recv-interval --served-model-name --shared-experts-tp-size --show-time-cost --sidecar
    --sidecar-args --skip-server-warmup --skip-tokenizer-init --sleep-on-idle --sm-group-num --smg-grpc-mode
    --smg-http-sidecar-port --soft-watchdog-timeout --spec-trace-dir --speculative-adaptive-config
    --speculative-domino-candidate-pool-size --speculative-draft-attention-backend --speculative-draft-load-format
    --speculative-dsa-topk-backend --speculative-dspark-align-verify-tokens-to-graph-tier
    --speculative-dspark-confidence-sts-path --speculative-dspark-sps-table-path
    --speculative-enable-w4a4-mxfp4-megamoe --speculative-moe-a2a-backend --speculative-moe-runner-backend
    --speculative-ngram-external-corpus-max-tokens --speculative-ngram-external-corpus-path --ssl-ca-certs
    --ssl-certfile --ssl-keyfile --ssl-keyfile-password --startup-weight-load-mode --stat-loggers
    --stream-interval --stream-response-default-include-usage --strip-thinking-cache --swa-full-tokens-ratio
    --swa-prefix-tails --tbo-token-distribution-threshold --tokenizer-backend
    --tokenizer-metrics-allowed-custom-labels --tokenizer-metrics-custom-labels-header --tokenizer-mode
    --tokenizer-path --tokenizer-worker-num --tool-call-parser --tool-server --torch-compile-max-bs
    --trace-modules --triton-attention-num-kv-splits --triton-attention-reduce-in-fp32
    --triton-attention-split-tile-size --trust-mm-content-hashes --trust-request-chat-template
    --unified-cache-external-linker-backend --unified-cache-external-linker-config --use-ray
    --uvicorn-access-log-exclude-prefixes --warmups --watchdog-timeout --watermark-config --weight-cache-mode
    --weight-cache-socket --weight-cache-timeout --weight-loader-disable-mmap
    --weight-loader-drop-cache-after-load --weight-loader-prefetch-checkpoints
    --weight-loader-prefetch-num-threads --weight-version -h
    """
    ),
)
