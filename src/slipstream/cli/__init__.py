"""The command line: `slipstream COMMAND`. One file a command; stdout is the result, stderr is progress."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
from pathlib import Path

import typer

from slipstream import __version__
from slipstream.child import distrust_current_folder
from slipstream.cli import (
    audit,
    bench,
    chat,
    compare,
    convert,
    demo,
    distil,
    doctor,
    engines,
    export,
    generate,
    launch,
    list_models,
    pairs,
    plan,
    pull,
    quantise,
    rm,
    serve,
    show,
    train,
    tune,
)
from slipstream.errors import SlipstreamError, UnfinishedBenchError

_NOTHING = Path(os.devnull)
_INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

app = typer.Typer(
    name="slipstream",
    help="Language models answer faster without changing a word: speculative decoding that pays off.",
    epilog='Start with:  slipstream demo   or   slipstream generate "Why is the sky blue?"',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("pull")(pull.pull)
app.command("list")(list_models.list_models)
app.command("show")(show.show)
app.command("rm")(rm.rm)
app.command("convert")(convert.convert)
app.command("serve")(serve.serve)
app.command("quantise")(quantise.quantise)
app.command("demo")(demo.demo)
app.command("bench")(bench.bench)
app.command("audit")(audit.audit)
app.command("tune")(tune.tune)
app.command("train")(train.train)
app.command("distil")(distil.distil)
app.command("compare")(compare.compare)
app.command("doctor")(doctor.doctor)
app.command("pairs")(pairs.pairs)
app.command("plan")(plan.plan)
app.command("engines")(engines.engines)
app.command("launch")(launch.launch)
app.command("export")(export.export)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slipstream {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Say more on stderr, tracebacks included."),
) -> None:
    logging.basicConfig(format="slipstream: %(message)s", level=logging.WARNING)
    logging.getLogger("slipstream").setLevel(logging.DEBUG if verbose else logging.WARNING)


def main() -> None:
    """Runs a command. An error raised on purpose is one line and its own exit code, not a traceback."""
    sys.stdin = sys.stdin or _NOTHING.open()  # None: it is closed
    sys.stderr = sys.stderr or _NOTHING.open("w")
    if sys.stdout is None:
        _fail("standard output is closed: there is nowhere to write the result", 1)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # bytes that are not UTF-8 are told where the text is used
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may have bytes that no text has
    distrust_current_folder()
    try:
        try:
            app()
        except UnfinishedBenchError as error:
            print(json.dumps(error.record, ensure_ascii=False))
            raise
        finally:
            sys.stdout.flush()  # here, where a failure can still be reported
    except SlipstreamError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)
    except SystemExit as end:  # typer makes one of Ctrl-C
        if end.code == _INTERRUPTED:
            _fail("interrupted", _INTERRUPTED)
        raise
    except BrokenPipeError:  # the reader went away, as `head` does
        _discard_stdout()
        sys.exit(0)
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        _discard_stdout()
        _fail(f"the output can't be written: {error.strerror}", 1)


def _discard_stdout() -> None:
    """What is left in the buffer goes nowhere: Python would try to write it again when it ends."""
    os.dup2(os.open(_NOTHING, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> None:
    print(f"slipstream: {message}", file=sys.stderr)
    sys.exit(code)
