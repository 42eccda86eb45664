"""Options of commands, each described once, by the field that it fills (see `groups`)."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

ENGINES_HELP = "slipstream (its server), vllm, llama-server, sglang, tabbyapi or ollama"
ALL_ENGINES_HELP = (
    "slipstream, llama-server (llama.cpp, llama-cpp-python), vllm, sglang, tabbyapi (exllama), ollama, transformers."
)
MODEL_HELP = (
    "The model: a folder of safetensors, a .gguf file, a hub id (ORG/NAME, or ORG/NAME:FILE.gguf), "
    "ollama:NAME[:TAG], or the built-in smollm2-135m."
)


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """`--flag` (and `-f`), its help text, and its help panel."""

    flags: str
    help: str
    panel: str | None = None
    more: dict[str, Any] | None = None  # for typer

    def info(self) -> Any:
        return typer.Option(*self.flags.split(), help=self.help, rich_help_panel=self.panel, **(self.more or {}))


OPTIONS: dict[str, OptionSpec | None] = {
    # models and speculation
    "model": OptionSpec("--model -m", MODEL_HELP, "Models", {"show_default": "slipstream.yaml, or smollm2-135m"}),
    "draft": OptionSpec(
        "--draft -d", "A smaller model that drafts, or the folder of a draft head; named the same way.", "Models"
    ),
    "drafter": OptionSpec(
        "--drafter",
        "own (the default), none (plain decoding), ngram, suffix, model, head, early-exit, translate, grammar, "
        "chained:A+B, or a drafter of an installed package. Options in brackets: 'model(p_min=0.3,n_parallel=3)'. "
        "own is, with --draft: model, translate or head, depending on the draft; without: the model's own head if it "
        "has one (on a CPU chained:suffix+head), else suffix.",
        "Speculation",
    ),
    "policy": OptionSpec(
        "--policy",
        "How many tokens to draft: auto (as many as pay off, by measured cost and acceptance; the default), auto(N): "
        "at most N, fixed(N): always N, or the name of an installed package's policy.",
        "Speculation",
    ),
    # the machine
    "device": OptionSpec("--device", "auto, cpu, cuda, cuda:1 …", "Machine"),
    "dtype": OptionSpec(
        "--dtype",
        "auto (quantised weights stay quantised where there are kernels for them; else fp32 on the CPU, bf16 on a GPU, "
        "fp16 on a GPU without bf16), fp32, bf16, fp16.",
        "Machine",
    ),
    "context_length": OptionSpec("--context", "Tokens of prompt and answer; at most the model's own.", "Machine"),
    "threads": OptionSpec(
        "--threads", "CPU threads. Default: torch's own number; llamacpp: one per physical core.", "Machine"
    ),
    "exact": OptionSpec(
        "--exact",
        "Make the text bit-identical to plain decoding; slower on a GPU and with llama.cpp. With the CPU kernels it "
        "always is.",
        "Speculation",
    ),
    "backend": OptionSpec(
        "--backend",
        "auto: torch, or llamacpp (if installed) for GGUF files that torch can't run or runs more slowly; torch; "
        "llamacpp.",
        "Machine",
    ),
    "gpu_layers": OptionSpec("--gpu-layers", "llamacpp: layers on the GPU; 0 none, -1 all.", "Machine"),
    "activations": OptionSpec(
        "--activations",
        "torch, quantised weights: precision of activations. auto, int8, or fp (unpacks the weights; slower, more "
        "memory).",
        "Machine",
    ),
    "kernels": OptionSpec(
        "--kernels",
        "torch on a GPU: triton, or auto (CUDA C++ kernels where they measured faster at the first start).",
        "Machine",
    ),
    "kv_type": OptionSpec(
        "--kv-type", "Type of the KV cache: auto, q8_0 (8 bits); llamacpp: also f32, f16, q4_0.", "Machine"
    ),
    # sampling
    "temperature": OptionSpec("--temperature -t", "0 is greedy.", "Sampling"),
    "temperatures": OptionSpec("--temperatures", "Separated by commas; 0 is greedy.", "Sampling"),
    "seed": OptionSpec("--seed -s", "The same seed gives the same text.", "Sampling"),
    "top_k": OptionSpec("--top-k", "Sample only from the K most likely tokens; 0 is off.", "Sampling"),
    "top_p": OptionSpec(
        "--top-p", "Sample only from the most likely tokens that together reach probability P; 1 is off.", "Sampling"
    ),
    "min_p": OptionSpec(
        "--min-p", "Sample only tokens with at least P times the probability of the most likely; 0 is off.", "Sampling"
    ),
    "repetition_penalty": OptionSpec(
        "--repetition-penalty", "Penalise tokens that already occur in prompt or answer; 1 is off.", "Sampling"
    ),
    "presence_penalty": OptionSpec(
        "--presence-penalty", "Penalise tokens that already occur in the answer; 0 is off.", "Sampling"
    ),
    "frequency_penalty": OptionSpec(
        "--frequency-penalty", "Penalise tokens by how often they occur in the answer; 0 is off.", "Sampling"
    ),
    "logit_bias": OptionSpec("--logit-bias", "Added to a token's logit.", "Sampling", {"metavar": "ID=BIAS"}),
    # answers and prompts
    "max_tokens": OptionSpec("--max-tokens -n", "Maximum tokens of the answer.", "Answer"),
    "stop": OptionSpec("--stop", "Stop the answer before this text; may be repeated.", "Answer"),
    "ignore_eos": OptionSpec("--ignore-eos", "Continue after the model's end token.", "Answer"),
    "raw": OptionSpec("--raw", "Use no chat template: continue the prompt unchanged.", "Answer"),
    "system": OptionSpec("--system", "A system message.", "Answer"),
    "prompts": OptionSpec(
        "--prompts",
        "A file of prompts: Spec-Bench, HumanEval or messages as JSON lines, or text. Default: the project's own.",
        "Prompts",
    ),
    "limit": OptionSpec("--limit", "Number of prompts, evenly over their kinds; 0 uses all.", "Prompts"),
    # measuring
    "passes": OptionSpec("--passes", "How often each drafter runs each prompt.", more={"min": 1}),
    "warm": OptionSpec("--warm", "Keep the prompt cache between answers."),
    "repeat_prompts": OptionSpec(
        "--repeat-prompts", "Let drafters keep what they learned from a prompt for its next run."
    ),
    "random_weights": OptionSpec(
        "--random-weights", "Random weights in this shape instead of a model, for example llama-8b: synthetic figures."
    ),
    "random_draft": OptionSpec(
        "--random-draft", "Random weights in this shape for the draft, for example llama-1b: synthetic figures."
    ),
    "synthetic_acceptance": OptionSpec(
        "--synthetic-acceptance", "Accept each drafted token with this probability: synthetic figures."
    ),
    "seconds": OptionSpec("--seconds", "The time budget.", more={"min": 5}),
    "drafts": OptionSpec("--draft -d", "A draft model to try; may be repeated.", "Models"),
    # other engines
    "engine": OptionSpec(
        "--engine -e", f"Use this engine instead of Slipstream's own: {ENGINES_HELP}; openai with --url.", "Engine"
    ),
    "program": OptionSpec("--program", "The engine's executable, if it is not on PATH.", "Engine"),
    "engine_args": OptionSpec(
        "--engine-args", "More arguments for the engine, as on its command line: '--threads 4'.", "Engine"
    ),
    "start_limit": OptionSpec("--start-limit", "Seconds to wait for the engine to start.", "Engine", {"min": 1}),
    "url": OptionSpec("--url", "Use an engine that is already running, instead of starting one.", "Engine"),
    "plain_url": OptionSpec("--plain-url", "With --url: the same engine without speculation.", "Engine"),
    "api_key": OptionSpec(
        "--api-key",
        "API key of the engine. Other users can read a command line: set the variable or use --api-key-file instead.",
        "Engine",
        {"envvar": "SLIPSTREAM_API_KEY"},
    ),
    "api_key_file": OptionSpec("--api-key-file", "A file with the API key.", "Engine"),
    "streams": OptionSpec("--streams", "Requests at the same time. Default: the engine's own.", more={"min": 1}),
    "one_at_a_time": OptionSpec(
        "--one-at-a-time",
        "With --engine: start the two instances one after the other instead of side by side.",
        "Engine",
    ),
    "context": OptionSpec("--context", "Tokens of prompt and answer; at most the model's own.", "Machine"),
    "draft_streams": OptionSpec(
        "--draft-streams", "vLLM: turn speculation off with more requests than this.", more={"min": 1}
    ),
    "host": OptionSpec("--host", "Address to listen on; 0.0.0.0 allows other machines to connect."),
    "port": OptionSpec("--port", "Default: the engine's own.", more={"min": 1}),
    "tensor_parallel": OptionSpec("--tensor-parallel", "GPUs that share every layer."),
    "pipeline_parallel": OptionSpec("--pipeline-parallel", "Groups of layers, each on its own GPUs or machine."),
    "nodes": OptionSpec("--nodes", "Machines (vLLM with Ray).", more={"min": 1}),
    "smoke": OptionSpec("--smoke/--no-smoke", "First compare a few answers with those of plain decoding."),
    "force": OptionSpec(
        "--force", "Start even if the doctor has a blocking finding, and keep an engine that drafts nothing."
    ),
    "detach": OptionSpec("--detach", "Leave it running.", "Detached engines"),
}

DRAFTERS = OptionSpec(  # of commands that compare drafters
    "--drafter",
    "Drafters to compare, separated by commas: ngram,chained:suffix+head. Default: ngram, suffix, and with --draft "
    "model or translate, else the model's own head if it has one.",
    "Speculation",
)
ENGINE_DRAFTER = OptionSpec(
    "--drafter",
    "The engine's method, or a Slipstream drafter that it also has; none is plain decoding. "
    "Default: slipstream.yaml, a draft model with --draft, else n-grams if the engine has them (slipstream: own).",
    "Speculation",
)
ENGINE_POLICY = OptionSpec(
    "--policy",
    "fixed(N) drafts N tokens per step; auto is the engine's own length, or a common one if it has none.",
    "Speculation",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.", rich_help_panel="Output")]
Tint = Annotated[bool, typer.Option("--tint", help="Colour the tokens that were drafted.", rich_help_panel="Output")]


def shown_bytes(num_bytes: int) -> str:
    """5.2 GB, 98 MB, 12 kB, 7 B."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}" if num_bytes < 10 * size else f"{num_bytes / size:.0f} {unit}"
    return f"{num_bytes} B"


def command_line() -> str:
    """The command line, for the record, without keys."""
    from slipstream.engines.secrets import redacted

    return shlex.join(redacted(["slipstream", *sys.argv[1:]]))
