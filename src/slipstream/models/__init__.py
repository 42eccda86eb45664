"""Where models come from: a spec string is resolved to a path, and a path is opened as a Checkpoint.

Importing this package loads neither numpy nor a tokenizer library: the readers are loaded when a model is
opened.
"""

from slipstream.models.opening import open_checkpoint
from slipstream.models.sources.spec import pull, resolve

__all__ = ["open_checkpoint", "pull", "resolve"]
