"""Keeps measured samples if a later step fails: raw samples as JSON when the figures can't be computed."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slipstream.cache import cache_folder
from slipstream.errors import SlipstreamError, UnfinishedBenchError
from slipstream.measurement.samples import PromptSample
from slipstream.writing import PRIVATE, write_whole

SCHEMA = "slipstream.samples/1"
log = logging.getLogger("slipstream")


@contextmanager
def written_first(samples: Sequence[PromptSample]) -> Iterator[None]:
    """Writes the samples to the cache, then runs the block, which computes figures from them.

    The file is that of the last benchmark. An error inside the block is that of `keeping`.
    """
    try:
        path = cache_folder("bench") / "samples.json"
        write_whole(path, json.dumps(_record(samples, ""), ensure_ascii=False), PRIVATE)
    except (OSError, SlipstreamError) as error:  # the figures don't need it
        log.warning("the samples can't be written before the summary: %s", error)
    with keeping(samples):
        yield


@contextmanager
def keeping(samples: Sequence[PromptSample]) -> Iterator[None]:
    """An error inside the block becomes an UnfinishedBenchError with the samples.

    Without samples the error is raised unchanged.
    """
    try:
        yield
    except Exception as error:  # any error: it is raised again, with the samples
        if not samples:
            raise
        log.debug("the benchmark failed", exc_info=True)
        what = f"the benchmark failed after {len(samples)} samples, which are printed as JSON: {_described(error)}"
        raise UnfinishedBenchError(what, _record(samples, _described(error))) from error


def _described(error: Exception) -> str:
    """The text of an error raised on purpose is enough; for others the place is added, to find the fault."""
    if isinstance(error, SlipstreamError):
        return str(error)
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({at.filename.rpartition('/')[2]}:{at.lineno})"


def _record(samples: Sequence[PromptSample], error: str) -> dict[str, object]:
    return {"schema": SCHEMA, "error": error, "samples": [_sample(sample) for sample in samples]}


def _sample(sample: PromptSample) -> dict[str, object]:
    return {
        "drafter": sample.generator,
        "prompt": sample.prompt.id,
        "kind": sample.prompt.kind,
        "pass": sample.pass_number,
        "answers": [
            {"text": a.text, "tokens": list(a.tokens), "finish_reason": a.finish_reason, "stats": a.stats.to_dict()}
            for a in sample.answers
        ],
    }
