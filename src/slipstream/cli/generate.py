"""`slipstream generate`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as opt
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.core.engine import Engine
    from slipstream.core.generation import Generation
    from slipstream.core.sampling import Sampling


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' or nothing reads it from stdin.")] = None,
    model: opt.Model = None,
    draft: opt.Draft = None,
    drafter: opt.Drafter = None,
    policy: opt.PolicyOption = None,
    verifier: opt.Verifier = "matching",
    exact: opt.Exact = False,
    temperature: opt.Temperature = 0.0,
    seed: opt.Seed = 0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    repetition_penalty: opt.RepetitionPenalty = 1.0,
    presence_penalty: opt.PresencePenalty = 0.0,
    frequency_penalty: opt.FrequencyPenalty = 0.0,
    logit_bias: opt.LogitBias = None,
    max_tokens: opt.MaxTokens = 256,
    stop: opt.Stop = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the model's end token.", rich_help_panel="Answer")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="No chat template: continue the prompt as it is.", rich_help_panel="Answer")
    ] = False,
    system: Annotated[str | None, typer.Option("--system", help="A system message.", rich_help_panel="Answer")] = None,
    device: opt.Device = "auto",
    dtype: opt.DType = "auto",
    context: opt.Context = None,
    threads: opt.Threads = None,
    backend: opt.BackendOption = None,
    gpu_layers: opt.GpuLayers = None,
    kv_type: opt.KvType = "auto",
    as_json: opt.Json = False,
    tint: Annotated[
        bool, typer.Option("--tint", help="Colour the tokens that were drafted.", rich_help_panel="Output")
    ] = False,
) -> None:
    """Answer one prompt.

    The text goes to stdout, a line of figures to stderr.

    [bold]Examples[/bold]

      slipstream generate "Why is the sky blue?"

      slipstream generate --model big.gguf --draft small.gguf "Write a haiku."

      slipstream generate --drafter none --json "Hello" | jq .stats.tokens_per_s

      cat report.txt | slipstream generate --system "Summarise in three sentences."
    """
    from slipstream.cli.loading import load_engine
    from slipstream.core.stream import Limits

    sampling = opt.make_sampling(
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, seed
    )
    limits = Limits(max_tokens, tuple(stop or ()), ignore_eos=ignore_eos)
    text = _read_prompt(prompt)
    settings = opt.LoadSettings.resolve(
        model, draft, drafter, policy, device, dtype, context, threads, exact,
        backend, gpu_layers, kv_type,
    )  # fmt: skip
    engine = load_engine(settings)
    request = text if raw else _messages(text, system)
    generation = engine.generate(request, sampling, limits, verifier=verifier)
    if as_json:
        generation.result()
        print(json.dumps(describe(engine, generation, settings, sampling, verifier), ensure_ascii=False))
    else:
        stream_tokens(generation, tint)
        print(figures(generation, engine), file=sys.stderr)


def _read_prompt(prompt: str | None) -> str:
    from slipstream.models.plain_text import check_text

    if prompt in (None, "-"):
        if sys.stdin.isatty():
            raise UsageError('no prompt: give one, as in slipstream generate "Hello", or pipe it in')
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
    """One line on how it went."""
    stats, info = generation.stats, engine.target.info
    drafter = engine.drafter.name if engine.drafter else "none"
    return (
        f"{stats.num_tokens} tokens, {stats.tokens_per_s:.1f} tokens/s, first after {stats.ttft_s:.2f} s; "
        f"{stats.target_forwards} forwards, {stats.num_accepted} of {stats.num_drafted} drafted tokens accepted "
        f"({info.name}, {info.device}, {info.dtype}, drafter {drafter}; {engine.policy.explain().reason})"
    )


def describe(
    engine: Engine, generation: Generation, settings: opt.LoadSettings, sampling: Sampling, verifier: str
) -> dict[str, Any]:
    """The --json object."""
    from dataclasses import asdict

    info = engine.target.info
    return {
        "text": generation.text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "stats": generation.stats.as_dict(),
        "model": asdict(info),
        "draft": settings.draft,
        "drafter": engine.drafter.name if engine.drafter else "none",
        "verifier": verifier,
        "sampling": asdict(sampling),
        "policy": asdict(engine.policy.explain()),
    }
