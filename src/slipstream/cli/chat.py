"""`slipstream chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import options as opt

if TYPE_CHECKING:
    from slipstream.core.engine import Engine
    from slipstream.core.sampling import Sampling

HELP = "/reset starts over, /stats shows figures, /tint colours drafted tokens, /quit leaves; Ctrl-C stops an answer."


def chat(
    model: opt.Model = None,
    draft: opt.Draft = None,
    drafter: opt.Drafter = None,
    policy: opt.PolicyOption = None,
    exact: opt.Exact = False,
    temperature: opt.Temperature = 0.0,
    seed: opt.Seed = 0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    repetition_penalty: opt.RepetitionPenalty = 1.0,
    max_tokens: opt.MaxTokens = 512,
    system: Annotated[str | None, typer.Option("--system", help="A system message.", rich_help_panel="Answer")] = None,
    tint: Annotated[
        bool, typer.Option("--tint", help="Colour the tokens that were drafted.", rich_help_panel="Output")
    ] = False,
    device: opt.Device = "auto",
    dtype: opt.DType = "auto",
    context: opt.Context = None,
    threads: opt.Threads = None,
    backend: opt.BackendOption = None,
    gpu_layers: opt.GpuLayers = None,
    kv_type: opt.KvType = "auto",
) -> None:
    """Talk to a model. What was said before is not computed again.

    [bold]Examples[/bold]

      slipstream chat

      slipstream chat --tint --temperature 0.7

      slipstream chat --model ollama:llama3.2:3b --draft ollama:llama3.2:1b
    """
    from slipstream.cli.loading import load_engine

    sampling = opt.make_sampling(temperature, top_k, top_p, min_p, repetition_penalty, 0.0, 0.0, None, seed)
    settings = opt.LoadSettings.resolve(
        model, draft, drafter, policy, device, dtype, context, threads, exact,
        backend, gpu_layers, kv_type,
    )  # fmt: skip
    engine = load_engine(settings)
    print(f"{engine.target.info.name} on {engine.target.info.device}. {HELP}", file=sys.stderr)
    Conversation(engine, sampling, max_tokens, system, tint).run()


class Conversation:
    def __init__(self, engine: Engine, sampling: Sampling, max_tokens: int, system: str | None, tint: bool) -> None:
        self._engine = engine
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._system = system
        self._tint = tint
        self._messages = self._opening()

    def run(self) -> None:
        """Until the end of input or /quit."""
        import readline  # noqa: F401  gives input() its history and editing

        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                print()
                continue
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _opening(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self._system}] if self._system else []

    def _command(self, line: str) -> None:
        if line == "/reset":
            self._messages = self._opening()
        elif line == "/tint":
            self._tint = not self._tint
        elif line == "/stats":
            stats = self._engine.stats
            print(
                f"{stats.num_tokens} tokens in {stats.rounds} rounds, {stats.num_accepted} of {stats.num_drafted} "
                f"drafted tokens accepted, {stats.num_reused} prompt tokens reused; "
                f"{self._engine.policy.explain().reason}",
                file=sys.stderr,
            )
        else:
            print(f"unknown command {line}. {HELP}", file=sys.stderr)

    def _answer(self, line: str) -> None:
        """Streams one answer. What can't be answered, or was stopped, leaves the conversation as it was or so far."""
        from slipstream.cli.generate import stream_tokens
        from slipstream.core.stream import Limits
        from slipstream.errors import SlipstreamError

        asked = [*self._messages, {"role": "user", "content": line}]
        try:
            generation = self._engine.generate(asked, self._sampling, Limits(self._max_tokens))
        except SlipstreamError as error:
            print(f"slipstream: {error}. Try /reset.", file=sys.stderr)
            return
        try:
            stream_tokens(generation, self._tint)
        except KeyboardInterrupt:
            generation.cancel()
            print(" …")
        self._messages = [*asked, {"role": "assistant", "content": generation.text}]
