"""The command that runs a pair with an engine."""

from __future__ import annotations

import shlex

from slipstream.engines import find_folder
from slipstream.engines.driver import method_like
from slipstream.errors import UsageError
from slipstream.tasks.export import export
from slipstream.tasks.options import EngineChoice, ModelOptions

_DRAFTER = "model"


def pair_command(engine: str, target: str, draft: str, draft_length: int, p_min: float) -> str:
    """The engine's own command; for an engine that is configured in a file, the command that writes it.

    For Slipstream itself, engines that are not started from here, and weights that the engine does not read, it is
    `slipstream generate`, whose policy finds the draft length.
    """
    folder, ours = find_folder(engine), ["slipstream", "generate", "--model", target, "--draft", draft, "Hello"]
    if folder.driver is None or folder.name == "slipstream":
        return shlex.join(ours)
    try:
        takes_p_min = method_like(folder.driver, _DRAFTER).takes_p_min
        drafter = f"{_DRAFTER}(p_min={p_min:g})" if takes_p_min else _DRAFTER
        models = ModelOptions(target, draft, drafter=drafter, policy=f"fixed({draft_length})")
        plan = export(EngineChoice(folder.name), models).plan
    except UsageError as error:
        return f"{shlex.join(ours)}  # not with {folder.name}: {error}"
    if plan.files:
        words = ["slipstream", "export", folder.name, "--model", target, "--draft", draft]
        return shlex.join([*words, "--policy", models.policy or "auto", "--output", next(iter(plan.files))])
    return shlex.join(plan.argv)
