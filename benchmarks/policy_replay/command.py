"""The command line: `record`, or the comparison."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from policy_replay import main, record


def run_command(description: str, arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if arguments[:1] == ["record"]:
        record.add_arguments(parser)
        record.main(parser.parse_args(arguments[1:]))
        return
    main.add_arguments(parser)
    main.main(parser.parse_args(arguments))
