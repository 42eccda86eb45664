"""`slipstream show`: what a model's files say of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import options as opt
from slipstream.findings import BlockedError
from slipstream.tasks.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from slipstream.tasks.models_here import ModelDetails


def show(
    model: Annotated[str, typer.Argument(help=opt.MODEL_HELP)] = DEFAULT_MODEL,
    as_json: opt.Json = False,
) -> None:
    """Show what a model's files say: its shape, vocabulary, context and quantisation, and where they are.

    Reads headers and samples of the weights, and fetches nothing. The exit code is 1 if the files can't be used.

    [bold]Examples[/bold]

      slipstream show ollama:llama3.2:3b

      slipstream show HuggingFaceTB/SmolLM2-360M-Instruct --json
    """
    from slipstream.tasks.models_here import show_model

    details = show_model(model)
    if as_json:
        print(json.dumps(details.to_dict()))
    else:
        _print(details)
    if details.problems:
        sys.stdout.flush()
        raise BlockedError(details.problems)


def _print(details: ModelDetails) -> None:
    for name, value in _lines(details):
        print(f"{name:<16}{'unknown' if value is None else value}")
    print("files")
    for file in details.files:
        print(f"  {opt.shown_bytes(file.num_bytes):>9}  {file.name}")


def _lines(details: ModelDetails) -> list[tuple[str, str | int | None]]:
    facts = details.facts
    template = None if facts.has_chat_template is None else "yes" if facts.has_chat_template else "no"
    context = None if facts.context_length is None else f"{facts.context_length:,} tokens"
    heads = f"{facts.num_heads or 'unknown'}, {facts.num_kv_heads or 'unknown'} of keys and values"
    return [
        ("model", details.spec),
        ("path", str(details.path)),
        ("on disk", opt.shown_bytes(details.disk_bytes)),
        ("architecture", facts.architecture),
        ("parameters", None if facts.num_parameters is None else f"{facts.num_parameters:,}"),
        ("format", facts.format),
        ("quantisation", details.quantisation),
        ("layers", facts.num_layers),
        ("hidden size", facts.hidden_size),
        ("heads", f"{heads}, {facts.head_dim or 'unknown'} wide"),
        ("vocabulary", None if facts.vocab_size is None else f"{facts.vocab_size:,} tokens"),
        ("context", context),
        ("rope scaling", facts.rope_scaling or "none"),
        ("chat template", template),
    ]
