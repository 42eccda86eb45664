"""Preflight: start-up refuses a pair with the doctor's findings. What is wrong with a file, `loading` refuses."""

from __future__ import annotations

from slipstream.engines import find_folder
from slipstream.findings import BlockedError, refuse
from slipstream.model_files.head_checks import check_head
from slipstream.vocabularies import checks as vocabulary
from slipstream.vocabularies.rules import TRANSLATE


def refuse_other_vocabulary(target: str, draft: str, drafter: str | None) -> None:
    """Raises BlockedError if the requested drafter needs one vocabulary, and the two models have different ones."""
    if drafter is None or drafter.split("(")[0] != "model":
        return
    found = vocabulary.check_specs(target, draft, find_folder("slipstream").facts)
    differing = [f for f in found if f.id == TRANSLATE.id or f.severity == "blocks"]
    if differing:
        raise BlockedError(differing)


def refuse_other_target(target: str, head: str) -> None:
    """Raises BlockedError for a head that can't draft for this target, or that is damaged."""
    refuse(check_head(head, target))
