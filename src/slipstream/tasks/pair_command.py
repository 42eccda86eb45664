"""The command that runs a pair with an engine."""

from __future__ import annotations

import shlex

from slipstream.engines import find_folder
from slipstream.errors import UsageError
from slipstream.tasks.export import export
from slipstream.tasks.options import EngineChoice, ModelOptions

_DRAFTER = "model"


def pair_command(engine: str, target: str, draft: str, draft_length: int) -> str:
    """The engine's own command; for an engine that is configured in a file, the command that writes it.

    For engines that are not started from here, and for weights that the engine does not read, it is Slipstream's.
    """
    folder, ours = find_folder(engine), ["slipstream", "generate", "--model", target, "--draft", draft, "Hello"]
    if folder.driver is None:
        return shlex.join(ours)
    models = ModelOptions(target, draft, drafter=_DRAFTER, policy=f"fixed({draft_length})")
    try:
        plan = export(EngineChoice(folder.name), models).plan
    except UsageError as error:
        return f"{shlex.join(ours)}  # not with {folder.name}: {error}"
    if plan.files:
        words = ["slipstream", "export", folder.name, "--model", target, "--draft", draft]
        return shlex.join([*words, "--policy", models.policy or "auto", "--output", next(iter(plan.files))])
    return shlex.join(plan.argv)
