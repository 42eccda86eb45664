"""Every error that Slipstream raises on purpose.

SlipstreamError                one clear line for the user; the command line prints it without a traceback
├── UsageError                 a wrong option, value or combination (exit 2)
├── ModelError                 a model that can't be found, read or used (exit 1)
│   ├── ModelNotFoundError     nothing is where the spec points, and nothing could be fetched
│   ├── DamagedModelError      the file is truncated, empty, a pointer, or contradicts its own header
│   ├── UnsupportedModelError  sound, but of an architecture or with a value this project can't run
│   └── NonFiniteLogitsError   it computed NaN or infinity instead of logits
├── ContextFullError           the prompt does not fit the model's context (exit 1)
├── CapacityError              the request can never fit the memory set aside for it (exit 1)
├── UnfinishedBenchError       a benchmark failed after something was measured; keeps it (exit 1)
├── MissingDependencyError     an optional dependency is missing; names the pip command (exit 1)
└── EngineError                an external engine, and what it did (exit 1)
    ├── EngineStartError       it did not start, or did not become ready
    ├── SilentFallbackError    it was asked to speculate, started, and decodes plainly
    └── EngineRequestError     it could not be asked, refused, broke off or fell silent; keeps the partial text
"""

from __future__ import annotations


class SlipstreamError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line exits with."""

    exit_code = 1


class UsageError(SlipstreamError):
    exit_code = 2


class ModelError(SlipstreamError):
    pass


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
    """`record` is what was measured, ready for JSON. The command line prints it."""

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
    """`status` is the HTTP status, None where there was no answer. `partial_text` is what had come until then."""

    def __init__(self, message: str, status: int | None = None, partial_text: str = "") -> None:
        self.status = status
        self.partial_text = partial_text
        super().__init__(message)
