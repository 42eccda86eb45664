"""`head`: drafts with a head that was trained on the target's own hidden states."""
