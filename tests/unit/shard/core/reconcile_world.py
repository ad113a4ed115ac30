"""A Reconcile with a fleet under it and nothing around it: tests play providers, executor and clock."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar, cast

from bigfleet.engine.cycle import Engine
from bigfleet.engine.options import SECOND
from bigfleet.shard.core.context import Cause, Context
from bigfleet.shard.core.effects import Effect, GetMachine, WriteLog
from bigfleet.shard.core.events import Failure, GetEnded, Listed, ListEnded, ListFailed, Observed
from bigfleet.shard.core.fleet import Fleet, FleetState
from bigfleet.shard.core.outbox import Outboxes
from bigfleet.shard.core.reconcile import Reconcile, ReconcileState
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.provider import FailureKind
from bigfleet_base.model import CapacityType, HostRef, Machine, MachineState, Preemptor, ResourceVector

SPECULATIVE, CREATING, IDLE = MachineState.SPECULATIVE, MachineState.CREATING, MachineState.IDLE
CONFIGURING, CONFIGURED, DRAINING = MachineState.CONFIGURING, MachineState.CONFIGURED, MachineState.DRAINING
DELETING, FAILED = MachineState.DELETING, MachineState.FAILED

_HOSTLESS = (SPECULATIVE, CREATING)
_BOUND = (CONFIGURING, CONFIGURED, DRAINING)

NOT_FOUND = Failure(FailureKind.NOT_FOUND, "NOT_FOUND", "no such machine")
UNAVAILABLE = Failure(FailureKind.TRANSIENT, "UNAVAILABLE", "connection refused")
FENCED = Failure(FailureKind.FENCED, "FAILED_PRECONDITION", "epoch 4 is older than 5")

E = TypeVar("E")


def machine(machine_id: str = "m-1", state: MachineState = IDLE, cluster: str = "", **values: Any) -> Machine:
    """A valid machine in that state."""
    if state in _BOUND and not cluster:
        cluster = "a"
    made = Machine(
        machine_id,
        state,
        HostRef() if state in _HOSTLESS else HostRef("cloud", f"i-{machine_id}"),
        cluster,
        "m6i.large",
        "zone-a",
        CapacityType.ON_DEMAND,
        ResourceVector({"cpu": 2000}),
        price_per_hour=1.0,
        last_error="host:host-lost: gone" if state is FAILED else "",
    )
    return replace(made, **values)


class _NoOutboxes:
    """Stands in for the outboxes: remembers which instructions came back."""

    def __init__(self) -> None:
        self.echoes: list[tuple[str, str]] = []

    def echoed(self, machine_id: str, instruction_id: str) -> None:
        self.echoes.append((machine_id, instruction_id))


class World:
    """``now`` is in seconds. Lists are asked for at ``now`` unless said otherwise."""

    def __init__(self, *providers: str, stepped: bool = False, **settings: Any) -> None:
        self.ctx = Context(Settings("s", 1, b"", providers or ("p",), stepped=stepped, **settings), Engine())
        self.ctx.now = 1_000 * SECOND
        self.fleet = Fleet(self.ctx, FleetState())
        self.busy: set[str] = set()
        self.outboxes = _NoOutboxes()
        self.reconcile = self._build(ReconcileState())
        self.writes: list[tuple[Machine | None, Machine | None]] = []
        self.fleet.listeners.append(self._wrote)
        self.first = self.ctx.settings.providers[0]

    def _wrote(self, before: Machine | None, after: Machine | None) -> None:
        self.writes.append((before, after))

    def _build(self, state: ReconcileState) -> Reconcile:
        return Reconcile(self.ctx, self.fleet, cast("Outboxes", self.outboxes), self.busy.__contains__, state)

    def rebuild(self) -> None:
        """Go on from a copy of what is remembered, as a replay goes on from a checkpoint."""
        self.fleet.state = deepcopy(self.fleet.state)
        self.fleet.listeners.clear()
        self.reconcile = self._build(deepcopy(self.reconcile.state))
        self.fleet.listeners.append(self._wrote)

    # Time

    def wait(self, seconds: float) -> None:
        """Let time pass, timers included."""
        until = self.ctx.now + round(seconds * SECOND)
        while (time := self.ctx.timers.next()) is not None and time <= until:
            self.ctx.now = max(self.ctx.now, time)
            due = self.ctx.timers.due(self.ctx.now)
            assert due is not None
            self.reconcile.timer(*due)
        self.ctx.now = until

    # What happened

    def took(self, kind: type[E]) -> list[E]:
        """The effects of one kind since the last call; others are kept."""
        found: list[E] = [effect for effect in self.ctx.effects if isinstance(effect, kind)]
        self.ctx.effects = [effect for effect in self.ctx.effects if not isinstance(effect, kind)]
        return found

    def effects(self) -> list[Effect]:
        found, self.ctx.effects = self.ctx.effects, []
        return found

    def gets(self) -> list[str]:
        return [get.machine_id for get in self.took(GetMachine)]

    def logged(self, msg: str) -> int:
        return sum(line.msg == msg for line in self.took(WriteLog))

    def woken(self) -> bool:
        wakes, self.ctx.wakes = self.ctx.wakes, []
        return any(cause is Cause.TIMER for cause, _ in wakes)

    def acts(self) -> bool:
        return self.reconcile.acting

    def state_of(self, machine_id: str) -> MachineState | None:
        found = self.fleet.machine(machine_id)
        return None if found is None else found.state

    def machine(self, machine_id: str = "m-1") -> Machine:
        found = self.fleet.machine(machine_id)
        assert found is not None
        return found

    # Providers

    def slice(
        self,
        *changed: Machine | Observed,
        gone: tuple[str, ...] = (),
        rejected: tuple[str, ...] = (),
        provider: str = "",
        started: int | None = None,
    ) -> None:
        seen = tuple(each if isinstance(each, Observed) else Observed(each) for each in changed)
        asked = self.ctx.now if started is None else started
        self.reconcile.listed(Listed(provider or self.first, asked, seen, gone, rejected))

    def end(self, *, provider: str = "", started: int | None = None, complete: bool = True) -> None:
        asked = self.ctx.now if started is None else started
        self.reconcile.list_ended(ListEnded(provider or self.first, asked, complete))

    def list(
        self,
        *changed: Machine | Observed,
        gone: tuple[str, ...] = (),
        rejected: tuple[str, ...] = (),
        provider: str = "",
        started: int | None = None,
        complete: bool = True,
    ) -> None:
        """One List, ten seconds after the last one."""
        if started is None:
            self.wait(10)
        self.slice(*changed, gone=gone, rejected=rejected, provider=provider, started=started)
        self.end(provider=provider, started=started, complete=complete)

    def fail(self, provider: str = "", error: str = "UNAVAILABLE") -> None:
        self.reconcile.list_failed(ListFailed(provider or self.first, error))

    def answer(
        self,
        machine_id: str,
        answer: Machine | Observed | Failure,
        *,
        provider: str = "",
        started: int | None = None,
    ) -> None:
        """Answer a Get."""
        asked = self.ctx.now if started is None else started
        failure = answer if isinstance(answer, Failure) else None
        observed = Observed(answer) if isinstance(answer, Machine) else answer
        self.reconcile.got(
            GetEnded(
                provider or self.first,
                machine_id,
                asked,
                None if isinstance(observed, Failure) else observed,
                failure,
            )
        )

    # The executor

    def command(
        self, after: Machine, preempted_for: Preemptor | None = None, deadline: int | None = None
    ) -> None:
        self.fleet.command(after, preempted_for=preempted_for, drain_deadline=deadline)

    def release(self, machine_id: str) -> None:
        self.busy.discard(machine_id)
        self.reconcile.released(machine_id)
