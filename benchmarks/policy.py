"""The speculation policy, replayed on recorded answers and the measured costs of several machines.

    python benchmarks/policy.py [--quick] [--json] [--machines NAME,…] [--streams 1,16] [--kinds]
    python benchmarks/policy.py --save-baseline
    python benchmarks/policy.py --set slipstream.policy.constants.CAUTION=1.0
    python benchmarks/policy.py --quick --sensitivity
    python benchmarks/policy.py record --model big.gguf --draft small.gguf --prompts FILE … --out FILE

The real engine runs with the policy under test; the target, the drafters and the clock are stand-ins that say what was
recorded and charge what `machines.json` says. Columns, all but the first over plain decoding: `auto` is the policy,
`fixed` the best fixed length in hindsight, `best` the best possible choice per round, `was` the stored baseline.
"""

from __future__ import annotations

import sys
from itertools import pairwise

from policy_replay import overrides


def main() -> None:
    """Constants are changed before anything of slipstream is imported."""
    arguments = sys.argv[1:]
    changes = [value for flag, value in pairwise(arguments) if flag == "--set"]
    if changes:
        overrides.install(dict(map(overrides.parse, changes)))
    from policy_replay.command import run_command

    run_command(__doc__ or "", arguments)


if __name__ == "__main__":
    main()
