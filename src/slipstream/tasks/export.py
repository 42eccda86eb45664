"""export: tuned settings as the configuration of another engine, with the reason for every value. Starts nothing."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.engines.driver import ExternalEngine
from slipstream.engines.engine_types import PLAIN, EngineSettings, StartPlan
from slipstream.engines.manifests import check_format, write_manifest
from slipstream.engines.secrets import HIDDEN, redacted, without_secrets
from slipstream.tasks.engine_settings import engine_settings
from slipstream.tasks.manifest_models import manifest_models
from slipstream.tasks.options import EngineChoice, ExportOptions, ModelOptions, as_models, startable
from slipstream.writing import commented


@dataclass(frozen=True, slots=True)
class ExportedConfig:
    """How an engine would be started, without its keys."""

    engine: ExternalEngine
    settings: EngineSettings
    plan: StartPlan

    def text(self, options: ExportOptions = ExportOptions()) -> str:
        """In the engine's own format, or as a manifest. Raises UsageError."""
        if options.form == "engine":
            return own_format(self.engine, self.settings, self.plan)
        check_format(options.form)
        models = manifest_models(self.engine.name, self.settings, options.weights_gb)
        return write_manifest(options.form, self.engine, self.settings, models, options.image)

    def to_dict(self) -> dict[str, Any]:
        return {
            "engine": self.engine.name,
            "version": self.engine.version,
            "settings": asdict(_without_secrets(self.settings)),
            "plan": asdict(self.plan),
            "argv": list(self.plan.argv),
        }


def export(engine: str | EngineChoice, models: str | ModelOptions | None = None) -> ExportedConfig:
    """The configuration for these models, or for those of slipstream.yaml. Raises UsageError, ModelError."""
    choice = EngineChoice(startable(engine)) if isinstance(engine, str) else engine
    choice = replace(choice, program=choice.program or choice.name)
    settings = engine_settings(choice, as_models(models).resolved(choice.name), fetch=False)
    found = choice.find()
    return ExportedConfig(found, settings, without_secrets(found.plan(settings, Path())))


def own_format(engine: ExternalEngine, settings: EngineSettings, plan: StartPlan) -> str:
    """The engine's configuration file, or a shell script if it is configured on the command line."""
    method = "plain decoding" if settings.method == PLAIN else settings.method
    head = [
        f"Written by slipstream export for {engine.name} ({engine.version}): {method} on {settings.model}.",
        *plan.notes,
        *_left_out(plan),
    ]
    comments = commented(head)
    if plan.files:
        return comments + "".join(plan.files.values())
    return "#!/bin/sh\n" + comments + _script(plan)


def _left_out(plan: StartPlan) -> list[str]:
    """What the user has to add: API keys are not written."""
    lines = [f"{name}, which is not written here, has API keys: set its mode to 600." for name in plan.secret_files]
    if HIDDEN in " ".join(plan.argv):
        lines.append(f"API keys are not written here: replace {HIDDEN} with the key.")
    return lines


def _script(plan: StartPlan) -> str:
    """One argument per line. A shell allows no comment after a backslash, so the reasons come first."""
    width = max((len(" ".join(a.words)) for a in plan.arguments if len(" ".join(a.words)) <= 48), default=0)
    reasons = commented(f"  {' '.join(a.words):{width}}  {a.why}" for a in plan.arguments if a.why)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in plan.env.items())
    exports += "".join(f': "${{{name}:?set it to the key, which is not written here}}"\n' for name in plan.secret_env)
    lines = [shlex.join(plan.program), *(shlex.join(argument.words) for argument in plan.arguments)]
    return f"{reasons}{exports}exec " + " \\\n  ".join(lines) + "\n"


def _without_secrets(settings: EngineSettings) -> EngineSettings:
    return replace(settings, extra=tuple(redacted(settings.extra)), secrets=dict.fromkeys(settings.secrets, HIDDEN))
