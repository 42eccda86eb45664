"""Slipstream's own engine (`core/engine`), as the doctor and the memory plan see it."""
