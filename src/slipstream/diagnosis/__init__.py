"""The doctor: says before the first token whether a pair, a machine and a configuration work, and if not, why."""
