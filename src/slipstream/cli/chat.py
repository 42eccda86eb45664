"""`slipstream chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from slipstream.backends import MachineOptions
from slipstream.cli import options as opt
from slipstream.cli.generate import reason, stream_tokens
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter
from slipstream.tasks.options import AnswerOptions, ModelOptions, SamplingOptions

if TYPE_CHECKING:
    from slipstream.core.engine import Engine
    from slipstream.core.sampling import Sampling
    from slipstream.core.stream import Limits

HELP = (
    "/reset starts over, /stats shows statistics, /tint colours drafted tokens, /help shows this, "
    "/quit or /exit exits; Ctrl-C stops an answer."
)


@grouped(raw=None)
def chat(
    models: ModelOptions = ModelOptions(),
    sampling: SamplingOptions = SamplingOptions(),
    answer: AnswerOptions = AnswerOptions(max_tokens=512),
    machine: MachineOptions = MachineOptions(),
    tint: opt.Tint = False,
) -> None:
    """Chat with a model. Earlier messages stay in the cache and are not computed again.

    [bold]Examples[/bold]

      slipstream chat

      slipstream chat --tint --temperature 0.7

      slipstream chat --model ollama:llama3.2:3b --draft ollama:llama3.2:1b
    """
    from slipstream.tasks.models import load_engine

    with TerminalReporter() as reporter:
        engine = load_engine(models, machine, reporter)
    print(f"{engine.target.info.name} on {engine.target.info.device}. {HELP}", file=sys.stderr)
    went_well = Conversation(engine, sampling.sampling(), answer.limits(), answer.system, tint).run()
    if not went_well and not sys.stdin.isatty():
        raise typer.Exit(1)


class Conversation:
    def __init__(self, engine: Engine, sampling: Sampling, limits: Limits, system: str | None, tint: bool) -> None:
        self._engine = engine
        self._sampling = sampling
        self._limits = limits
        self._system = system
        self._tint = tint
        self._messages = self._opening()

    def run(self) -> bool:
        """Until the end of input or /quit. False if every answer failed."""
        import readline  # noqa: F401  gives input() its history and editing

        outcomes = []
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                break
            except KeyboardInterrupt:
                print()
                continue
            if line in ("/quit", "/exit"):
                break
            if line.startswith("/"):
                self._command(line)
            elif line:
                outcomes.append(self._answer(line))
        return any(outcomes) or not outcomes

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
                f"{reason(self._engine)}",
                file=sys.stderr,
            )
        else:
            unknown = "" if line == "/help" else f"unknown command {line}. "
            print(f"{unknown}{HELP}", file=sys.stderr)

    def _answer(self, line: str) -> bool:
        """Streams one answer. A failed answer is not added to the conversation, and False; a stopped one is added up to
        where it stopped.
        """
        from slipstream.errors import SlipstreamError

        asked = [*self._messages, {"role": "user", "content": line}]
        try:
            generation = self._engine.generate(asked, self._sampling, self._limits)
            try:
                stream_tokens(generation, self._tint)
            except KeyboardInterrupt:
                generation.cancel()
                print(" …")
        except SlipstreamError as error:
            print(f"slipstream: {error}. Try /reset.", file=sys.stderr)
            return False
        self._messages = [*asked, {"role": "assistant", "content": generation.text}]
        return True
