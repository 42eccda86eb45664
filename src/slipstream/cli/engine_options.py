"""Options of commands that drive an external engine, and what they come to: an engine and its settings.

`--drafter` and `--policy` mean there what they mean here: a way to draft (the engine's own name for it, or that of a
drafter of Slipstream that does about the same), and `fixed(N)` for the draft length.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.options import DEFAULT_MODEL
from slipstream.cli.settings_file import FileSettings, read_settings
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.engines.engine import EngineSettings, ExternalEngine, Method

PANEL = "Engine"
DEFAULT_STREAMS = "1,4,16"
BENCH_CONTEXT = 2048  # tokens of a stream in measurements: an engine's default is often all that the model has
ENGINES_HELP = "vllm, llama-server, sglang, tabbyapi or ollama"
_DRAFTER = re.compile(r"(?P<name>[\w.-]+)(\((?P<options>[^()]*)\))?")
_P_MIN = re.compile(r"p_min=([0-9.]+)")
_FIXED = re.compile(r"fixed\((\d+)\)")

Engine = Annotated[
    str | None,
    typer.Option(
        "--engine", "-e", help=f"Drive this engine instead of Slipstream's own: {ENGINES_HELP}.", rich_help_panel=PANEL
    ),
]
Url = Annotated[
    str | None,
    typer.Option("--url", help="Ask one that runs already, instead of starting it.", rich_help_panel=PANEL),
]
PlainUrl = Annotated[
    str | None,
    typer.Option("--plain-url", help="With --url: the same engine without speculation.", rich_help_panel=PANEL),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="SLIPSTREAM_API_KEY",
        help="API key of the engine. Others can read a command line: better set the variable, or give --api-key-file.",
        rich_help_panel=PANEL,
    ),
]
ApiKeyFile = Annotated[
    Path | None, typer.Option("--api-key-file", help="A file that holds the API key.", rich_help_panel=PANEL)
]
Program = Annotated[
    str | None,
    typer.Option("--program", help="The engine's executable, where it is not on PATH.", rich_help_panel=PANEL),
]
EngineArgs = Annotated[
    str,
    typer.Option(
        "--engine-args", help="More arguments for it, as on its command line: '--threads 4'.", rich_help_panel=PANEL
    ),
]
StartLimit = Annotated[
    float,
    typer.Option("--start-limit", help="Seconds that its start may take.", min=1, rich_help_panel=PANEL),
]
Streams = Annotated[int, typer.Option("--streams", help="Requests at the same time.", min=1)]
DraftStreams = Annotated[
    int | None, typer.Option("--draft-streams", help="vLLM: plain decoding with more requests than this.", min=1)
]
Host = Annotated[str, typer.Option("--host", help="0.0.0.0 lets other machines in.")]
Port = Annotated[int | None, typer.Option("--port", help="Default: the engine's own.", min=1)]
TensorParallel = Annotated[int, typer.Option("--tensor-parallel", help="GPUs that share every layer.")]
PipelineParallel = Annotated[int, typer.Option("--pipeline-parallel", help="Groups of layers.")]
Nodes = Annotated[int, typer.Option("--nodes", help="Machines (vLLM with Ray).", min=1)]
EngineDrafter = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        help="The engine's method, or a drafter of Slipstream's that it has the like of; none is plain decoding. "
        "Default: slipstream.yaml, a draft model with --draft, else n-grams.",
        rich_help_panel="Speculation",
    ),
]
EnginePolicy = Annotated[
    str | None,
    typer.Option("--policy", help="fixed(N) drafts N tokens a round; auto leaves it to the engine."),
]


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What the command line says of an engine, apart from models and drafting."""

    name: str
    program: str | None = None
    engine_args: str = ""
    start_limit: float = 600.0
    context: int | None = None
    streams: int = 1
    host: str = "127.0.0.1"
    port: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    nodes: int = 1
    draft_streams: int | None = None
    api_key: str | None = field(default=None, repr=False)  # what it is to ask for, where it is started here

    def find(self) -> ExternalEngine:
        from slipstream.engines import find_engine

        return find_engine(self.name)


@dataclass(frozen=True, slots=True)
class Drafting:
    """Models and a way to draft: the command line, then slipstream.yaml where it is for this engine or for none."""

    model: str
    draft: str | None
    drafter: str | None
    policy: str | None

    @classmethod
    def resolve(
        cls, engine: str, model: str | None, draft: str | None, drafter: str | None, policy: str | None
    ) -> Drafting:
        file = read_settings()
        if (model is not None and model != file.model) or file.engine not in (None, engine):
            file = FileSettings(model=file.model)
        return cls(
            model=model or file.model or DEFAULT_MODEL,
            draft=draft or (file.draft if drafter is None else None),
            drafter=drafter or (file.drafter if draft is None else None),
            policy=policy or (file.policy if drafter is None else None),
        )


def read_api_key(api_key: str | None, file: Path | None) -> str | None:
    """The key of the file, else `api_key`. Raises UsageError for a file or key that can't be used."""
    if file is not None:
        try:
            api_key = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--api-key-file {file} can't be read: {error}") from error
        if not api_key:
            raise UsageError(f"--api-key-file {file} is empty; expected the API key")
    if api_key and not (api_key.isascii() and api_key.isprintable()):
        raise UsageError("the API key holds a line break or a letter that HTTP can't carry; expected one line of ASCII")
    return api_key


def refuse_without_engine(**given: object) -> None:
    """Raises UsageError where an option of another engine was given and none was named."""
    for name, value in given.items():
        if value:
            raise UsageError(f"--{name.replace('_', '-')} belongs to another engine: name it with --engine")


def refuse_with_engine(**given: object) -> None:
    """Raises UsageError where an option of Slipstream's own engine was given for another one."""
    for name, value in given.items():
        if value not in (None, False, "auto"):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} belongs to Slipstream's own engine; use --engine-args for another one's settings"
            )


def engine_settings(choice: EngineChoice, drafting: Drafting, *, fetch: bool = True) -> EngineSettings:
    """Settings of the engine with models as it is given them. `fetch=False` leaves models where they are."""
    from slipstream.engines.engine import PLAIN, EngineSettings
    from slipstream.engines.secrets import take_secrets

    engine = choice.find()
    secrets, extra = take_secrets(shlex.split(choice.engine_args), engine.secret_flags)
    if choice.api_key and "--api-key" in engine.secret_flags:
        secrets.setdefault("--api-key", choice.api_key)
    settings = EngineSettings(
        model=as_given(choice.name, drafting.model, fetch),
        context=choice.context,
        streams=choice.streams,
        host=choice.host,
        port=choice.port or engine.default_port,
        tensor_parallel=choice.tensor_parallel,
        pipeline_parallel=choice.pipeline_parallel,
        nodes=choice.nodes,
        program=choice.program,
        extra=extra,
        secrets=secrets,
        start_limit_s=choice.start_limit,
    )
    drafter = drafting.drafter or ("model" if drafting.draft else "ngram")
    if drafter == PLAIN:
        return settings
    draft = as_given(choice.name, drafting.draft, fetch) if drafting.draft else None
    return with_method(engine, replace(settings, draft_streams=choice.draft_streams), drafter, drafting.policy, draft)


def with_method(
    engine: ExternalEngine, settings: EngineSettings, drafter: str, policy: str | None, draft: str | None
) -> EngineSettings:
    """The settings with a way to draft. Raises UsageError for one that the engine does not have or can't have so."""
    from slipstream.engines.engine import check_settings, method_like

    match = _DRAFTER.fullmatch(drafter)
    if match is None:
        raise UsageError(f"drafter {drafter!r} of an engine; expected a name, or a name with (p_min=0.5)")
    method = method_like(engine, match["name"])
    chosen = replace(
        settings,
        method=method.name,
        draft=None if method.draft == "unused" else draft,
        draft_length=_length(policy),
        p_min=_p_min(match["options"] or "", drafter, method),
    )
    check_settings(engine, chosen)
    return chosen


def _p_min(options: str, drafter: str, method: Method) -> float | None:
    """Options of Slipstream's own drafters that the engine has no like of are left out, and said."""
    found = _P_MIN.fullmatch(options)
    if found and method.takes_p_min:
        return float(found[1])
    if options and drafter.startswith(f"{method.name}("):
        taken = "(p_min=0.5)" if method.takes_p_min else "none"
        raise UsageError(f"options {options!r} of {method.name}; it takes {taken}")
    if options:
        print(f"slipstream: {method.name} has nothing like the options of {drafter}: left out", file=sys.stderr)
    return None


def _length(policy: str | None) -> int | None:
    if policy in (None, "auto"):
        return None
    match = _FIXED.fullmatch(policy or "")
    if match is None:
        raise UsageError(f"policy {policy!r} of an engine; expected auto (its own length) or fixed(N)")
    return int(match[1])


def as_given(engine: str, spec: str, fetch: bool = True) -> str:
    """A model as the engine is told of it: a file or folder on this disk, or a name that it looks up itself."""
    from slipstream.engines import find_entry
    from slipstream.models.builtin import BUILTIN_NAMES
    from slipstream.models.files import expand_home
    from slipstream.models.spec import OLLAMA_PREFIX, locate

    weights = find_entry(engine).weights
    if engine == spec.partition(":")[0]:  # ollama:NAME is a name of its own store
        return spec.removeprefix(OLLAMA_PREFIX)
    on_disk = expand_home(spec)
    is_builtin = spec in BUILTIN_NAMES
    looks_it_up = weights == "folder" and not on_disk.exists() and not is_builtin and ".gguf" not in spec
    if looks_it_up or not (fetch or is_builtin):
        return str(on_disk.absolute()) if on_disk.exists() else spec
    path = locate(spec).path.absolute()  # not resolved: the hub's cache links names to blobs without a suffix
    if (path.suffix == ".gguf" or path.is_file()) != (weights == "gguf"):
        what, how = (
            ("a folder of safetensors", f"write one with: slipstream convert {spec} FOLDER")
            if weights == "folder"
            else ("a GGUF file", "name one")
        )
        raise UsageError(f"{engine} reads {what}, and {spec} is none: {how}")
    return str(path)
