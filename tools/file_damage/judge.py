"""What must hold of every case, and what did not."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from file_damage.cases import Case, Command
from file_damage.run_command import CPU_LIMIT_S, Allowance, Outcome

_CODES = {"doctor": {0, 1, 2, 3}}
_OTHER_CODES = {0, 1, 2}
_TRACEBACK = "Traceback (most recent call last)"
_DYING = re.compile(r"GGML_\w+\(.*|GGML_ABORT.*|terminate called.*|what\(\): .*|Fatal Python error.*")
_NO_MEMORY = re.compile(
    r"bad_alloc|MemoryError|[Cc]annot allocate|can't allocate|Unable to allocate|failed to allocate"
)


# Why generate refuses what has a way around it (--raw, --kv-type f32), and the finding with which the doctor says so.
_NOTED = {"This model has no chat template": "weights-chat-template", "gave no usable logits": "weights-large"}


@dataclass(frozen=True)
class Violation:
    """`rule` is what was broken, `cause` the same for all cases of one cause, `message` what was printed."""

    rule: str
    cause: str
    command: str
    message: str


@dataclass
class Judged:
    number: int
    kind: str
    what: str
    outcome: str
    folder: str
    cpu_s: float
    peak_bytes: int
    violations: list[Violation] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Judged:
        return Judged(**(values | {"violations": [Violation(**each) for each in values["violations"]]}))


def judge(case: Case, outcomes: list[tuple[Command, Outcome]], allowances: dict[str, Allowance]) -> Judged:
    found = [
        violation
        for command, outcome in outcomes
        for violation in _check_one(case, command, outcome, allowances.get(allowance_key(case, command), Allowance()))
    ]
    by_role = {command.role: (command, outcome) for command, outcome in outcomes if command.role != "extra"}
    if not found and "generate" in by_role:
        found += _check_agreement(*by_role["doctor"], *by_role["generate"])
    return Judged(
        number=case.number,
        kind=case.kind,
        what=case.what,
        outcome=_summary(case, by_role or {"extra": outcomes[0]}, found),
        folder=str(case.folder),
        cpu_s=round(max(outcome.cpu_s for _, outcome in outcomes), 2),
        peak_bytes=max(outcome.peak_bytes for _, outcome in outcomes),
        violations=found,
    )


def allowance_key(case: Case, command: Command) -> str:
    """Commands that cost the same with sound files: a folder is tried in torch, which has to start."""
    is_folder = any(argument.endswith((".gguf",)) for argument in command.arguments)
    return f"{command.arguments[0]} {'gguf' if is_folder or case.kind in ('yaml', 'log') else 'folder'}"


# -- one command ------------------------------------------------------------------------------------------------------


def _check_one(case: Case, command: Command, outcome: Outcome, allowance: Allowance) -> list[Violation]:
    line = "slipstream " + " ".join(command.arguments)
    name = command.arguments[0]

    def violation(rule: str, cause: str, message: str = "") -> list[Violation]:
        return [Violation(rule, f"{name}: {cause}", line, (message or _last_line(outcome))[-1500:])]

    if outcome.stopped:
        return violation(
            "hang", f"did not end in time ({_shape(case.what)})", f"{outcome.cpu_s:.1f} s of processor time"
        )
    if outcome.signal:
        rule = "memory" if _NO_MEMORY.search(outcome.stderr) else "crash"
        said = _DYING.findall(outcome.stderr)
        words = said[-1] if said else outcome.stderr[-600:]
        return violation(rule, f"ended by {signal.Signals(outcome.signal).name}: {_shape(words)}", words)
    if outcome.error:
        error = json.loads(outcome.error)
        rule = "memory" if error["memory"] == "True" or _NO_MEMORY.search(error["message"]) else "traceback"
        return violation(rule, f"{error['type']} in {error['place']}", f"{error['line']}: {error['message']}")
    if _TRACEBACK in outcome.stderr or (_TRACEBACK in outcome.stdout and case.kind != "log"):
        return violation("traceback", _last_line(outcome)[:80], outcome.stderr[-800:])
    if outcome.code not in _CODES.get(name, _OTHER_CODES):
        return violation("exit code", f"exit code {outcome.code}")
    if outcome.cpu_s > CPU_LIMIT_S + allowance.cpu_s:
        return violation(
            "slow", f"over {CPU_LIMIT_S:.0f} s ({_shape(case.what)})", f"{outcome.cpu_s:.1f} s of processor time"
        )
    if "--json" in command.arguments and outcome.code != 2:
        return [Violation("output", f"{name}: {cause}", line, cause) for cause in _check_json(outcome)]
    return []


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _check_json(outcome: Outcome) -> list[str]:
    try:
        result = json.loads(outcome.stdout, parse_constant=_refuse_constant)
    except ValueError as error:
        return [f"--json printed no JSON: {re.sub(r'[0-9]+', 'N', str(error))}"]
    findings = result["findings"]
    wrong = []
    if (outcome.code == 1) != any(each["severity"] == "blocks" for each in findings):
        wrong.append("exit code and findings do not agree")
    twice = [name for name, count in Counter((each["id"], each["evidence"]) for each in findings).items() if count > 1]
    return wrong + [f"the finding {each[0]} is there twice" for each in twice]


# -- two commands -----------------------------------------------------------------------------------------------------


def _check_agreement(doctor: Command, said: Outcome, generate: Command, did: Outcome) -> list[Violation]:
    """What one refuses the other refuses. A prompt that is too long for the model's context is no fault of a file."""
    is_full = "answer included: shorten the prompt" in did.stderr
    is_noted = any(words in did.stderr and id in said.stdout for words, id in _NOTED.items())
    if (said.code == 0) == (did.code == 0) or (said.code == 0 and (is_full or is_noted)):
        return []
    line = "slipstream " + " ".join((doctor if said.code == 0 else generate).arguments)
    if said.code == 0:
        message = _last_line(did)
        return [Violation("doctor accepts", f"generate refuses: {_shape(message)}", line, message)]
    message = _blocking(said)
    first = message.split(": ")[0]
    return [Violation("generate accepts", f"doctor refuses: {first}", line, message)]


def _blocking(said: Outcome) -> str:
    """What the doctor says against it: ids and evidence of the findings that block."""
    try:
        findings = json.loads(said.stdout)["findings"]
    except ValueError:
        found = re.findall(r"^blocks\s+(\S+)\s+evidence: (.*)", said.stdout, re.M)
        return "; ".join(f"{name}: {evidence}" for name, evidence in found) or _last_line(said)
    return "; ".join(f"{each['id']}: {each['evidence']}" for each in findings if each["severity"] == "blocks")


def _last_line(outcome: Outcome) -> str:
    lines = [line for line in (outcome.stderr or outcome.stdout).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("slipstream: ") and "backend:" not in line]
    return (told or lines or [""])[-1]


# What a message says once for all files, in front of what it says of one of them.
_GENERAL = re.compile(r".*(llama_model_load: error loading model: |gguf_init_from_reader: |refuses this conversation)")


def _shape(message: str) -> str:
    """The message without what differs from case to case."""
    general = _GENERAL.match(message)
    if general and "llama.cpp said" in message:
        message = "llama.cpp: " + message[general.end() :].partition("; llama_model_load_from_file")[0]
    elif general:
        message = general.group()
    message = re.sub(r"(/[^\s:,;]+)+", "PATH", message.replace("can't", "cannot").replace("slipstream: ", "", 1))
    message = re.sub(r"\b(model|blk|output|token_embd|lm_head)\.[\w.{},]+", "TENSOR", message)
    message = re.sub(
        r"\b(llama(?!\.cpp)|qwen\d|gemma\d|phi\d|mamba|bert|general|tokenizer\.ggml)\.[\w.]+", "KEY", message
    )
    message = re.sub(r"\[.*\]|\{.*\}|b?'[^']*'|\"[^\"]*\"", "…", message)
    message = re.sub(r"wrong type \w+ but expected type \w+", "wrong type", message)
    return re.sub(r"-?\b\d[\d,.]*(e[+-]?\d+)?", "N", message)[:110]


def _summary(case: Case, by_role: dict[str, tuple[Command, Outcome]], found: list[Violation]) -> str:
    if found:
        return found[0].rule
    codes = {role: outcome.code for role, (_, outcome) in by_role.items()}
    if "generate" in codes:
        return "both accept" if codes["doctor"] == 0 else "both refuse" if codes["generate"] else "prompt too long"
    code = next(iter(codes.values()))
    return {0: "no problem", 1: "finding", 2: "bad use", 3: "unknown"}.get(code or 0, "other")
