"""Options of commands, each described once, by the field that it fills (see `groups`)."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

ENGINES_HELP = "vllm, llama-server, sglang, tabbyapi or ollama"
MODEL_HELP = (
    "The model that answers: a folder of safetensors, a .gguf file, a hub id (org/name), ollama:NAME:TAG, "
    "or the built-in smollm2-135m."
)


@dataclass(frozen=True, slots=True)
class Option:
    """`--flag` (and `-f`), what help says of it, and the panel it is shown in."""

    flags: str
    help: str
    panel: str | None = None
    more: dict[str, Any] | None = None  # for typer

    def info(self) -> Any:
        return typer.Option(*self.flags.split(), help=self.help, rich_help_panel=self.panel, **(self.more or {}))


OPTIONS: dict[str, Option | None] = {
    # models and speculation
    "model": Option("--model -m", MODEL_HELP, "Models", {"show_default": "slipstream.yaml, or smollm2-135m"}),
    "draft": Option("--draft -d", "A smaller model that drafts, named the same way.", "Models"),
    "drafter": Option(
        "--drafter",
        "none (plain decoding), ngram, suffix, model, early-exit, translate, or chained:A,B. Options in brackets: "
        "'model(p_min=0.3,n_parallel=3)'. Default: model with --draft, else suffix.",
        "Speculation",
    ),
    "policy": Option(
        "--policy",
        "How much to draft: auto (as much as pays, by measured cost and acceptance; the default), auto(N), fixed(N).",
        "Speculation",
    ),
    # the machine
    "device": Option("--device", "auto, cpu, cuda, cuda:1 …", "Machine"),
    "dtype": Option("--dtype", "auto (fp32 on the CPU, bf16 on a GPU), fp32, bf16, fp16.", "Machine"),
    "context_length": Option("--context", "Tokens of prompt and answer; at most the model's own.", "Machine"),
    "threads": Option("--threads", "CPU threads; default: all cores.", "Machine"),
    "exact": Option("--exact", "Bit-identical to plain decoding, at any price in speed.", "Speculation"),
    "backend": Option(
        "--backend",
        "auto (GGUF files go to llamacpp where it is installed and there is no GPU for torch), torch, llamacpp.",
        "Machine",
    ),
    "gpu_layers": Option("--gpu-layers", "llamacpp: layers on the GPU; 0 none, -1 all.", "Machine"),
    "kv_type": Option("--kv-type", "llamacpp: keys and values as auto, f32, f16, q8_0, q4_0.", "Machine"),
    # sampling
    "temperature": Option("--temperature -t", "0 is greedy.", "Sampling"),
    "temperatures": Option("--temperatures", "Separated by commas; 0 is greedy.", "Sampling"),
    "seed": Option("--seed -s", "The same seed gives the same text.", "Sampling"),
    "top_k": Option("--top-k", "Only the K likeliest; 0 is off.", "Sampling"),
    "top_p": Option("--top-p", "The likeliest that reach P together; 1 is off.", "Sampling"),
    "min_p": Option("--min-p", "At least P times the likeliest; 0 is off.", "Sampling"),
    "repetition_penalty": Option("--repetition-penalty", "Over prompt and answer; 1 is off.", "Sampling"),
    "presence_penalty": Option("--presence-penalty", "Over the answer; 0 is off.", "Sampling"),
    "frequency_penalty": Option("--frequency-penalty", "Over the answer; 0 is off.", "Sampling"),
    "logit_bias": Option("--logit-bias", "Added to a token's logit.", "Sampling", {"metavar": "ID=BIAS"}),
    # answers and prompts
    "max_tokens": Option("--max-tokens -n", "The longest answer.", "Answer"),
    "stop": Option("--stop", "Ends the answer before this text; may be repeated.", "Answer"),
    "ignore_eos": Option("--ignore-eos", "Go on past the model's end token.", "Answer"),
    "raw": Option("--raw", "No chat template: continue the prompt as it is.", "Answer"),
    "system": Option("--system", "A system message.", "Answer"),
    "prompts": Option(
        "--prompts",
        "A file of prompts: Spec-Bench, HumanEval or messages as JSON lines, or text. Default: the project's own.",
        "Prompts",
    ),
    "limit": Option("--limit", "Prompts to take, evenly over their kinds; 0 takes all.", "Prompts"),
    # measuring
    "passes": Option("--passes", "Times each prompt is run by each drafter.", more={"min": 1}),
    "warm": Option("--warm", "Keep the prompt cache between answers."),
    "repeat_prompts": Option("--repeat-prompts", "Let drafters that learn meet a prompt again."),
    "random_weights": Option(
        "--random-weights", "A shape instead of a model, for example llama-8b: synthetic figures."
    ),
    "random_draft": Option("--random-draft", "A shape for the draft, for example llama-1b: synthetic."),
    "synthetic_acceptance": Option(
        "--synthetic-acceptance", "Accept each drafted token with this chance: synthetic figures."
    ),
    "seconds": Option("--seconds", "The time budget.", more={"min": 5}),
    "drafts": Option("--draft -d", "A draft model to try; may be repeated.", "Models"),
    # other engines
    "engine": Option("--engine -e", f"Drive this engine instead of Slipstream's own: {ENGINES_HELP}.", "Engine"),
    "program": Option("--program", "The engine's executable, where it is not on PATH.", "Engine"),
    "engine_args": Option("--engine-args", "More arguments for it, as on its command line: '--threads 4'.", "Engine"),
    "start_limit": Option("--start-limit", "Seconds that its start may take.", "Engine", {"min": 1}),
    "url": Option("--url", "Ask one that runs already, instead of starting it.", "Engine"),
    "plain_url": Option("--plain-url", "With --url: the same engine without speculation.", "Engine"),
    "api_key": Option(
        "--api-key",
        "API key of the engine. Others can read a command line: better set the variable, or give --api-key-file.",
        "Engine",
        {"envvar": "SLIPSTREAM_API_KEY"},
    ),
    "api_key_file": Option("--api-key-file", "A file that holds the API key.", "Engine"),
    "streams": Option("--streams", "Requests at the same time.", more={"min": 1}),
    "one_at_a_time": Option("--one-at-a-time", "With --engine: two starts instead of two instances.", "Engine"),
    "context": Option("--context", "Tokens of prompt and answer; at most the model's own.", "Machine"),
    "draft_streams": Option("--draft-streams", "vLLM: plain decoding with more requests than this.", more={"min": 1}),
    "host": Option("--host", "0.0.0.0 lets other machines in."),
    "port": Option("--port", "Default: the engine's own.", more={"min": 1}),
    "tensor_parallel": Option("--tensor-parallel", "GPUs that share every layer."),
    "pipeline_parallel": Option("--pipeline-parallel", "Groups of layers."),
    "nodes": Option("--nodes", "Machines (vLLM with Ray).", more={"min": 1}),
    "smoke": Option("--smoke/--no-smoke", "First compare a few answers with plain decoding's."),
    "force": Option("--force", "Start although the doctor finds that it can't work."),
    "detach": Option("--detach", "Leave it running.", "Detached engines"),
}

DRAFTERS = Option(  # of commands that compare drafters
    "--drafter",
    "Drafters to compare, separated by commas (see generate --help). Default: ngram,suffix, and model or translate "
    "with --draft.",
    "Speculation",
)
ENGINE_DRAFTER = Option(
    "--drafter",
    "The engine's method, or a Slipstream drafter that it also has; none is plain decoding. "
    "Default: slipstream.yaml, a draft model with --draft, else n-grams.",
    "Speculation",
)
ENGINE_POLICY = Option("--policy", "fixed(N) drafts N tokens a round; auto leaves it to the engine.", "Speculation")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.", rich_help_panel="Output")]
Tint = Annotated[bool, typer.Option("--tint", help="Colour the tokens that were drafted.", rich_help_panel="Output")]


def command_line() -> str:
    """The command as it was given, for the record: without keys."""
    from slipstream.engines.secrets import redacted

    return shlex.join(redacted(["slipstream", *sys.argv[1:]]))
