"""One fake provider under virtual time, and a caller."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import CapacityType, MachineState
from bigfleet_providerkit.backend import Offering
from bigfleet_providerkit.effects import Answer, Call, Code, Token
from bigfleet_providerkit.fake import FakeProvider, Knobs
from bigfleet_providerkit.offerings import check_offerings
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import METHODS, Settings

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
TRANSITIONAL = {
    MachineState.CREATING,
    MachineState.CONFIGURING,
    MachineState.DRAINING,
    MachineState.DELETING,
}


def offering(count: int = 4, **values: Any) -> Offering:
    given: dict[str, Any] = {
        "instance_type": "m1",
        "zone": "z1",
        "capacity_type": CapacityType.ON_DEMAND,
        "count": count,
        "price_per_hour": 1.0,
        "allocatable": {"cpu": "4", "memory": "16Gi"},
    }
    return Offering(**{**given, **values})


class World:
    """The provider started, with one shard that calls it."""

    def __init__(
        self, knobs: Knobs | None = None, *offerings: Offering, trace: Any = None, **settings: Any
    ) -> None:
        self.offerings: Sequence[Offering] = offerings or (offering(),)
        given = {
            "reconcile_interval": 0,
            "quarantine": MINUTE,
            "concurrency": dict.fromkeys(METHODS, 1_000),
        }
        self.provider = FakeProvider(
            knobs or Knobs(),
            self.offerings,
            replace(Settings(provider="fake"), **{**given, **settings}),
            trace=trace,
        )
        self.substrate = self.provider.substrate
        self._numbers = itertools.count(1)
        self.wait(1e-6)
        assert self.provider.serving

    def restart(self) -> None:
        """Start a provider that has crashed."""
        self.provider.restart()
        self.wait(0.001)
        assert self.provider.serving

    def ids(self) -> list[str]:
        """Every slot of the quota, in the order of the offerings."""
        offers = check_offerings(self.offerings).values()
        return [offer.machine_id(index) for offer in offers for index in range(offer.count)]

    def send(self, kind: str, machine_id: str, **more: Any) -> int:
        number = next(self._numbers)
        if kind == "configure":
            more = {"cluster_id": "c1", **more}
        self.provider.send(Call(number, Kind(kind), machine_id, Token("s1", 1, number), **more))
        return number

    def call(self, kind: str, machine_id: str, **more: Any) -> Answer:
        """Send a call and take its answer, which takes no time."""
        self.send(kind, machine_id, **more)
        [answer] = self.provider.advance(self.provider.now)
        return answer

    def accept(self, kind: str, machine_id: str, **more: Any) -> str:
        answer = self.call(kind, machine_id, **more)
        assert answer.code is Code.OK, answer
        return answer.operation_id

    def wait(self, seconds: float) -> list[Answer]:
        return self.provider.advance(self.provider.now + round(seconds * SECOND))

    def took(self, machine_id: str) -> float:
        """The seconds until the machine rests."""
        started = self.provider.now
        while self.state(machine_id) in TRANSITIONAL:
            deadline = self.provider.next_deadline()
            assert deadline is not None, "nothing will ever happen again"
            self.provider.advance(deadline)
        return (self.provider.now - started) / SECOND

    def settled(self, kind: str, machine_id: str, **more: Any) -> MachineState:
        self.accept(kind, machine_id, **more)
        self.took(machine_id)
        return self.state(machine_id)

    def idle(self, place: int = 0) -> str:
        machine_id = self.ids()[place]
        assert self.settled("create", machine_id) is MachineState.IDLE
        return machine_id

    def configured(self, place: int = 0) -> str:
        machine_id = self.idle(place)
        assert self.settled("configure", machine_id, metadata={"k": "v"}) is MachineState.CONFIGURED
        return machine_id

    def machine(self, machine_id: str) -> pb.Machine:
        record = self.provider.get(machine_id)
        assert record is not None
        return pb.Machine.FromString(record)

    def state(self, machine_id: str) -> MachineState:
        return MachineState(self.machine(machine_id).state)

    def listed(self) -> dict[str, MachineState]:
        return {slot.id: slot.state for slot in self.provider.list_machines().slots}
