"""Options that several commands share, each described once."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.settings_file import FileSettings, read_settings
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.bench.workload import Prompt
    from slipstream.core.sampling import Sampling

MODEL_HELP = (
    "The model that answers: a folder of safetensors, a .gguf file, a hub id (org/name), ollama:NAME:TAG, "
    "or the built-in smollm2-135m."
)
DRAFTER_HELP = (
    "none (plain decoding), ngram, suffix, model, early-exit, translate, or chained:A,B. Options in brackets: "
    "'model(p_min=0.3,n_parallel=3)'. Default: model with --draft, else suffix."
)

Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", help=MODEL_HELP, show_default="slipstream.yaml, or smollm2-135m", rich_help_panel="Models"
    ),
]
Draft = Annotated[
    str | None,
    typer.Option("--draft", "-d", help="A smaller model that drafts, named the same way.", rich_help_panel="Models"),
]
Drafter = Annotated[str | None, typer.Option("--drafter", help=DRAFTER_HELP, rich_help_panel="Speculation")]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="How much to draft: auto (never slower; the default), auto(N), fixed(N).",
        rich_help_panel="Speculation",
    ),
]
Verifier = Annotated[
    str,
    typer.Option(
        "--verifier",
        help="matching (same text, seed for seed) or rejection (same distribution).",
        rich_help_panel="Speculation",
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact", help="Bit-identical to plain decoding, at any price in speed.", rich_help_panel="Speculation"
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 …", rich_help_panel="Machine")]
DType = Annotated[
    str,
    typer.Option("--dtype", help="auto (fp32 on the CPU, bf16 on a GPU), fp32, bf16, fp16.", rich_help_panel="Machine"),
]
Context = Annotated[
    int | None,
    typer.Option("--context", help="Tokens of prompt and answer; at most the model's own.", rich_help_panel="Machine"),
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="CPU threads; default: all cores.", rich_help_panel="Machine")
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        help="auto (GGUF files go to llamacpp where it is installed and there is no GPU for torch), torch, llamacpp.",
        rich_help_panel="Machine",
    ),
]
GpuLayers = Annotated[
    int | None,
    typer.Option("--gpu-layers", help="llamacpp: layers on the GPU; 0 none, -1 all.", rich_help_panel="Machine"),
]
KvType = Annotated[
    str,
    typer.Option(
        "--kv-type", help="llamacpp: keys and values as auto, f32, f16, q8_0, q4_0.", rich_help_panel="Machine"
    ),
]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.", rich_help_panel="Sampling")]
Seed = Annotated[
    int, typer.Option("--seed", "-s", help="The same seed gives the same text.", rich_help_panel="Sampling")
]
TopK = Annotated[int, typer.Option("--top-k", help="Only the K likeliest; 0 is off.", rich_help_panel="Sampling")]
TopP = Annotated[
    float, typer.Option("--top-p", help="The likeliest that reach P together; 1 is off.", rich_help_panel="Sampling")
]
MinP = Annotated[
    float,
    typer.Option("--min-p", help="At least P times the likeliest; 0 is off.", rich_help_panel="Sampling"),
]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Over prompt and answer; 1 is off.", rich_help_panel="Sampling")
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", help="Over the answer; 0 is off.", rich_help_panel="Sampling")
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", help="Over the answer; 0 is off.", rich_help_panel="Sampling")
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option("--logit-bias", metavar="ID=BIAS", help="Added to a token's logit.", rich_help_panel="Sampling"),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="The longest answer.", rich_help_panel="Answer")]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="Ends the answer before this text; may be repeated.", rich_help_panel="Answer"),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        help="A file of prompts: Spec-Bench, HumanEval or messages as JSON lines, or text. Default: the project's own.",
        rich_help_panel="Prompts",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", help="Prompts to take, evenly over their kinds; 0 takes all.", rich_help_panel="Prompts"),
]
Drafters = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        help="Drafters to compare, separated by commas (see generate --help). Default: ngram,suffix, "
        "and model or translate with --draft.",
        rich_help_panel="Speculation",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.", rich_help_panel="Output")]


DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What to load and how: the command line, then slipstream.yaml, then the defaults."""

    model: str
    draft: str | None
    drafter: str | None
    policy: str
    device: str
    dtype: str
    context: int | None
    threads: int | None
    exact: bool
    backend: str = "auto"
    gpu_layers: int | None = None
    kv_type: str = "auto"

    @classmethod
    def resolve(
        cls,
        model: str | None,
        draft: str | None,
        drafter: str | None,
        policy: str | None,
        device: str = "auto",
        dtype: str = "auto",
        context: int | None = None,
        threads: int | None = None,
        exact: bool = False,
        backend: str | None = None,
        gpu_layers: int | None = None,
        kv_type: str = "auto",
    ) -> LoadSettings:
        """The file's draft and drafter belong to its model: a command line that names another takes none of them."""
        file = read_settings()
        if model is not None and model != file.model:
            file = FileSettings()
        if file.engine is not None:
            file = FileSettings(model=file.model)
        return cls(
            model=model or file.model or DEFAULT_MODEL,
            draft=draft or (file.draft if drafter is None else None),
            drafter=drafter or (file.drafter if draft is None else None),
            policy=policy or (file.policy if drafter is None else None) or "auto",
            device=device,
            dtype=dtype,
            context=context,
            threads=threads,
            exact=exact,
            backend=backend or file.backend or "auto",
            gpu_layers=gpu_layers,
            kv_type=kv_type,
        )


def read_workload(path: Path | None, limit: int | None) -> list[Prompt]:
    """The prompts of a file, or the project's own; `limit` of them, evenly over the kinds."""
    from slipstream.bench.prompt_files import own_prompts, read_prompts
    from slipstream.bench.workload import take

    return take(read_prompts(path) if path else own_prompts(), limit or None)


def split_drafters(text: str) -> list[str]:
    """`ngram,model(p_min=0.3,n_parallel=2)`: split at commas outside brackets. A chained drafter is a list itself."""
    from slipstream.drafters import parse_drafter, split_list

    if text.startswith("chained:"):
        return [text]
    drafters = split_list(text)
    for drafter in drafters:
        parse_drafter(drafter)
    if not drafters:
        raise UsageError("--drafter is empty; name drafters separated by commas, for example ngram,suffix")
    return drafters


def command_line() -> str:
    """The command as it was given, for the record: without keys."""
    from slipstream.engines.secrets import redacted

    return shlex.join(redacted(["slipstream", *sys.argv[1:]]))


def parse_numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text!r}; expected numbers separated by commas") from None


def parse_logit_bias(entries: list[str] | None) -> dict[int, float]:
    bias = {}
    for entry in entries or ():
        token, _, value = entry.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise UsageError(f"--logit-bias {entry!r}; expected ID=BIAS, for example 42=-5") from None
    return bias


def make_sampling(
    temperature: float, top_k: int, top_p: float, min_p: float, repetition: float, presence: float, frequency: float,
    logit_bias: list[str] | None, seed: int,
) -> Sampling:  # fmt: skip
    from slipstream.core.sampling import Sampling

    return Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=parse_logit_bias(logit_bias),
        seed=seed,
    )
