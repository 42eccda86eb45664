"""Every error that Slipstream raises on purpose.

SlipstreamError                one clear line for the user; the command line prints it without a traceback
├── UsageError                 a wrong option, value or combination (exit 2)
├── ModelError                 a model that can't be found, read or used (exit 1)
│   ├── ModelNotFoundError     the model does not exist here, and could not be downloaded
│   ├── DamagedModelError      the file is truncated, empty, a Git LFS pointer, or does not match its header
│   ├── UnsupportedModelError  valid, but with an architecture or a value that Slipstream can't run
│   └── NonFiniteLogitsError   the model computed NaN or infinity instead of logits
├── ContextFullError           the prompt does not fit in the model's context (exit 1)
├── CapacityError              the request can never fit in the reserved memory (exit 1)
├── UnfinishedBenchError       a benchmark failed after some samples; keeps the samples (exit 1)
├── MissingDependencyError     an optional dependency is missing; names the pip command (exit 1)
└── EngineError                an external engine failed (exit 1)
    ├── EngineStartError       it did not start, or did not become ready
    ├── SilentFallbackError    it was configured to speculate, but runs without speculation
    └── EngineRequestError     it could not be reached, refused, or stopped answering; keeps the partial text
"""

from __future__ import annotations


class SlipstreamError(Exception):
    """Base of all errors raised on purpose. `exit_code` is the exit code of the command line."""

    exit_code = 1


class UsageError(SlipstreamError):
    exit_code = 2


class ModelError(SlipstreamError):
    """`part` is the part of a model that could not be read: config, tensors or tokenizer; "" if it was another."""

    part = ""


class ModelNotFoundError(ModelError):
    pass


class DamagedModelError(ModelError):
    pass


class UnsupportedModelError(ModelError):
    pass


class NonFiniteLogitsError(ModelError):
    pass


class ContextFullError(SlipstreamError):
    pass


class CapacityError(SlipstreamError):
    pass


class UnfinishedBenchError(SlipstreamError):
    """`record` has the samples, ready for JSON. The command line prints it."""

    def __init__(self, message: str, record: dict[str, object]) -> None:
        self.record = record
        super().__init__(message)


class MissingDependencyError(SlipstreamError):
    pass


class EngineError(SlipstreamError):
    pass


class EngineStartError(EngineError):
    pass


class SilentFallbackError(EngineError):
    pass


class EngineRequestError(EngineError):
    """`status` is the HTTP status; None if there was no response. `partial_text` is the text received so far."""

    def __init__(self, message: str, status: int | None = None, partial_text: str = "") -> None:
        self.status = status
        self.partial_text = partial_text
        super().__init__(message)
