"""What the fake's substrate consists of: hosts, and calls that are under way on them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bigfleet_providerkit.errors import BackendError, Terminal


@dataclass(eq=False, slots=True)
class FakeHost:
    """A host on the substrate, with the tags it carries."""

    ref: str
    machine_id: str
    running_at: int
    cluster: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    bootstrapped_at: int | None = None
    ready_at: int | None = None
    is_stopped: bool = False

    def unbind(self) -> None:
        self.cluster, self.metadata, self.bootstrapped_at, self.ready_at = "", {}, None, None


@dataclass(eq=False, slots=True)
class Step:
    """A backend call under way: it ends at ``at``, or when ``changed`` says that this has moved."""

    machine_id: str
    at: int | None
    """None until somebody completes or cancels it."""
    end: Callable[[int], Any]
    """Do what the call does to the substrate; returns its value or raises its error."""
    late: int = 0
    changed: Callable[[], None] = lambda: None

    def cancel(self, now: int) -> None:
        """The kit has given up on it: it ends now, or well but late."""
        if self.late:
            self.at = now + self.late
        else:
            self.fail(Terminal("cancelled"), now)

    def fail(self, error: BackendError, now: int) -> None:
        def end(_now: int) -> Any:
            raise error

        self.at, self.end = now, end

    def complete(self, now: int) -> None:
        self.at = now
