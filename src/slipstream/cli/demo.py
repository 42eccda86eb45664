"""`slipstream demo`: the same prompts decoded plainly and speculatively, side by side."""

from __future__ import annotations

import typer

from slipstream.cli import options as opt
from slipstream.cli.bench import DEFAULT_DRAFTERS, bench_models, print_result


def demo(
    model: opt.Model = None,
    drafter: opt.Drafters = DEFAULT_DRAFTERS,
    max_tokens: opt.MaxTokens = 64,
    backend: opt.BackendOption = None,
    as_json: opt.Json = False,
) -> None:
    """See it work: prompts of eight kinds decoded plainly and speculatively, the text compared word for word.

    [bold]Examples[/bold]

      slipstream demo

      slipstream demo --drafter ngram --max-tokens 200
    """
    from slipstream.bench.prompt_files import own_prompts
    from slipstream.bench.runner import BenchSettings
    from slipstream.bench.workload import take
    from slipstream.cli.loading import load_models
    from slipstream.core.stream import Limits

    models = load_models(opt.LoadSettings.resolve(model, None, None, None, backend=backend))
    settings = BenchSettings(limits=Limits(max_tokens), passes=1)
    result = bench_models(
        models, opt.split_drafters(drafter or DEFAULT_DRAFTERS), take(own_prompts(), 8), settings, "slipstream demo"
    )
    print_result(result, as_json)
    if any(run.same_text is False for run in result.runs):
        raise typer.Exit(1)
