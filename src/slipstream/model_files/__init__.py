"""Model files: what they say about a model, and whether they are complete. Reads headers; imports no torch."""
