"""The parts of `benchmarks/policy.py`: recorded answers, machines, the replay and what it is compared with."""
