"""`slipstream generate`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.backends import MachineOptions
from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter
from slipstream.errors import UsageError
from slipstream.tasks.options import AnswerOptions, ModelOptions, SamplingOptions

if TYPE_CHECKING:
    from slipstream.core.engine import Engine
    from slipstream.core.generation import Generation
    from slipstream.core.sampling import Sampling


@grouped()
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' or nothing reads it from stdin.")] = None,
    models: ModelOptions = ModelOptions(),
    verifier: Annotated[
        str,
        typer.Option(
            help="matching (a seed gives the same text as plain decoding) or rejection (same distribution).",
            rich_help_panel="Speculation",
        ),
    ] = "matching",
    sampling: SamplingOptions = SamplingOptions(),
    answer: AnswerOptions = AnswerOptions(),
    machine: MachineOptions = MachineOptions(),
    as_json: opt.Json = False,
    tint: opt.Tint = False,
) -> None:
    """Answer one prompt.

    The text goes to stdout, a line of statistics to stderr.

    [bold]Examples[/bold]

      slipstream generate "Why is the sky blue?"

      slipstream generate --model big.gguf --draft small.gguf "Write a haiku."

      slipstream generate --drafter none --json "Hello" | jq .stats.tokens_per_s

      cat report.txt | slipstream generate --system "Summarise in three sentences."
    """
    from slipstream.tasks.models import load_engine

    chosen, limits, text = sampling.sampling(), answer.limits(), _read_prompt(prompt)
    models = models.resolved()
    with TerminalReporter() as reporter:
        engine = load_engine(models, machine, reporter)
    request = text if answer.raw else _messages(text, answer.system)
    generation = engine.generate(request, chosen, limits, verifier=verifier)
    interrupted = False
    try:
        generation.result() if as_json else stream_tokens(generation, tint)
    except KeyboardInterrupt:
        generation.cancel()
        interrupted = True
    if as_json:
        ended = {"finish_reason": "cancelled"} if interrupted else {}
        print(json.dumps(describe(engine, generation, models, chosen, verifier) | ended, ensure_ascii=False))
    else:
        print("\n" * interrupted, end="", flush=True)
        print(figures(generation, engine), file=sys.stderr)
    if interrupted:
        raise KeyboardInterrupt


def _read_prompt(prompt: str | None) -> str:
    from slipstream.models.text.plain_text import check_text

    if prompt in (None, "-"):
        if sys.stdin.isatty():
            raise UsageError('no prompt: pass one, as in slipstream generate "Hello", or pipe it in')
        prompt = sys.stdin.read()
    if not prompt:
        raise UsageError("the prompt is empty")
    check_text(prompt, "the prompt")
    return prompt


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    start = [{"role": "system", "content": system}] if system else []
    return [*start, {"role": "user", "content": text}]


def stream_tokens(generation: Generation, tint: bool) -> None:
    for token in generation:
        text = f"\033[36m{token.text}\033[0m" if tint and token.drafted and token.text else token.text
        print(text, end="", flush=True)
    print()


def figures(generation: Generation, engine: Engine) -> str:
    """One line of statistics."""
    stats, info = generation.stats, engine.target.info
    drafter = engine.drafter.name if engine.drafter else "none"
    return (
        f"{stats.num_tokens} tokens, {stats.tokens_per_s:.1f} tokens/s, first token after {stats.ttft_s:.2f} s; "
        f"{stats.rounds} rounds, {stats.num_accepted} of {stats.num_drafted} drafted tokens accepted "
        f"({info.name}, {info.device}, {info.dtype}, drafter {drafter}; {reason(engine)})"
    )


def reason(engine: Engine) -> str:
    """Why it drafts or does not. Without a drafter the policy is not asked."""
    return engine.policy.explain().reason if engine.drafter else "speculation off: no drafter"


def describe(
    engine: Engine, generation: Generation, models: ModelOptions, sampling: Sampling, verifier: str
) -> dict[str, Any]:
    """The --json object."""
    from dataclasses import asdict

    info = engine.target.info
    return generation.to_dict() | {
        "model": asdict(info),
        "draft": models.draft,
        "drafter": engine.drafter.name if engine.drafter else "none",
        "verifier": verifier,
        "sampling": asdict(sampling),
        "policy": engine.policy.explain().to_dict() | {"reason": reason(engine)},
    }
