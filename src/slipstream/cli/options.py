"""Options that several commands share, each described once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling

MODEL_HELP = (
    "The model that answers: a folder of safetensors, a .gguf file, a hub id (org/name), ollama:NAME:TAG, "
    "or the built-in smollm2-135m."
)
DRAFTER_HELP = (
    "none (plain decoding), ngram, suffix, model, early-exit, translate, or chained:A,B. Options in brackets: "
    "'model(p_min=0.3,n_parallel=3)'. Default: model with --draft, else suffix."
)

Model = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP, show_default=True, rich_help_panel="Models")]
Draft = Annotated[
    str | None,
    typer.Option("--draft", "-d", help="A smaller model that drafts, named the same way.", rich_help_panel="Models"),
]
Drafter = Annotated[str | None, typer.Option("--drafter", help=DRAFTER_HELP, rich_help_panel="Speculation")]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy", help="How much to draft: auto (never slower), auto(N), fixed(N).", rich_help_panel="Speculation"
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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.", rich_help_panel="Output")]


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What the model options say, as text."""

    model: str
    draft: str | None
    drafter: str | None
    policy: str
    device: str
    dtype: str
    context: int | None
    threads: int | None
    exact: bool


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
