"""An engine that does not exist, in a folder like a real one's. One entry in `FOLDERS` makes it known."""
