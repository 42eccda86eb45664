"""Prediction of speed and memory for a machine, a model or a pair, before it runs."""
