"""The exception tree: one class per cause, each text saying what, the value, what is allowed, and which knob to turn.

Owns: every exception that leaves the package. Must not know: anything else of the package.

Invariants:
1. Everything raised on purpose towards a user derives from `OctavoError`.
2. ``str(error)`` is the message, followed by a ``hint:`` line when there is something the user can change.
"""


class OctavoError(Exception):
    """The root of everything that the package raises on purpose.

    Args:
        message: what happened, with the offending value and what is allowed instead.
        hint: the setting or action that mends it; omitted when there is none.
    """

    def __init__(self, message: str, *, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(OctavoError):
    """A setting has a value that it cannot have, or two settings contradict each other."""


class UnsupportedModelError(OctavoError):
    """The model's description asks for arithmetic that this engine does not have."""


class CheckpointError(OctavoError):
    """A weight, tokenizer or configuration file is missing, damaged, or does not fit the model's description."""


class RequestError(OctavoError):
    """A request has a field that cannot be honoured.

    Args:
        field: the offending field's name as the caller wrote it, e.g. ``temperature``.
    """

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None):
        super().__init__(message, hint=hint)
        self.field = field


class CapacityError(OctavoError):
    """A request needs more KV blocks, queue places or sequences than there are.

    Args:
        may_fit_later: False when the request can never be served with the present settings.
    """

    def __init__(self, message: str, *, may_fit_later: bool = False, hint: str | None = None):
        super().__init__(message, hint=hint)
        self.may_fit_later = may_fit_later


class IntegrityError(OctavoError):
    """K and V in memory are not what was computed."""


class StallError(OctavoError):
    """Requests were in the engine and it could run none of them.

    Args:
        request_id: the request that was given up so that others may get on; None when it is not known.
    """

    def __init__(self, message: str, *, request_id: str | None, hint: str | None = None):
        super().__init__(message, hint=hint)
        self.request_id = request_id


class SnapshotError(OctavoError):
    """A saved session does not match this model, or its file is damaged."""
