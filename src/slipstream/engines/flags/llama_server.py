"""llama-server (llama.cpp): its flags and the types of speculation that it knows."""

from __future__ import annotations

from slipstream.engines.flags.table import Flag, Gone, Table, words

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
DRAFT_TYPES = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
NGRAM_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
NEEDS_DRAFT_MODEL = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")  # draft-mtp may be in the target
SHORTCUTS_WITH_DRAFT = ("--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--spec-default")
DEFAULT_N_MAX, DEFAULT_N_MIN = 3, 0
DEFAULT_NGRAM_MOD_N_MAX, DEFAULT_NGRAM_MOD_N_MIN = 64, 48

_NGRAM_SIZES = tuple(
    Flag(f"--spec-{kind}-{size}", "int", at_least=1, at_most=1024)
    for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
    for size in ("size-n", "size-m")
)
_NGRAM_HITS = tuple(
    Flag(f"--spec-{kind}-min-hits", "int", at_least=1) for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
)
_N_MAX = "--spec-draft-n-max for a draft model, --spec-ngram-mod-n-max for n-grams"
_N_MIN = "--spec-draft-n-min for a draft model, --spec-ngram-mod-n-min for n-grams"
_LOAD_MODE = "--load-mode (auto, none, mmap, mlock, mmap+mlock or dio)"

FLAGS = Table(
    engine="llama-server",
    version="llama.cpp as of xllamacpp 2026.10.11549",
    source="the argument strings in the xllamacpp wheel, and the server's README",
    flags=(
        Flag("--model", aliases=("-m",)),
        Flag("--hf-repo", aliases=("-hf", "-hfr")),
        Flag("--spec-draft-model", aliases=("-md", "--model-draft")),
        Flag("--spec-draft-hf", aliases=("-hfd", "-hfrd", "--hf-repo-draft")),
        Flag("--spec-type", choices=("none", *DRAFT_TYPES, *NGRAM_TYPES), comma=True),
        Flag("--spec-draft-n-max", "int", at_least=0),
        Flag("--spec-draft-n-min", "int", at_least=0),
        Flag("--spec-draft-p-min", "float", aliases=("--draft-p-min",), at_least=0, at_most=1),
        Flag("--spec-draft-p-split", "float", aliases=("--draft-p-split",), at_least=0, at_most=1),
        Flag("--spec-draft-sampling", choices=("greedy", "probabilistic")),
        Flag("--spec-draft-ngl", "int", ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), words=("auto", "all")),
        Flag("--spec-draft-device", aliases=("-devd", "--device-draft")),
        Flag("--spec-draft-threads", "int", aliases=("-td", "--threads-draft")),
        Flag("--spec-draft-threads-batch", "int", aliases=("-tbd", "--threads-batch-draft")),
        Flag("--spec-draft-type-k", aliases=("-ctkd", "--cache-type-k-draft"), choices=CACHE_TYPES),
        Flag("--spec-draft-type-v", aliases=("-ctvd", "--cache-type-v-draft"), choices=CACHE_TYPES),
        Flag("--spec-draft-backend-sampling", "switch"),
        Flag("--no-spec-draft-backend-sampling", "switch"),
        Flag("--spec-draft-cpu-moe", "switch", aliases=("-cmoed", "--cpu-moe-draft")),
        Flag("--spec-draft-n-cpu-moe", "int", aliases=("--spec-draft-ncmoe", "-ncmoed", "--n-cpu-moe-draft")),
        Flag("--spec-ngram-mod-n-min", "int", at_least=0, at_most=1024),
        Flag("--spec-ngram-mod-n-max", "int", at_least=0, at_most=1024),
        Flag("--spec-ngram-mod-n-match", "int", at_least=1, at_most=1024),
        *_NGRAM_SIZES,
        *_NGRAM_HITS,
        Flag("--ctx-size", "int", aliases=("-c",), at_least=0),
        Flag("--gpu-layers", "int", aliases=("-ngl", "--n-gpu-layers"), words=("auto", "all")),
        Flag("--parallel", "int", aliases=("-np",), at_least=-1),
        Flag("--batch-size", "int", aliases=("-b",), at_least=1),
        Flag("--ubatch-size", "int", aliases=("-ub",), at_least=1),
        Flag("--threads", "int", aliases=("-t",)),
        Flag("--cache-type-k", aliases=("-ctk",), choices=CACHE_TYPES),
        Flag("--cache-type-v", aliases=("-ctv",), choices=CACHE_TYPES),
        Flag("--flash-attn", aliases=("-fa",), choices=("on", "off", "auto", "1", "0", "true", "false", "enabled")),
        Flag("--port", "int", at_least=0, at_most=65535),
        Flag("--temp", "float", aliases=("--temperature",), at_least=0),
        Flag("--jinja", "switch"),
        Flag("--metrics", "switch"),
        Flag("--no-warmup", "switch"),
        Flag("--verbose", "switch", aliases=("-v", "--log-verbose")),
    ),
    gone=(
        *(Gone(name, _N_MAX) for name in ("--draft", "--draft-n", "--draft-max")),
        *(Gone(name, _N_MIN) for name in ("--draft-min", "--draft-n-min")),
        Gone(
            "--spec-ngram-size-n", "--spec-ngram-simple-size-n, or that of the type in use, or --spec-ngram-mod-n-match"
        ),
        Gone("--spec-ngram-size-m", "--spec-ngram-simple-size-m, or that of the type in use"),
        Gone("--spec-ngram-min-hits", "--spec-ngram-simple-min-hits, or that of the type in use"),
        Gone("--spec-ngram-check-rate", "nothing instead: remove it"),
        *(
            Gone(name, "nothing instead: the draft uses the target's context (-c)")
            for name in ("-cd", "--ctx-size-draft")
        ),
        *(Gone(name, "nothing instead: remove it") for name in ("--spec-replace", "--draft-reuse")),
        *(Gone(name, _LOAD_MODE) for name in ("--mlock", "--mmap", "--no-mmap", "-dio", "--direct-io")),
    ),
    others=words(
        """
    --fim-qwen-7b-spec --fim-qwen-14b-spec --spec-default
    --adaptive-decay --adaptive-target --agent --alias --api-key --api-key-file --api-prefix --attention
    --backend-sampling --cache-idle-slots --cache-list --cache-prompt --cache-ram --cache-reuse --chat-template
    --chat-template-file --chat-template-kwargs --check-tensors --checkpoint-min-step --color --completion-bash
    --cont-batching --context-shift --control-vector --control-vector-layer-range --control-vector-scaled
    --conversation --cors-credentials --cors-headers --cors-methods --cors-origins --cpu-mask --cpu-mask-batch
    --cpu-mask-batch-draft --cpu-mask-draft --cpu-moe --cpu-range --cpu-range-batch --cpu-range-batch-draft
    --cpu-range-draft --cpu-strict --cpu-strict-batch --cpu-strict-batch-draft --cpu-strict-draft
    --ctx-checkpoints --defrag-thold --device --dflash --display-prompt --docker-repo --dry-allowed-length
    --dry-base --dry-multiplier --dry-penalty-last-n --dry-sequence-breaker --dynatemp-exp --dynatemp-range
    --eagle3 --embd-gemma-default --embd-normalize --embedding --embeddings --escape --file
    --fim-qwen-1.5b-default --fim-qwen-30b-default --fim-qwen-3b-default --fim-qwen-7b-default --fit --fit-ctx
    --fit-target --frequency-penalty --gpt-oss-120b-default --gpt-oss-20b-default --grammar --grammar-file
    --grp-attn-n --grp-attn-w --help --hf-file --hf-token --host --ignore-eos --image-max-tokens
    --image-min-tokens --in-prefix --in-prefix-bos --in-suffix --interactive --interactive-first --json-schema
    --json-schema-file --keep --kv-offload --kv-unified --kv-unified-per-slot --lazy-mode --list-devices
    --load-mode --log-colors --log-disable --log-file --log-jsonl --log-prefix --log-prompts-dir --log-timestamps
    --log-verbosity --logit-bias --lookup-cache-dynamic --lookup-cache-static --lora --lora-init-without-apply
    --lora-scaled --main-gpu --mcp-servers-config --mcp-servers-json --media-path --min-p --mirostat
    --mirostat-ent --mirostat-lr --mmproj --mmproj-auto --mmproj-device --mmproj-offload --mmproj-url --model-url
    --models-autoload --models-dir --models-max --models-preset --moe-cache-mib --mtmd-batch-max-tokens --mtp
    --multiline-input --n-cpu-ffn --n-cpu-moe --n-predict --no-agent --no-cache-idle-slots --no-cache-prompt
    --no-cont-batching --no-context-shift --no-conversation --no-cors-credentials --no-display-prompt --no-escape
    --no-host --no-jinja --no-kv-offload --no-kv-unified --no-log-jsonl --no-log-prefix --no-log-timestamps
    --no-mmproj --no-mmproj-auto --no-mmproj-offload --no-models-autoload --no-op-offload --no-perf
    --no-prefill-assistant --no-reasoning-preserve --no-repack --no-show-timings --no-skip-chat-parsing --no-slots
    --no-ui --no-ui-mcp-proxy --no-webui --no-webui-mcp-proxy --numa --offline --op-offload --override-kv
    --override-tensor --override-tensor-draft --path --perf --poll --poll-batch --poll-batch-draft --poll-draft
    --pooling --predict --prefill-assistant --presence-penalty --prio --prio-batch --prio-batch-draft --prio-draft
    --prompt --prompt-cache --prompt-cache-all --prompt-cache-ro --props --reasoning --reasoning-budget
    --reasoning-budget-message --reasoning-effort --reasoning-format --reasoning-preserve --repack --repeat-last-n
    --repeat-penalty --rerank --reranking --reuse-port --reverse-prompt --rope-freq-base --rope-freq-scale
    --rope-scale --rope-scaling --rpc --sampler-seq --samplers --sampling-seq --seed --sequences --show-timings
    --simple-io --single-turn --skip-chat-parsing --sleep-idle-seconds --slot-prompt-similarity --slot-save-path
    --slots --spec-draft-cpu-mask --spec-draft-cpu-mask-batch --spec-draft-cpu-range --spec-draft-cpu-range-batch
    --spec-draft-cpu-strict --spec-draft-cpu-strict-batch --spec-draft-override-tensor --spec-draft-poll
    --spec-draft-poll-batch --spec-draft-prio --spec-draft-prio-batch


    --spec-synth-len --spec-synth-rates --special --split-mode --spm-infill --sse-ping-interval --ssl-cert-file
    --ssl-key-file --swa-checkpoints --swa-full --system-prompt --system-prompt-file --tags --tensor-split
    --threads-batch --threads-http --timeout --tools --tools-runtime --top-k --top-n-sigma --top-nsigma --top-p
    --typical --typical-p --ui --ui-config --ui-config-file --ui-mcp-proxy --usage --verbose-prompt --verbosity
    --version --video-ffmpeg-dir --video-fps --video-timestamp-interval --vision-gemma-12b-default
    --vision-gemma-4b-default --warmup --webui --webui-config --webui-config-file --webui-mcp-proxy
    --xtc-probability --xtc-threshold --yarn-attn-factor --yarn-beta-fast --yarn-beta-slow --yarn-ext-factor
    --yarn-orig-ctx -C -Cb -Cbd -Cd -Cr -Crb -Crbd -Crd -a -ag -bs -cb -cl -cmoe -cms -cnv -co -cram -ctxcp -dev
    -dr -dt -e -f -fit -fitc -fitt -gan -gaw -h -hff -hft -i -if -j -jf -kvo -kvu -l -lcd -lcs -lm -lv -lzm -mg
    -mli -mm -mmdev -mmu -mu -n -ncffn -ncmoe -nkvo -no-ag -no-cnv -no-kvu -nocb -nr -ns -ot -otd -p -r -rea -s
    -sm -sp -sps -st -sys -sysf -tb -to -ts
    """
    ),
)
