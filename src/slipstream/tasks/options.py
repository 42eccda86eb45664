"""Options that several tasks share. The command line has an option of the same name for each field."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.backends import MachineOptions
from slipstream.errors import UsageError
from slipstream.models.files import expand_home
from slipstream.reading import MAX_CONFIG_BYTES, read_given_text
from slipstream.tasks.reporter import Reporter
from slipstream.tasks.settings_file import FileSettings, read_settings

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling
    from slipstream.core.stream import Limits
    from slipstream.engines.driver import ExternalEngine
    from slipstream.measurement.workload import Prompt

DEFAULT_MODEL = "smollm2-135m"
ENGINE_CONTEXT = 2048  # tokens of a stream in measurements: an engine's default is often the model's whole context


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model, the draft and how to draft. Missing values come from slipstream.yaml, then from the defaults.

    `drafter` is one, or several separated by commas where a task compares them.
    """

    model: str | None = None
    draft: str | None = None
    drafter: str | None = None
    policy: str | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        if empty := [name for name, value in asdict(self).items() if value == ""]:
            raise UsageError(f"--{empty[0]} is empty: leave it out, or give it a value")

    @property
    def name(self) -> str:
        return self.model or DEFAULT_MODEL

    def resolved(self, engine: str | None = None) -> ModelOptions:
        """Fills in slipstream.yaml, if it was written for this model and engine (None: Slipstream's own).

        If a draft or a drafter is given, the file's are not used; if a drafter is, nor is the file's policy.
        """
        file = read_settings()
        if self.model is not None and self.model != file.model:
            file = FileSettings()
        elif file.engine not in (None, engine):
            file = FileSettings(model=file.model)
        return ModelOptions(
            model=self.model or file.model or DEFAULT_MODEL,
            draft=self.draft or (file.draft if self.drafter is None else None),
            drafter=self.drafter or (file.drafter if self.draft is None else None),
            policy=self.policy or (file.policy if self.drafter is None else None),
            backend=self.backend or file.backend,
        )

    def compared(self) -> ModelOptions:
        """For a comparison of `drafters`: as given, or else the drafter of slipstream.yaml, with its policy."""
        known = self.resolved()
        return replace(self, drafter=known.drafter, policy=known.policy or "auto")

    def drafters(self) -> list[str]:
        """`drafter` as a list, split at commas outside brackets. A chained drafter is a list itself.

        Raises UsageError for one that is unknown.
        """
        from slipstream.drafters import parse_drafter, split_list

        text = self.drafter
        if text is None:
            return []
        drafters = [text] if text.startswith("chained:") else split_list(text)
        for drafter in drafters:
            parse_drafter(drafter)
        if not drafters:
            raise UsageError("--drafter is empty; name drafters separated by commas, for example ngram,suffix")
        return drafters


def as_models(models: str | ModelOptions | None) -> ModelOptions:
    """A name means the model that answers."""
    return models if isinstance(models, ModelOptions) else ModelOptions(models)


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The prompts: those of a file, or the project's own, `limit` of them evenly over their kinds."""

    prompts: Path | None = None
    limit: int | None = None
    max_tokens: int = 64

    def read(self) -> list[Prompt]:
        from slipstream.measurement.prompt_files import own_prompts, read_prompts
        from slipstream.measurement.workload import take

        return take(read_prompts(self.prompts) if self.prompts else own_prompts(), self.limit)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are chosen, as `core.sampling.Sampling` has it; biases as ID=BIAS."""

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[str, ...] = ()

    def sampling(self) -> Sampling:
        from slipstream.core.sampling import Sampling

        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "logit_bias"}
        return Sampling(**given, logit_bias=_parse_logit_bias(self.logit_bias))


def _parse_logit_bias(entries: tuple[str, ...]) -> dict[int, float]:
    bias = {}
    for entry in entries:
        token, _, value = entry.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise UsageError(f"--logit-bias {entry!r}; expected ID=BIAS, for example 42=-5") from None
    return bias


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """When an answer ends, and what is added to the prompt."""

    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False  # go on past the model's end token
    raw: bool = False  # no chat template: continue the prompt as it is
    system: str | None = None  # a system message

    def __post_init__(self) -> None:
        if self.raw and self.system:
            raise UsageError("--raw uses no chat template, so --system has no place: leave one of them out")

    def limits(self) -> Limits:
        from slipstream.core.stream import Limits

        return Limits(self.max_tokens, self.stop, ignore_eos=self.ignore_eos)


def _engine_name(options: EngineOptions | EngineChoice, field_name: str) -> None:
    """Replaces an alias by the engine's own name, by which files and results know it. Raises UsageError."""
    given = getattr(options, field_name)
    if given:
        from slipstream.engines import find_folder

        object.__setattr__(options, field_name, find_folder(given).name)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """An external engine to start. `engine` None: Slipstream's own."""

    engine: str | None = None
    program: str | None = None
    engine_args: str = ""
    start_limit: float = 600.0

    def __post_init__(self) -> None:
        _engine_name(self, "engine")


@dataclass(frozen=True, slots=True)
class RunningEngineOptions:
    """Engines that are already running."""

    url: str | None = None
    plain_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_key_file: Path | None = None

    def key(self) -> str | None:
        """The key of the file, else `api_key`. Raises UsageError for a file or key that can't be used."""
        api_key, file = self.api_key, self.api_key_file
        if file is not None:
            try:
                api_key = read_given_text(file, MAX_CONFIG_BYTES).strip()
            except OSError as error:
                raise UsageError(f"can't read --api-key-file {file}: {error.strerror or error}") from error
            if not api_key:
                raise UsageError(f"--api-key-file {file} is empty; expected the API key")
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise UsageError(
                "the API key has a line break or a character that HTTP does not allow; expected one line of ASCII"
            )
        return api_key


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine and how to run it, without models and drafting."""

    name: str = ""
    program: str | None = None
    engine_args: str = ""
    start_limit: float = 600.0
    context: int | None = None
    streams: int | None = None  # None: the engine's own limit
    host: str = "127.0.0.1"
    port: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    nodes: int = 1
    draft_streams: int | None = None
    key: str | None = field(default=None, repr=False)  # the API key that the engine requires

    def __post_init__(self) -> None:
        _engine_name(self, "name")

    @classmethod
    def measured(cls, options: EngineOptions, context: int, streams: int = 1) -> EngineChoice:
        """Settings for a measurement with this many streams."""
        assert options.engine is not None
        given = (options.engine, options.program, options.engine_args, options.start_limit)
        return cls(*given, context=context, streams=streams)

    def find(self) -> ExternalEngine:
        from slipstream.engines import find_engine

        return find_engine(self.name)


# -- of single tasks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How it is measured. Random weights and forced acceptance give synthetic figures: real speeds, no real texts."""

    passes: int = 2
    temperature: float = 0.0
    seed: int = 0
    warm: bool = False  # keep the prompt cache between answers
    repeat_prompts: bool = False  # let drafters keep what they learned from a prompt for its next run
    random_weights: str | None = None  # a shape instead of a model, for example llama-8b
    random_draft: str | None = None
    synthetic_acceptance: float | None = None  # the probability with which each drafted token is accepted
    command: str = "slipstream.bench"  # what ran it, for the record


@dataclass(frozen=True, slots=True)
class ConcurrencyOptions:
    """The load that another engine is measured under."""

    streams: str = "1,4,16"  # requests at the same time
    one_at_a_time: bool = False  # start the two instances one after the other instead of side by side

    def stream_counts(self) -> list[int]:
        """Raises UsageError for anything but whole numbers from 1."""
        try:
            counts = [int(part) for part in self.streams.split(",")]
        except ValueError:
            counts = []
        if not counts or min(counts) < 1:
            raise UsageError(f"--streams {self.streams!r}; expected numbers from 1, separated by commas: 1,4,16")
        return counts


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What is searched, and for how long."""

    model: str | None = None
    drafts: tuple[str, ...] = ()  # draft models to try
    drafter: str | None = None  # drafters to try, separated by commas
    backend: str | None = None
    seconds: float = 180.0
    temperature: float = 0.0
    seed: int = 0

    def progress(self, reporter: Reporter) -> Callable[[float, str], None]:
        """By the share of the time that is used up."""
        return lambda share, what: reporter.progress(share * self.seconds, self.seconds, what)


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The settings at which answers are compared."""

    temperatures: str = "0,0.8,1.2"  # separated by commas; 0 is greedy
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def samplings(self) -> list[Sampling]:
        from slipstream.core.sampling import Sampling

        return [
            Sampling(temperature=t, top_p=self.top_p, repetition_penalty=self.repetition_penalty, seed=self.seed)
            for t in parse_numbers(self.temperatures, "--temperatures")
        ]


def parse_numbers(text: str, option: str) -> list[float]:
    """Raises UsageError for what is no number, nan and infinity included."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise UsageError(f"{option} {text!r}; expected numbers separated by commas")
    return numbers


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Models on this machine, or the sizes of models that are not; the workload; and the GPUs."""

    target: str | None = None
    weights_gb: float | None = None  # of a target that is not on this machine
    draft: str | None = None
    draft_weights_gb: float | None = None
    draft_like: str | None = None  # a published model of the draft's shape
    like: str | None = None  # a published model of the target's shape
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    context: int | None = None  # tokens of prompt and answer; None: 8,192 are assumed
    kv: str = "f16"  # how the KV cache is stored: f16, q8 or q4
    gpus: str | None = None  # sizes in GiB, for example "32,24"; None: the GPUs of this machine
    nodes: int = 1  # machines with these GPUs each
    engine: str | None = None  # None: Slipstream for folders, else llama.cpp


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What to check. Every field is optional; without any, only the machine is checked."""

    target: str | None = None
    draft: str | None = None
    engine: str = "slipstream"
    config: Path | None = None  # a command line or configuration of the engine
    log: Path | None = None  # what the engine printed
    context: int | None = None  # tokens of prompt and answer that the workload needs
    batch: int = 1  # requests at the same time
    temperature: float = 0.0
    python: str = ""  # Python of the engine's environment, whose torch is tested on the files; "": this one
    measure: bool = False  # also run the target briefly, and check its speed


@dataclass(frozen=True, slots=True)
class PairsOptions:
    """`target` None: all groups of models that share a vocabulary."""

    target: str | None = None
    search: tuple[Path, ...] = ()  # folders to look in beside the usual stores
    context: int | None = None  # tokens of the workload: drafts with a shorter context are excluded
    measure: bool = False  # also measure the best with Slipstream's own engine
    engine: str | None = None  # the engine that is to run them; None: llama.cpp for GGUF files, else slipstream


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The format of an exported configuration: `engine` is the engine's own, `kubernetes` and `compose` are manifests.

    For manifests: `weights_gb` is the size of all weights, where it can't be found out; `image` is used instead of the
    engine's public one.
    """

    form: str = "engine"
    weights_gb: float | None = None
    image: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What to do when an engine is started."""

    smoke: bool = True  # first compare a few answers with plain decoding's
    force: bool = False  # start even if the doctor has a blocking finding, and keep what drafts nothing
    detach: bool = False  # leave it running


# Prompts and tokens that tasks take by default. Bench: one of each kind, under three minutes with the built-in model.
BENCH_WORKLOAD = WorkloadOptions(limit=8)
AUDIT_WORKLOAD = WorkloadOptions(limit=4)
TUNE_WORKLOAD = WorkloadOptions(limit=24, max_tokens=48)


def startable(engine: str) -> str:
    """The own name of an engine that can be started with speculation. Raises UsageError for any other."""
    from slipstream.engines import folders

    known = [folder for folder in folders() if folder.driver and folder.driver.methods]
    for folder in known:
        if engine.lower() in (folder.name.lower(), *folder.facts.aliases):
            return folder.name
    raise UsageError(f"{engine!r} is no engine that can be started; expected {', '.join(one.name for one in known)}")


# -- checks -----------------------------------------------------------------------------------------------------------


def check_search(folders: Iterable[Path]) -> None:
    """Raises UsageError where a folder to look in is not there."""
    for folder in folders:
        if not expand_home(folder).exists():
            raise UsageError(f"--search {folder}: the folder does not exist")


def check_engine_options(
    machine: MachineOptions,
    engine: EngineOptions,
    running: RunningEngineOptions,
    concurrency: ConcurrencyOptions = ConcurrencyOptions(),
    **own_engine_only: object,
) -> None:
    """Raises UsageError if options of Slipstream's own engine and of another one are mixed."""
    if engine.engine is None:
        for option in _given(engine) + _given(running) + _given(concurrency):
            raise UsageError(f"--{option} is for another engine: name it with --engine")
        return
    for option in _given(replace(machine, context_length=None)) + [n for n, value in own_engine_only.items() if value]:
        name = option.replace("_", "-")
        raise UsageError(
            f"--{name} is for Slipstream's own engine; use --engine-args for the settings of another engine"
        )


def _given(options: EngineOptions | RunningEngineOptions | ConcurrencyOptions | MachineOptions) -> list[str]:
    """Options that differ from their defaults, without API keys, which also come from the environment."""
    given = [f.name for f in fields(options) if getattr(options, f.name) != f.default]
    return [name.replace("_", "-") for name in given if not name.startswith("api_key") and name != "start_limit"]
