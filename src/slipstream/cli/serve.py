"""`slipstream serve`: an OpenAI-compatible server with a page."""

from __future__ import annotations

import os
import sys

import typer

from slipstream.backends import MachineOptions
from slipstream.cli import options as opt
from slipstream.cli.groups import grouped
from slipstream.cli.terminal import TerminalReporter
from slipstream.server.keys import check_keys, numbered
from slipstream.server.settings import ServeOptions
from slipstream.tasks.options import ModelOptions

_KEY_FLAG = "--api-key"
_KEY_VARIABLE = "SLIPSTREAM_API_KEY"
PANEL = "Server"
OWN: dict[str, opt.OptionSpec | None] = {
    "host": opt.OptionSpec("--host", "Address to listen on; 0.0.0.0 lets other machines connect.", PANEL),
    "port": opt.OptionSpec("--port", "Port to listen on; 0 takes a free one.", PANEL, {"min": 0, "max": 65535}),
    "api_keys": opt.OptionSpec(
        _KEY_FLAG,
        f"A key that clients have to send; may be repeated. Better: ${_KEY_VARIABLE} (separated by spaces) or a file.",
        "Security",
        {"envvar": _KEY_VARIABLE},
    ),
    "api_key_file": opt.OptionSpec("--api-key-file", "A file with one key a line.", "Security"),
    "allow_anonymous": opt.OptionSpec(
        "--allow-anonymous", "Listen on a public address although there is no key.", "Security"
    ),
    "cors_origins": opt.OptionSpec(
        "--cors-origin", "Let web pages of this origin use the API, such as https://example.org; may be repeated.",
        "Security",
    ),
    "max_streams": opt.OptionSpec("--max-streams", "Answers that are generated at the same time.", "Limits"),
    "max_queue": opt.OptionSpec("--max-queue", "Requests that may wait; more get 429.", "Limits"),
    "max_tokens": opt.OptionSpec("--max-tokens -n", "Most tokens of one answer.", "Limits"),
    "request_limit": opt.OptionSpec("--request-limit", "Seconds for one request; 0 is no limit.", "Limits"),
    "idle_limit": opt.OptionSpec("--idle-limit", "Seconds to wait for a client; 0 is no limit.", "Limits"),
    "drain_limit": opt.OptionSpec("--drain-limit", "Seconds for running answers when the server stops.", "Limits"),
    "max_stall": opt.OptionSpec(
        "--max-stall", "Seconds that running answers may wait while a long prompt is read.", "Limits"
    ),
    "max_connections": opt.OptionSpec("--max-connections", "Open requests; more get 503.", "Limits"),
}  # fmt: skip


@grouped(**OWN)
def serve(
    models: ModelOptions = ModelOptions(),
    options: ServeOptions = ServeOptions(),
    machine: MachineOptions = MachineOptions(),
) -> None:
    """Serve a model over the OpenAI API, with a page to see speculation happen.

    It listens on this machine only, unless --host says otherwise. SIGTERM and Ctrl-C let running answers finish.

    [bold]Examples[/bold]

      slipstream serve

      slipstream serve --model big.gguf --draft small.gguf --port 9000

      SLIPSTREAM_API_KEY=… slipstream serve --host 0.0.0.0
    """
    from slipstream.tasks.serve import serve as run_serve

    _hide_keys()
    with TerminalReporter() as reporter:
        run_serve(
            models,
            options,
            machine=machine,
            reporter=reporter,
            on_ready=lambda url: typer.echo(f"slipstream: serving at {url}  (page: {url}/, API: {url}/v1)", err=True),
        )


def _hide_keys() -> None:
    """Every user of the machine can read a command line. Starts this command again with the keys in the environment,
    which only its own user can read. Raises UsageError for keys that can't be used."""
    words, keys = [], []
    remaining = iter(sys.argv[1:])
    for word in remaining:
        if word == _KEY_FLAG:
            keys.append(next(remaining, ""))
        elif word.startswith(f"{_KEY_FLAG}="):
            keys.append(word.partition("=")[2])
        else:
            words.append(word)
    if keys:
        check_keys(numbered(keys), _KEY_FLAG)
        os.environ[_KEY_VARIABLE] = " ".join(keys)
        os.execv(sys.executable, [sys.executable, "-m", "slipstream", *words])
    if _KEY_VARIABLE in os.environ:
        check_keys(numbered(os.environ[_KEY_VARIABLE].split()), _KEY_VARIABLE)
