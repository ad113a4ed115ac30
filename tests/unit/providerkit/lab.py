"""A provider core under virtual time: a store in memory, a backend whose calls end when a test says so."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import CapacityType, MachineState
from bigfleet_providerkit.backend import DiscoveredHost, Host, Offering
from bigfleet_providerkit.core import Core
from bigfleet_providerkit.effects import Answer, Call, Cancel, Code, Event, Invoke, Returned, Token, Write
from bigfleet_providerkit.offerings import check_offerings
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import Capabilities, Settings
from bigfleet_providerkit.store import MemoryStore

SECOND = 1_000_000_000
ALL = Capabilities(delete=True, inspect=True, cleanup=True, discover=True, probe=True)
SIMPLE = Capabilities(delete=True)


def offering(count: int = 3, **values: Any) -> Offering:
    given: dict[str, Any] = {
        "instance_type": "m1",
        "zone": "z1",
        "capacity_type": CapacityType.ON_DEMAND,
        "count": count,
        "price_per_hour": 1.0,
        "allocatable": {"cpu": "4", "memory": "16Gi"},
    }
    return Offering(**{**given, **values})


class Lab:
    """Everything around a core, in one thread."""

    def __init__(
        self,
        *offerings: Offering,
        capabilities: Capabilities = SIMPLE,
        hosts: Sequence[DiscoveredHost] = (),
        **settings: Any,
    ) -> None:
        self.offerings: Any = list(offerings) or [offering()]
        self.hosts: Any = list(hosts)
        self.settings = Settings(
            provider="test", capabilities=capabilities, **{"reconcile_interval": 0, **settings}
        )
        self.store = MemoryStore(b"\x01" * 8)
        self.now = SECOND
        self.store_down = False
        self.running: dict[int, Invoke] = {}
        self.cancelled: list[int] = []
        self.reports: list[Any] = []
        self.written: list[Write] = []
        self._numbers = itertools.count(1)
        self.boot()

    def boot(self) -> None:
        """Start the process on whatever the store holds."""
        self.running.clear()
        self.core = Core(self.settings, self.store.load(), lambda: 0.0)
        self.core.start(self.now)
        for _ in range(1_000):
            self.step()
            if self.core.ready or self.core.failure or not self._describe():
                break

    restart = boot

    def step(self, *events: Event) -> list[Answer]:
        """One batch, its writes included; answers come back, backend calls wait in ``running``."""
        writes = self.core.step(events, self.now)
        if self.store_down and writes:
            outcome = self.core.rollback()
        else:
            self.store.write(writes)
            self.written.extend(writes)
            outcome = self.core.commit()
        self.reports.extend(outcome.reports)
        answers = []
        for effect in outcome.effects:
            match effect:
                case Answer():
                    answers.append(effect)
                case Invoke():
                    self.running[effect.call] = effect
                case Cancel():
                    self.cancelled.append(effect.call)
        return answers

    def event(
        self,
        kind: Kind | str,
        machine_id: str,
        token: tuple[str, int, int] = ("", 0, 0),
        *,
        cluster: str = "c1",
        metadata: Mapping[str, str] | None = None,
        blob: bytes = b"",
        grace: int = 0,
    ) -> Call:
        kind = Kind(kind)
        return Call(
            next(self._numbers),
            kind,
            machine_id,
            Token(*token),
            cluster_id=cluster if kind is Kind.CONFIGURE else "",
            metadata=dict(metadata or {}),
            blob=blob,
            grace=grace,
        )

    def call(self, kind: Kind | str, machine_id: str, *args: Any, **more: Any) -> Answer:
        [answer] = self.step(self.event(kind, machine_id, *args, **more))
        return answer

    def accept(self, kind: Kind | str, machine_id: str, *args: Any, **more: Any) -> str:
        answer = self.call(kind, machine_id, *args, **more)
        assert answer.code is Code.OK, answer
        return answer.operation_id

    def pending(self, machine_id: str = "") -> list[Invoke]:
        """Backend calls under way."""
        return [
            invoke for invoke in self.running.values() if not machine_id or _machine(invoke) == machine_id
        ]

    def only(self, machine_id: str = "") -> Invoke:
        [invoke] = self.pending(machine_id)
        return invoke

    def end(self, invoke: Invoke, value: Any = None, error: BaseException | None = None) -> None:
        del self.running[invoke.call]
        self.step(Returned(invoke.call, value, error))

    def finish(self, machine_id: str, value: Any = None, error: BaseException | None = None) -> None:
        """End the one backend call of a machine; a create without a value makes its host."""
        invoke = self.only(machine_id)
        if invoke.method == "create" and value is None and error is None:
            value = Host(f"host-of-{machine_id}")
        if invoke.method == "node_ready" and value is None and error is None:
            value = True
        self.end(invoke, value, error)

    def settle(self, machine_id: str) -> None:
        """End backend calls of a machine, all well, until there are none."""
        while self.pending(machine_id):
            self.finish(machine_id)

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping wherever the core wants to be called."""
        target = self.now + round(seconds * SECOND)
        while (deadline := self.core.next_deadline()) is not None and deadline <= target:
            self.now = max(self.now, deadline)
            self.step()
        self.now = target
        self.step()

    def idle(self, place: int = 0) -> str:
        machine_id = self.ids()[place]
        self.accept("create", machine_id)
        self.settle(machine_id)
        assert self.state(machine_id) is MachineState.IDLE
        return machine_id

    def configured(self, place: int = 0, metadata: Mapping[str, str] | None = None) -> str:
        machine_id = self.idle(place)
        self.accept("configure", machine_id, metadata=metadata)
        self.settle(machine_id)
        assert self.state(machine_id) is MachineState.CONFIGURED
        return machine_id

    def ids(self) -> list[str]:
        """Ids of the first offering's slots."""
        [offer, *_] = check_offerings(self.offerings).values()
        return [offer.machine_id(index) for index in range(offer.count)]

    def machine(self, machine_id: str) -> pb.Machine:
        slot = self.core.get(machine_id)
        assert slot is not None
        return pb.Machine.FromString(slot.record)

    def state(self, machine_id: str) -> MachineState:
        return MachineState(self.machine(machine_id).state)

    def list(self, *states: MachineState, cap: int = 0, since: bytes = b"") -> pb.MachineList:
        listed = self.core.list_machines(frozenset(states), cap, since)
        return pb.MachineList.FromString(listed.message())

    def _describe(self) -> bool:
        progressed = bool(self.core.next_deadline() == 0)
        for invoke in list(self.running.values()):
            if invoke.method in ("offerings", "discover"):
                value = self.offerings if invoke.method == "offerings" else self.hosts
                if isinstance(value, BaseException):
                    self.end(invoke, None, value)
                else:
                    self.end(invoke, value)
                progressed = True
        return progressed

    def reconcile(self) -> None:
        """Answer the next description of the inventory and work it off."""
        while self._describe():
            self.step()


def _machine(invoke: Invoke) -> str:
    argument: Any = invoke.argument
    if argument is None:
        return ""
    machine_id: str = getattr(argument, "id", "") or argument.machine.id
    return machine_id


def snapshot(answer: Answer) -> pb.Machine:
    """The record in an ack."""
    return pb.TransitionAck.FromString(answer.ack).machine
