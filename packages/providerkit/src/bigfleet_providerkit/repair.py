"""Failed is never a dead end: look at the host, clean up, and give the slot back (provider.md §6.3)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from bigfleet_base.model import MachineState
from bigfleet_providerkit.backend import CleanupResult, HostStatus, Operation
from bigfleet_providerkit.effects import RepairTried
from bigfleet_providerkit.errors import NotFound
from bigfleet_providerkit.inventory import Inventory
from bigfleet_providerkit.lasterror import failed_kind, reason
from bigfleet_providerkit.records import Kind, Slot
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.state import State
from bigfleet_providerkit.work import NANOS, Job, Work


@dataclass(eq=False, slots=True)
class _Repair:
    machine_id: str
    error: str
    """The failure being repaired; a machine that failed anew gets a repair of its own."""
    revision: int
    """The machine's, when its repair was planned."""
    attempts: int = 0


class Repair:
    """Brings Failed machines back, each at its own pace."""

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

    def plan(self, slot: Slot, now: int) -> None:
        """Leave a machine alone while Failed must stay visible, then try."""
        is_capacity = reason(slot.last_error) == "capacity"
        pause = self._settings.capacity_quarantine if is_capacity else self._settings.quarantine
        self._work.at(now + pause, partial(self._try, _Repair(slot.id, slot.last_error, slot.revision)))

    def _try(self, repair: _Repair, now: int) -> None:
        slot = self._slot(repair)
        if slot is None:
            return
        if self._work.lingers_on(slot.id):
            # The call that was given up on may still make or change a host: repaired now, the next Create
            # would make a second one.
            self._give_up(repair, "waiting", "a backend call that timed out has not come back", now)
        elif reason(slot.last_error) == "capacity":
            self._free(repair, slot)
        elif self._settings.capabilities.inspect:
            self._call(repair, "inspect", partial(self._inspected, repair))
        else:
            self._clean(repair, slot, None, now)

    def _inspected(self, repair: _Repair, value: Any, error: BaseException | None, now: int) -> None:
        slot = self._slot(repair)
        if slot is None:
            return
        status = value if error is None and isinstance(value, HostStatus) else HostStatus.UNKNOWN
        if isinstance(error, NotFound):
            status = HostStatus.GONE
        if status is HostStatus.UNKNOWN:
            self._give_up(repair, "unknown", "inspect cannot tell" if error is None else str(error), now)
        else:
            self._clean(repair, slot, status, now)

    def _clean(self, repair: _Repair, slot: Slot, status: HostStatus | None, now: int) -> None:
        if reason(slot.last_error) == "binding-unknown" and status is not HostStatus.GONE:
            # It may be serving someone: nobody but its owner may end that.
            self._give_up(repair, "waiting", "the host still exists and its binding is unknown", now)
        elif self._settings.capabilities.cleanup:
            self._call(repair, "cleanup", partial(self._cleaned, repair))
        elif status is HostStatus.GONE:
            self._free(repair, slot)
        elif (
            failed_kind(slot.last_error) in ("configure", "drain", "host")
            and status is not HostStatus.STOPPED
        ):
            self._call(repair, "drain", partial(self._drained, repair))
        elif self._settings.capabilities.delete:
            self._call(repair, "delete", partial(self._deleted, repair))
        else:
            self._give_up(repair, "unknown", "the backend has neither cleanup nor delete", now)

    def _cleaned(self, repair: _Repair, value: Any, error: BaseException | None, now: int) -> None:
        slot = self._slot(repair)
        if slot is None:
            return
        if error is None and value is CleanupResult.GONE:
            self._free(repair, slot)
        elif error is None and value is CleanupResult.CLEAN and slot.host:
            self._idle(repair, slot)
        elif error is None and value is CleanupResult.CLEAN and self._settings.capabilities.delete:
            # Of a create that failed nobody here knows which host is clean, so it cannot be used.
            self._call(repair, "delete", partial(self._deleted, repair))
        else:
            self._give_up(repair, "unknown" if error is None else "error", str(error or value), now)

    def _drained(self, repair: _Repair, value: Any, error: BaseException | None, now: int) -> None:
        slot = self._slot(repair)
        if slot is None:
            return
        if error is None and slot.host:
            self._idle(repair, slot)
        elif self._settings.capabilities.delete:
            self._call(repair, "delete", partial(self._deleted, repair))
        elif isinstance(error, NotFound):
            self._free(repair, slot)
        else:
            self._give_up(repair, "error", str(error), now)

    def _deleted(self, repair: _Repair, value: Any, error: BaseException | None, now: int) -> None:
        slot = self._slot(repair)
        if slot is None:
            return
        if error is None or isinstance(error, NotFound):
            self._free(repair, slot)
        else:
            self._give_up(repair, "error", str(error), now)

    def _free(self, repair: _Repair, slot: Slot) -> None:
        self._inventory.settle_free(slot)
        self._state.report(RepairTried(slot.id, "repaired"))

    def _idle(self, repair: _Repair, slot: Slot) -> None:
        self._state.change(
            slot,
            state=MachineState.IDLE,
            cluster="",
            binding=b"",
            note=b"",
            grace=0,
            last_error="",
        )
        self._state.report(RepairTried(slot.id, "repaired"))

    def _give_up(self, repair: _Repair, outcome: str, detail: str, now: int) -> None:
        self._state.report(RepairTried(repair.machine_id, outcome, detail))
        first, last = self._settings.repair_backoff
        pause = min(last, first << min(repair.attempts, 16))
        when = now + round(pause * (1 + self._jitter() / 4))

        def plan() -> None:
            repair.attempts += 1
            self._work.at(when, partial(self._try, repair))

        self._state.later(plan)

    def _call(
        self, repair: _Repair, method: str, end: Callable[[Any, BaseException | None, int], None]
    ) -> None:
        job = Job(
            method, repair.machine_id, partial(self._prepare, repair, method), end, failed_kind(repair.error)
        )
        self._state.later(lambda: self._work.submit(job))

    def _prepare(self, repair: _Repair, method: str, now: int) -> tuple[Any, int]:
        slot = self._state.slots.committed[repair.machine_id]
        if method == "inspect":
            return slot.view(), self._settings.describe_timeout
        if method == "cleanup":
            return slot.view(), self._settings.timeouts[Kind.DELETE]
        timeout = self._settings.timeouts[Kind(method)]
        operation = Operation(
            machine=slot.view(),
            operation_id=self._operation_id(repair, slot),
            timeout=timeout / NANOS,
            cluster_id=slot.cluster,
        )
        return operation, timeout

    def _operation_id(self, repair: _Repair, slot: Slot) -> str:
        """Repairs mint none: the substrate sees the one of the step that failed. An older one it would take
        for what it has long done, and do nothing (P-42, P-47)."""
        recorded = dict(zip(Kind, slot.operations, strict=True))
        kind = failed_kind(repair.error)
        # A lost host failed in no step. Operations are numbered by the revision of their start, so that none
        # has this id.
        return recorded[Kind(kind)] if kind in recorded else f"{self._state.incarnation}-{repair.revision}"

    def _slot(self, repair: _Repair) -> Slot | None:
        slot = self._state.slots.get(repair.machine_id)
        if slot is None or slot.state is not MachineState.FAILED or slot.last_error != repair.error:
            return None
        return slot
