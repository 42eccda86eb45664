"""Groups of command options: a parameter that is a dataclass becomes one option for each of its fields.

    @grouped()
    def bench(models: ModelOptions = ModelOptions(), machine: MachineOptions = MachineOptions()) -> None: ...

has `--model`, `--draft` … `--device` …. `options.OPTIONS` has the flag of each field; its default is that of the
parameter's default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_origin, get_type_hints

from slipstream.cli.options import OPTIONS, OptionSpec

Command = Callable[..., None]


def grouped(**own: OptionSpec | None) -> Callable[[Command], Command]:
    """`own`: options that differ from those of other commands, by field; None: this command does not have the
    option.
    """
    table = OPTIONS | own

    def group(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        groups: dict[str, tuple[type, dict[str, Any]]] = {}  # by parameter: its class, and types by field
        for name, parameter in inspect.signature(command).parameters.items():
            kind = hints[name]
            if is_dataclass(kind) and isinstance(kind, type):
                types = get_type_hints(kind)
                shown = {f.name: types[f.name] for f in fields(kind) if table.get(f.name)}
                groups[name] = (kind, shown)
                parameters += [_parameter(f, t, getattr(parameter.default, f), table[f]) for f, t in shown.items()]
            else:
                parameters.append(parameter.replace(annotation=kind, kind=parameter.KEYWORD_ONLY))

        @wraps(command)
        def expanded(**given: Any) -> None:
            for name, (kind, shown) in groups.items():
                values = {f: given.pop(f) for f in shown}
                given[name] = kind(**{f: tuple(v or ()) if _repeats(shown[f]) else v for f, v in values.items()})
            command(**given)

        expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        expanded.__annotations__ = {p.name: p.annotation for p in parameters}
        return expanded

    return group


def _parameter(name: str, kind: Any, default: Any, option: OptionSpec | None) -> inspect.Parameter:
    """A tuple of values becomes an option that may be repeated."""
    assert option is not None
    if _repeats(kind):
        kind, default = list[kind.__args__[0]] | None, list(default) or None
    annotation = Annotated[kind, option.info()]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _repeats(kind: Any) -> bool:
    return get_origin(kind) is tuple
