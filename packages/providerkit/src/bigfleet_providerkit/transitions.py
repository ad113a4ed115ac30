"""A transition after its acceptance: backend calls, retries, readiness, its end (provider.md §6)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bigfleet_base.model import HostRef, MachineState
from bigfleet_providerkit.backend import Host, HostStatus, Operation
from bigfleet_providerkit.effects import Settled
from bigfleet_providerkit.errors import InsufficientCapacity, NotFound, Retryable, finite_seconds
from bigfleet_providerkit.inventory import Inventory
from bigfleet_providerkit.lasterror import last_error
from bigfleet_providerkit.records import Kind, ShapeError, Slot, is_host_ref
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.state import State
from bigfleet_providerkit.work import NANOS, Job, TimedOut, Work

TRANSITIONAL: Final = {
    Kind.CREATE: MachineState.CREATING,
    Kind.CONFIGURE: MachineState.CONFIGURING,
    Kind.DRAIN: MachineState.DRAINING,
    Kind.DELETE: MachineState.DELETING,
}
TARGET: Final = {
    Kind.CREATE: MachineState.IDLE,
    Kind.CONFIGURE: MachineState.CONFIGURED,
    Kind.DRAIN: MachineState.IDLE,
    Kind.DELETE: MachineState.SPECULATIVE,
}
SOURCE: Final = {
    Kind.CREATE: MachineState.SPECULATIVE,
    Kind.CONFIGURE: MachineState.IDLE,
    Kind.DRAIN: MachineState.CONFIGURED,
    Kind.DELETE: MachineState.IDLE,
}
KIND_OF: Final = {state: kind for kind, state in TRANSITIONAL.items()}

_FIRST_POLL: Final = NANOS // 5
_LAST_POLL: Final = 5 * NANOS
_DRAIN_MARGIN: Final = 60 * NANOS


@dataclass(eq=False, slots=True)
class _Transition:
    """One run of a transition; nothing of it survives a restart but its slot."""

    machine_id: str
    kind: Kind
    operation_id: str
    started: int
    timeout: int
    blob: bytes = b""
    deadline: int = 0
    """Set when the backend is first called: time spent waiting for our own limits is not the backend's."""
    polls: int = 0
    trouble: str = ""
    """The last error that did not end it."""


class Transitions:
    """Drives machines from acceptance to a stable state or Failed."""

    def __init__(
        self,
        settings: Settings,
        state: State,
        work: Work,
        inventory: Inventory,
        jitter: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._state = state
        self._work = work
        self._inventory = inventory
        self._jitter = jitter
        self._inflight = dict.fromkeys(Kind, 0)
        self._uncertain: set[str] = set()
        self.on_failed: Callable[[Slot, int], None] = lambda slot, now: None

    @property
    def inflight(self) -> dict[Kind, int]:
        """Transitions under way, by kind."""
        return self._inflight

    @property
    def uncertain(self) -> int:
        """Interrupted Configures that nobody has looked at yet."""
        return len(self._uncertain)

    def begin(self, slot: Slot, kind: Kind, now: int, blob: bytes = b"") -> None:
        """Start the backend's part, once the acceptance is durable."""
        self._inflight[kind] += 1
        self._submit(self._run(slot, kind, now, blob), kind.value)

    def resume(self, slot: Slot, now: int) -> None:
        """Take up a transition that a restart interrupted (P-121, P-122)."""
        kind = KIND_OF[slot.state]
        if kind is not Kind.CONFIGURE:
            self.begin(slot, kind, now)
            return
        # The blob is gone, so only a bootstrap that has already run can be brought to its end.
        self._inflight[kind] += 1
        self._uncertain.add(slot.id)
        run = self._run(slot, kind, now, b"")
        if not self._settings.capabilities.inspect:
            self._work.at(now, partial(self._looked, run, None, None))
            return
        view = slot.view()
        self._work.submit(
            Job(
                "inspect",
                slot.id,
                lambda _: (view, self._settings.describe_timeout),
                partial(self._looked, run),
            )
        )

    def _run(self, slot: Slot, kind: Kind, now: int, blob: bytes) -> _Transition:
        timeout = self._settings.timeouts[kind]
        if kind is Kind.DRAIN and slot.grace:
            timeout = max(timeout, slot.grace * NANOS + _DRAIN_MARGIN)
        return _Transition(slot.id, kind, slot.operations[kind.place], now, timeout, blob)

    def _looked(self, run: _Transition, value: Any, error: BaseException | None, now: int) -> None:
        self._state.later(partial(self._uncertain.discard, run.machine_id))
        slot = self._slot(run)
        if slot is None:
            return
        if value is not HostStatus.BOOTSTRAPPED:
            self._fail(run, slot, "interrupted", "the provider restarted before the bootstrap had run", now)
        elif self._settings.capabilities.probe:
            self._state.later(partial(self._submit, run, "node_ready"))
        else:
            self._finish(run, slot, now)

    def _submit(self, run: _Transition, method: str) -> None:
        self._work.submit(
            Job(method, run.machine_id, partial(self._prepare, run), partial(self._ended, run, method))
        )

    def _prepare(self, run: _Transition, now: int) -> tuple[Operation, int]:
        run.deadline = run.deadline or now + run.timeout
        slot = self._state.slots.committed[run.machine_id]
        left = max(0, run.deadline - now)
        # Whoever is called again has not got the whole grace again: pods have had it since the first call.
        used = (run.timeout - left) // NANOS
        operation = Operation(
            machine=slot.view(),
            operation_id=run.operation_id,
            timeout=left / NANOS,
            cluster_id=slot.cluster,
            bootstrap_blob=run.blob,
            grace_seconds=max(0, slot.grace - used),
        )
        return operation, left

    def _ended(
        self, run: _Transition, method: str, value: Any, error: BaseException | None, now: int
    ) -> None:
        slot = self._slot(run)
        if slot is None:
            return
        match error:
            case None:
                self._returned(run, slot, method, value, now)
            case NotFound() if run.kind in (Kind.DRAIN, Kind.DELETE):
                self._finish(run, slot, now)
            case TimedOut():
                self._timed_out(run, slot, method, now)
            case Retryable():
                run.trouble = _text(error)
                after = max(0.01, finite_seconds(error.after, Retryable.after))
                self._again(run, slot, method, round(after * NANOS), now)
            case InsufficientCapacity() if run.kind is Kind.CREATE:
                self._inventory.withhold(slot, error.retry_after, now)
                self._fail(run, slot, "capacity", _text(error), now)
            case _ if method == "node_ready":
                # A probe that cannot be made is no verdict on the node; the timeout is.
                run.trouble = _text(error)
                self._again(run, slot, method, self._poll_pause(run), now)
            case _:
                self._fail(run, slot, "substrate", _text(error), now)

    def _returned(self, run: _Transition, slot: Slot, method: str, value: Any, now: int) -> None:
        if method == "create":
            self._created(run, slot, value, now)
        elif method == "configure" and self._settings.capabilities.probe:
            self._state.later(partial(self._configured, run))
        elif method == "node_ready" and value is not True:
            if value is not False:
                self._fail(run, slot, "substrate", f"node_ready returned {value!r}, not True or False", now)
                return
            self._again(run, slot, method, self._poll_pause(run), now)
        else:
            self._finish(run, slot, now)

    def _configured(self, run: _Transition) -> None:
        # What went wrong until now is over, and without the blob nobody could keep it out of last_error.
        run.blob, run.trouble = b"", ""
        self._submit(run, "node_ready")

    def _created(self, run: _Transition, slot: Slot, value: Any, now: int) -> None:
        if not isinstance(value, Host) or not is_host_ref(value.ref):
            self._fail(run, slot, "substrate", f"create returned {value!r}, not a Host with a ref", now)
            return
        host = HostRef(self._settings.provider, value.ref)
        try:
            size = self._inventory.refined_shape(slot, value)
        except ShapeError as error:
            self._fail(run, slot, "substrate", f"host {value.ref}: {error}", now, host=host)
            return
        self._finish(run, slot, now, host=host, **size)

    def _again(self, run: _Transition, slot: Slot, method: str, pause: int, now: int) -> None:
        wake = now + round(pause * (1 + self._jitter() / 4))
        if wake < run.deadline:
            due = partial(self._wake, run, method)
            self._state.later(lambda: self._work.at(wake, due))
        else:
            late = partial(self._out_of_time, run, method)
            self._state.later(lambda: self._work.at(run.deadline, late))

    def _wake(self, run: _Transition, method: str, now: int) -> None:
        self._state.later(partial(self._submit, run, method))

    def _out_of_time(self, run: _Transition, method: str, now: int) -> None:
        slot = self._slot(run)
        if slot is not None:
            self._timed_out(run, slot, method, now)

    def _timed_out(self, run: _Transition, slot: Slot, method: str, now: int) -> None:
        seconds = run.timeout / NANOS
        tail = f"; last trouble: {run.trouble}" if run.trouble else ""
        if method == "node_ready":
            self._fail(run, slot, "readiness", f"the node was not Ready within {seconds:g} s{tail}", now)
        else:
            self._fail(
                run, slot, "timeout", f"{method} did not end within {seconds:g} s (timeout){tail}", now
            )

    def _finish(self, run: _Transition, slot: Slot, now: int, **values: Any) -> None:
        match run.kind:
            case Kind.CREATE:
                self._state.change(slot, state=MachineState.IDLE, note=b"", **values)
            case Kind.CONFIGURE:
                self._state.change(slot, state=MachineState.CONFIGURED)
            case Kind.DRAIN:
                self._state.change(slot, state=MachineState.IDLE, cluster="", binding=b"", note=b"", grace=0)
            case Kind.DELETE:
                self._inventory.settle_free(slot)
        self._settled(run, "ok", now)

    def _fail(self, run: _Transition, slot: Slot, reason: str, text: str, now: int, **values: Any) -> None:
        error = last_error(run.kind.value, reason, text, run.blob)
        failed = self._state.change(slot, state=MachineState.FAILED, last_error=error, **values)
        self._settled(run, reason, now, error)
        self._state.later(partial(self.on_failed, failed, now))

    def _settled(self, run: _Transition, outcome: str, now: int, error: str = "") -> None:
        seconds = (now - run.started) / NANOS
        self._state.report(Settled(run.kind, run.machine_id, run.operation_id, outcome, seconds, error))
        self._state.later(partial(self._count_down, run.kind))

    def _count_down(self, kind: Kind) -> None:
        self._inflight[kind] -= 1

    def _slot(self, run: _Transition) -> Slot | None:
        """The machine, if this very run is still what it is waiting for (P-52)."""
        slot = self._state.slots.get(run.machine_id)
        if slot is None or slot.state is not TRANSITIONAL[run.kind]:
            return None
        return slot if slot.operations[run.kind.place] == run.operation_id else None

    def _poll_pause(self, run: _Transition) -> int:
        run.polls += 1
        return int(min(_LAST_POLL, _FIRST_POLL * 1.5 ** min(run.polls, 20)))


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
