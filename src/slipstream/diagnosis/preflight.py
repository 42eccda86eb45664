"""Preflight: start-up refuses with the doctor's findings."""

from __future__ import annotations

from slipstream.engines import find_folder
from slipstream.errors import ModelError, SlipstreamError, UnsupportedModelError
from slipstream.findings import Finding
from slipstream.model_files import weights
from slipstream.model_files.head_checks import check_head, is_head
from slipstream.vocabularies import checks as vocabulary
from slipstream.vocabularies.rules import TRANSLATE


class BlockedError(ModelError):
    """A model or a pair that can't run here. `findings` are the doctor's blocking findings."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        super().__init__("\n".join(f"{f.id}: {f.evidence.rstrip('.')}. {f.cause} {f.fix}" for f in findings))


def explain_refusal(error: SlipstreamError, target: str, draft: str | None) -> SlipstreamError:
    """The doctor's findings for a model that failed to load; the error itself if there are none."""
    if draft and is_head(draft):
        findings = [*weights.check_weights(target), *check_head(draft, target)]
    elif isinstance(error, UnsupportedModelError):  # the files were read, so the doctor has nothing to add
        return error
    else:
        findings = [f for spec in (target, draft) if spec for f in weights.check_weights(spec)]
    blocking = [f for f in findings if f.severity == "blocks"]
    return BlockedError(blocking) if blocking else error


def refuse_other_vocabulary(target: str, draft: str, drafter: str | None) -> None:
    """Raises BlockedError if the requested drafter needs one vocabulary, and the two models have different ones."""
    if drafter is None or drafter.split("(")[0] != "model":
        return
    found = vocabulary.check_specs(target, draft, find_folder("slipstream").facts)
    differing = [f for f in found if f.id == TRANSLATE.id or f.severity == "blocks"]
    if differing:
        raise BlockedError(differing)
