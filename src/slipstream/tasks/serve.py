"""`serve`: the engine behind an OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from slipstream.backends import MachineOptions
from slipstream.errors import MissingDependencyError
from slipstream.extras import install_command
from slipstream.server.settings import ServeOptions
from slipstream.tasks.models import load_models
from slipstream.tasks.options import ModelOptions
from slipstream.tasks.reporter import SILENT, Reporter

_NEEDED = ("starlette", "uvicorn", "pydantic", "prometheus_client", "llguidance")


def serve(
    models: ModelOptions = ModelOptions(),
    options: ServeOptions = ServeOptions(),
    *,
    machine: MachineOptions = MachineOptions(),
    reporter: Reporter = SILENT,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serves until SIGINT or SIGTERM. `on_ready` is called with the address. What can't work fails before the model is
    loaded."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"serve needs {missing[0]}: {install_command('server')}")
    from slipstream.server.keys import read_keys
    from slipstream.server.run import bind, make_service, run

    keys = read_keys(options)
    with bind(options) as bound:
        reporter.say(f"loading {models.resolved().name}")
        loaded = load_models(models, machine, reporter)
        reporter.say("measuring the cost of decoding steps")
        engine = loaded.engine(max_streams=options.max_streams, max_stall_s=options.max_stall)
        service = make_service(engine, loaded.pair.target.tokenizer, options, keys)
        run(service, bound, on_ready)
