"""Renders chat templates in a separate process: a template is code from the model's author, and Jinja's sandbox limits
neither time nor memory.

    python -I template_worker.py CPU_LIMIT_S SYS_PATH_AS_JSON

Reads requests as JSON, one a line: {"source": the template, "values": what it may use}. Answers each with a line:
{"text": …} or {"error": …}. A request that goes over a limit ends the process: by SIGPROF for time, with MEMORY_EXIT
for memory. Windows has neither limit. Imports nothing of Slipstream, so that it starts quickly.
"""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.parser import Parser

MEMORY_LIMIT_BYTES = 512 << 20  # of the process
MEMORY_EXIT = 3
FREE_CHARS = 1_000_000  # characters that a template may add
CHARS_PER_CHAR = 4  # for each character of the request
MAX_ERROR_CHARS = 500


def main() -> None:
    cpu_limit_s = float(sys.argv[1])
    sys.path[:] = json.loads(sys.argv[2])
    _limit_memory()
    for line in sys.stdin.buffer:
        try:
            answer = _answer(line, cpu_limit_s)
        except MemoryError:
            sys.exit(MEMORY_EXIT)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _answer(line: bytes, cpu_limit_s: float) -> dict[str, str]:
    from jinja2 import TemplateError

    _limit_time(cpu_limit_s)
    try:
        request = json.loads(line)
        text = _compiled(request["source"]).render(request["values"])
    # Errors in a template may raise any of these.
    except (
        TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError, SyntaxError,
    ) as error:  # fmt: skip
        return {"error": str(error)[:MAX_ERROR_CHARS] or type(error).__name__}
    finally:
        _limit_time(0.0)
    most = FREE_CHARS + CHARS_PER_CHAR * len(line)
    if len(text) > most:
        return {"error": f"it writes {len(text)} characters; at most {most} are allowed"}
    return {"text": text}


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(hard, MEMORY_LIMIT_BYTES)
    with contextlib.suppress(ValueError, OSError):  # macOS does not support it
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _limit_time(seconds: float) -> None:
    """Ends the process after this much CPU time, even inside a single long operation. 0 removes the limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _generation_tag()],
        optimized=False,  # 'a' * 10**8 would be computed when compiling, and stored
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def _generation_tag() -> Any:
    """`{% generation %}` marks the assistant's text for training; here its content is only passed through."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return GenerationTag


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes HTML characters, but models were not trained on escaped text.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


if __name__ == "__main__":
    main()
