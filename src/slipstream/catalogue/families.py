"""Well-known model families by vocabulary: the family of a vocabulary, and the published models that share it. The data
is in families.json.

A family is recognised by the token strings at a few ids, which no other family here has at the same ids. `source` says
where the sample tokens are from: verified ones were read from the family's own tokenizer file with Slipstream's
readers, the others were not checked against a file. Sizes and contexts of members are from public sources, unchecked. A
match is only a hint; whether two models are compatible is always decided by comparing their files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Source = Literal["verified", "from public documentation"]


@dataclass(frozen=True, slots=True)
class Member:
    """A published model. `repo` is its id on the hub."""

    repo: str
    params_b: float  # billions of parameters
    num_layers: int
    num_kv_heads: int
    head_dim: int
    context_length: int

    @property
    def name(self) -> str:
        return self.repo.partition("/")[2]


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share a vocabulary. `vocab_sizes` are rows of the embedding; there are several if the padding
    differs.
    """

    name: str
    kind: str  # kind of tokenizer
    vocab_sizes: tuple[int, ...]
    samples: Mapping[int, str]
    source: Source
    members: tuple[Member, ...]
    fingerprint: str | None = None  # of the vocabulary (`Vocabulary.fingerprint`), if a file was available
    note: str = ""

    def has(self, strings: Sequence[str | None]) -> bool:
        """Whether a vocabulary looks like this family's."""
        return all(token_id < len(strings) and strings[token_id] == text for token_id, text in self.samples.items())

    def drafts_for(self, params_b: float) -> list[Member]:
        """Members small enough to draft for a target of this size (well below half of it), smallest first."""
        return sorted((m for m in self.members if m.params_b <= params_b / 2.5), key=lambda m: m.params_b)


def recognise(strings: Sequence[str | None]) -> Family | None:
    """The family of a vocabulary, or None. If one family's tokens contain another's, the larger family is returned."""
    matches = [family for family in FAMILIES if family.has(strings)]
    return max(matches, key=lambda family: max(family.samples), default=None)


def member_named(name: str) -> Member | None:
    """A member by its hub id or the part after the slash, case-insensitive; None if it is not in the table."""
    wanted = name.lower()
    members = (member for family in FAMILIES for member in family.members)
    return next((m for m in members if wanted in (m.repo.lower(), m.name.lower())), None)


def member_sized(params_b: float) -> Member:
    """The member nearest in size."""
    members = (member for family in FAMILIES for member in family.members)
    return min(members, key=lambda m: abs(math.log(m.params_b / params_b)))


def _read(entry: dict[str, Any]) -> Family:
    members = tuple(Member(*fields) for fields in entry.pop("members"))
    samples = {int(token): text for token, text in entry.pop("samples").items()}
    return Family(**entry | {"vocab_sizes": tuple(entry["vocab_sizes"])}, members=members, samples=samples)


FAMILIES = tuple(map(_read, json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8"))))
