"""llama-server (llama.cpp): its flags and the types of speculation that it knows."""

from __future__ import annotations

from pathlib import Path

from slipstream.parsing.flag_table import Flag, Gone, Table, names_in

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
DRAFT_TYPES = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
NGRAM_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
NEEDS_DRAFT_MODEL = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")  # draft-mtp may be in the target
DRAFT_SHORTCUTS = ("--fim-qwen-7b-spec", "--fim-qwen-14b-spec")  # set a draft model, but no type
DEFAULT_N_MAX, DEFAULT_N_MIN = 3, 0
DEFAULT_NGRAM_SIZE_N, DEFAULT_NGRAM_SIZE_M = 12, 48
DEFAULT_NGRAM_MOD_N_MAX, DEFAULT_NGRAM_MOD_N_MIN = 64, 48

# What llama-speculative was given, for a llama-server with a draft model: today's names, and how they are written.
SUCCESSORS = {
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max"), "--spec-draft-n-max"),
    **dict.fromkeys(("--draft-min", "--draft-n-min"), "--spec-draft-n-min"),
}
SERVER_FLAGS = {
    "--model": "-m",
    "--hf-repo": "-hf",
    "--spec-draft-model": "-md",
    "--spec-draft-hf": "-hfd",
    "--spec-draft-n-max": "--spec-draft-n-max",
    "--spec-draft-n-min": "--spec-draft-n-min",
    "--spec-draft-p-min": "--spec-draft-p-min",
    "--ctx-size": "-c",
    "--gpu-layers": "-ngl",
    "--spec-draft-ngl": "-ngld",
    "--flash-attn": "-fa",
    "--threads": "-t",
}

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
        *(Flag(name, "switch") for name in DRAFT_SHORTCUTS),
        Flag("--spec-default", "switch"),
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
    others=names_in(Path(__file__).with_name("flags.txt")),
)
