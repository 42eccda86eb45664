"""The Grafana dashboard asks for metrics that the server exports, and for all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from fakes import FakeModel, letters
from slipstream.core.engine import Engine
from slipstream.server.engine_metrics import EngineCollector
from slipstream.server.metrics import ServerMetrics
from slipstream.server.scheduler import Scheduler

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "slipstream.json"


def exported() -> set[str]:
    """The names of all samples of a server that has worked."""
    metrics = ServerMetrics()
    engine = Engine(FakeModel(), letters())
    metrics.registry.register(EngineCollector(Scheduler(engine, 4, 4, metrics)))
    metrics.answered("/v1/models", 200, 0.1)
    metrics.first_token(0.1)
    metrics.tokens(2, 0.1)
    metrics.started(0.1)
    engine.stats.drafted_at[1] = engine.stats.accepted_at[1] = 1
    families = text_string_to_metric_families(metrics.text().decode())
    return {sample.name for family in families for sample in family.samples}


def asked() -> set[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    text = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    return set(re.findall(r"\b(?:slipstream|process)_\w+", text))


def test_the_dashboard_asks_only_for_what_there_is():
    assert asked() <= exported()


def test_everything_of_the_server_is_on_the_dashboard():
    names = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exported() if name.startswith("slipstream_")}
    shown = {re.sub(r"_bucket$", "", name) for name in asked()}
    labels = {name.removesuffix("_total") for name in names if name.endswith("_total")}
    assert names - shown - labels - {"slipstream_model_info"} == set()


def test_latencies_are_shared_by_the_tokens_of_a_round():
    metrics = ServerMetrics()
    metrics.tokens(4, 0.2)
    text = metrics.text().decode()
    assert "slipstream_inter_token_seconds_count 4.0" in text
    assert "slipstream_inter_token_seconds_sum 0.2" in text
