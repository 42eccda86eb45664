"""Training a draft head for a target, in plain torch: text that the target writes itself, then the head on it."""
