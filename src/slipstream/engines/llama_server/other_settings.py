"""Settings of llama.cpp's library in a file of another project: which of llama-server's flags mean the same."""

from __future__ import annotations

import re
import shlex

from slipstream.engines.llama_server.flags import FLAGS
from slipstream.findings import Finding, rule
from slipstream.parsing.config_checks import shorten
from slipstream.parsing.configuration import NOT_MINE, RELATED, FileConfiguration

OTHER = rule(
    "config-other-project",
    "slows",
    "The settings are those of another program",
    "llama-server has no configuration file with these keys ({keys}); they are names inside llama.cpp, or of another "
    "program. {unused}",
    "With llama-server: {command}. To start and check it: slipstream launch llama-server --model {target} --draft "
    "{draft}.",
)
# Names of parameters in llama.cpp's source and in programs around it.
_FLAGS = {
    "n_draft": "--spec-draft-n-max",
    "n_max": "--spec-draft-n-max",
    "draft_max": "--spec-draft-n-max",
    "n_min": "--spec-draft-n-min",
    "draft_min": "--spec-draft-n-min",
    "p_min": "--spec-draft-p-min",
    "draft_p_min": "--spec-draft-p-min",
    "n_reuse": "",
    "p_split": "",
}
_SETTING = re.compile(
    rf"(?m)^[ \t]*(?:(?:int|float|int32_t)[ \t]+)?[\"']?(?P<name>{'|'.join(_FLAGS)})[\"']?"
    r"[ \t]*[:=][ \t]*(?P<value>\d*\.?\d+)"
)
_MODEL = re.compile(
    r"(?m)^[ \t]*[\"']?(?P<name>main_model|target_model|draft_model)[\"']?[ \t]*[:=][ \t]*[\"'](?P<value>[^\"'\n]+)"
)


def lint_settings(text: str) -> list[Finding]:
    found = {match["name"]: match["value"] for match in _SETTING.finditer(text)}
    models = {match["name"]: match["value"] for match in _MODEL.finditer(text)}
    if not found:
        return []
    target = models.get("main_model") or models.get("target_model")
    files = [name if name and name.endswith(".gguf") else None for name in (target, models.get("draft_model"))]
    command = ["llama-server", "-m", files[0] or "TARGET.gguf", "-md", files[1] or "DRAFT.gguf"]
    command += ["--spec-type", "draft-simple"]
    for name, value in found.items():
        command += [_FLAGS[name], value] if _FLAGS[name] else []
    unused = [name for name in found if not _FLAGS[name]]
    note = f"{', '.join(unused)} has no successor in {FLAGS.version}." if unused else ""
    evidence = "; ".join(f"{name}: {value}" for name, value in found.items())
    return [
        OTHER.finding(
            shorten(evidence),
            keys=", ".join(found),
            unused=note,
            command=shlex.join(command),
            target=_spec(target) or "TARGET",
            draft=_spec(models.get("draft_model")) or "DRAFT",
        )
    ]


def _spec(name: str | None) -> str | None:
    """A name such as llama3.2:3b is Ollama's."""
    return f"ollama:{name}" if name and re.fullmatch(r"[\w.-]+:[\w.-]+", name) else name


def _likeness(text: str, file_name: str) -> float:
    return RELATED if _SETTING.search(text) else NOT_MINE


CONFIGURATION = FileConfiguration(lint_settings, _likeness)
