from __future__ import annotations

from collections.abc import Iterator

from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding
from slipstream.predict.memory import MB, EngineMemory
from slipstream.vocabularies.comparison import Pair
from slipstream.vocabularies.rules import unchecked


def check_vocabulary(pair: Pair) -> Iterator[Finding]:
    yield from unchecked(pair, "Made-up", "compares nothing", "")


FACTS = EngineFacts(
    name="made-up",
    title="Made-up",
    aliases=("invented",),
    weights="folder",
    memory=EngineMemory("layers", 123 * MB, 0, 512, 32),
    quantisations={"none": ""},
    best_weights="the unquantised model",
    check_vocabulary=check_vocabulary,
)
