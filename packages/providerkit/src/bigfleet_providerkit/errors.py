"""What a backend raises when something expected goes wrong; anything else counts as ``Terminal``."""

from typing import Final


class BackendError(Exception):
    """Base of the failures that a backend reports on purpose. The text ends up in ``last_error``."""


class InsufficientCapacity(BackendError):  # noqa: N818  # names of the provider's vocabulary (provider.md §12.3)
    """The substrate has none left, and made none. The offering is withheld for ``retry_after`` seconds."""

    retry_after: float = 300.0

    def __init__(self, message: str = "", *, retry_after: float = retry_after) -> None:
        super().__init__(message or "the substrate has no capacity left")
        self.retry_after = retry_after


class Retryable(BackendError):  # noqa: N818
    """It may work next time: the kit tries again after ``after`` seconds, until the transition times out."""

    after: float = 1.0

    def __init__(self, message: str = "", *, after: float = after) -> None:
        super().__init__(message or "the substrate asked to try again")
        self.after = after


class NotFound(BackendError):  # noqa: N818
    """The host does not exist. For drain and delete that is success; from inspect it is as good as GONE."""


class Terminal(BackendError):  # noqa: N818
    """It will not work, however often it is tried."""


class Unauthorized(Terminal):
    """The substrate refused our credentials."""


def finite_seconds(given: object, usual: float) -> float:
    """A time that a backend named, or the usual one where it named none that anybody could wait for."""
    return given if isinstance(given, int | float) and abs(given) < _FOREVER_S else usual


_FOREVER_S: Final = 1e9
