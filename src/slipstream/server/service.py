"""Service: the loaded model and all that the routes need of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.core.engine import Engine
from slipstream.core.stream import Drafter
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.server.grammar import Grammars
from slipstream.server.keys import ApiKeys
from slipstream.server.live_stats import LiveStats
from slipstream.server.scheduler import Scheduler
from slipstream.server.settings import ServeOptions


@dataclass(frozen=True, slots=True)
class Service:
    engine: Engine
    tokenizer: Tokenizer
    drafters: Mapping[str, Drafter]  # by name, that a request may ask for
    grammar_drafter: Drafter  # of answers that have to fit a grammar
    options: ServeOptions
    keys: ApiKeys
    scheduler: Scheduler
    grammars: Grammars
    live: LiveStats

    @property
    def model(self) -> str:
        return self.engine.target.info.name
