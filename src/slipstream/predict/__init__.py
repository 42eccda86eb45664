"""Prediction: what a machine, a model or a pair will do before it runs: speed and memory."""
