"""Slow runs, by the numbers in a log: CPU speed, few drafts accepted, slower than plain, verification one by one."""

from __future__ import annotations

from slipstream.diagnosis.log_acceptance import acceptance_in, many_requests_in
from slipstream.diagnosis.log_cache import full_cache_in
from slipstream.diagnosis.log_one_by_one import one_by_one_in
from slipstream.diagnosis.log_speed import slow_as_a_cpu, slower_in
from slipstream.diagnosis.log_vocabulary import vocabulary_sizes_in
from slipstream.parsing.log_scan import Located


def slow_runs(text: str) -> list[Located]:
    """What makes the run of this log slow: one explanation for drafting, whether the CPU does the work,
    whether the KV cache is full, and whether vocabularies differ.
    """
    finders = (one_by_one_in, acceptance_in, slower_in, many_requests_in)
    drafting = next((found for find in finders if (found := list(find(text)))), [])
    return [*slow_as_a_cpu(text), *full_cache_in(text), *vocabulary_sizes_in(text), *drafting]
