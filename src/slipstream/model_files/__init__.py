"""Model files: what they say of a model, and whether they are whole. Reads headers, no torch."""
