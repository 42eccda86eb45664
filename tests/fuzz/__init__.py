"""A fuzz of the engine against an independent plain decoding loop. See `python -m fuzz --help`."""
