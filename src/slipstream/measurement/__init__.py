"""Measuring: plain and speculative decoding through the same loop and timer."""
