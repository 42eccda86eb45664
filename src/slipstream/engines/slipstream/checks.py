"""Slipstream's own server: command lines."""

from __future__ import annotations

import re

from slipstream.drafters import names, parse_drafter
from slipstream.engines.slipstream.flags import FLAGS
from slipstream.errors import UsageError
from slipstream.findings import Finding
from slipstream.parsing.command_line import Word, parse
from slipstream.parsing.config_checks import CHOICE, MISSING, check_options, shown
from slipstream.parsing.configuration import CommandConfiguration

_DRAFTER = "--drafter"


def lint_command(words: list[Word]) -> list[Finding]:
    """The words after `slipstream serve`."""
    call = parse(words, FLAGS, dashes=False)
    found = list(check_options(call.options, FLAGS))
    option, spec = call.last(_DRAFTER), call.value(_DRAFTER)
    if option is None or not spec or spec.startswith("$"):
        return found
    try:
        parse_drafter(spec)
    except UsageError as error:
        choices = str(error).rpartition("expected ")[2]
        refused = CHOICE.finding(
            shown(option), name=_DRAFTER, value=spec, version=FLAGS.version, near="", choices=choices
        )
        return [*found, refused]
    if names(spec, "model", "translate") and not call.has("--draft"):
        why = f"the drafter {spec} runs a model"
        found.append(MISSING.finding(shown(option), what="The draft model", why=why, fix="--draft MODEL"))
    return found


CONFIGURATION = CommandConfiguration(
    "slipstream", re.compile(r"(.*[/\\])?slipstream(\.exe)?$"), FLAGS, lint_command, ("serve",)
)
