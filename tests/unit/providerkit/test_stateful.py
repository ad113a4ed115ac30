"""Random calls, duplicates, stale tokens, crashes, late results and full disks, against a model.

The model knows what a caller knows: tokens sent, operations acknowledged, bindings asked for; and what is on
the substrate: one list of hosts per machine. Whatever happens, no machine has two hosts, no acknowledged
binding is lost, no stale token is accepted, an operation keeps its id, and every transition ends.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition
from hypothesis.stateful import rule as step

from bigfleet_base.model import MachineState
from bigfleet_providerkit.backend import Binding, CleanupResult, DiscoveredHost, Host, HostStatus, Operation
from bigfleet_providerkit.effects import Answer, Code, Invoke, Returned
from bigfleet_providerkit.errors import Retryable, Terminal
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.transitions import KIND_OF, SOURCE, TARGET, TRANSITIONAL
from tests.support.rules import rule
from tests.unit.providerkit.lab import ALL, SECOND, Lab, offering

S = MachineState
BOUND = (S.CONFIGURING, S.CONFIGURED, S.DRAINING, S.FAILED)
MACHINES = 3


class Substrate:
    """Hosts that exist, by machine; calls are idempotent on their operation id."""

    def __init__(self) -> None:
        self.hosts: dict[str, dict[str, str]] = {}
        """machine → operation of the create → cluster, empty when unbound"""

    def act(self, invoke: Invoke) -> Any:
        argument: Any = invoke.argument
        if invoke.method in ("inspect", "cleanup"):
            hosts = self.hosts.setdefault(argument.id, {})
            if invoke.method == "cleanup":
                hosts.clear()
                return CleanupResult.GONE
            bootstrapped = argument.cluster and argument.cluster in hosts.values()
            running = HostStatus.BOOTSTRAPPED if bootstrapped else HostStatus.RUNNING
            return running if hosts else HostStatus.GONE
        operation: Operation = argument
        hosts = self.hosts.setdefault(operation.machine.id, {})
        match invoke.method:
            case "create":
                hosts.setdefault(operation.operation_id, "")
                return Host(f"host-{operation.operation_id}")
            case "configure":
                for host in hosts:
                    hosts[host] = operation.cluster_id
            case "node_ready":
                return True
            case "drain":
                for host in hosts:
                    hosts[host] = ""
            case "delete":
                hosts.clear()
        return None


class Provider(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lab = Lab(
            offering(MACHINES),
            capabilities=ALL,
            timeouts=dict.fromkeys(Kind, 20 * SECOND),
            reconcile_interval=120 * SECOND,
        )
        self.substrate = Substrate()
        self.marks: dict[tuple[str, str], tuple[int, int]] = {}
        self.floors: dict[str, int] = {}
        self.operations: dict[tuple[str, Kind], str] = {}
        self.minted: set[str] = set()
        self.bindings: dict[str, tuple[str, dict[str, str]]] = {}
        self.sequence = 100

    @initialize()
    def begin(self) -> None:
        self.machines = self.lab.ids()

    # ---- callers

    @step(
        place=st.integers(0, MACHINES),
        wish=st.sampled_from(["next", "next", "next", "again", *Kind]),
        cluster=st.sampled_from(["c1", "c1", "c2"]),
        shard=st.sampled_from(["", "s1", "s2"]),
        age=st.sampled_from(["fresh", "fresh", "fresh", "the last one", "an epoch ago", "out of order"]),
        crash=st.sampled_from(["no"] * 6 + ["before the write", "before the answer"]),
    )
    def call(self, place: int, wish: str, cluster: str, shard: str, age: str, crash: str) -> None:
        if not self.lab.store_down:
            # What waited for the disk comes before what is asked now.
            self.lab.step()
        machine = self.machines[place] if place < MACHINES else "ghost"
        kind = self.kind(machine, wish, cluster)
        token = self.token(shard, machine, age)
        metadata = {"cluster": cluster, "nul": "a\0b"} if kind is Kind.CONFIGURE else {"note": "x\0"}
        event = self.lab.event(kind, machine, token, cluster=cluster, metadata=metadata, grace=5)
        before = self.lab.core.get(machine)
        if crash != "no":
            writes = self.lab.core.step([event], self.lab.now)
            if crash == "before the answer":
                self.lab.store.write(writes)
                self.learn_after_crash(machine, token)
            self.boot()
            return
        [answer] = self.lab.step(event)
        self.judge(answer, kind, machine, token, before, (cluster, metadata))

    def kind(self, machine: str, wish: str, cluster: str) -> Kind:
        """Mostly what a shard would ask for, so that machines live whole lives."""
        slot = self.lab.core.get(machine)
        if wish in ("next", "again") and slot is not None:
            if wish == "again":
                fitting = [k for k in Kind if slot.state in (TRANSITIONAL[k], TARGET[k])]
            else:
                fitting = [k for k in Kind if slot.state is SOURCE[k]]
            if fitting:
                return fitting[-1] if cluster == "c2" else fitting[0]
        return Kind(wish) if wish in set(Kind) else Kind.DRAIN

    def token(self, shard: str, machine: str, age: str) -> tuple[str, int, int]:
        if not shard:
            return ("", 0, 0)
        self.sequence += 1
        epoch = self.sequence // 20
        match age:
            case "the last one" if (shard, machine) in self.marks:
                return (shard, *self.marks[(shard, machine)])
            case "an epoch ago":
                return (shard, epoch - 1, self.sequence)
            case "out of order":
                return (shard, epoch, self.sequence - 7)
        return (shard, epoch, self.sequence)

    def judge(self, answer: Answer, kind: Kind, machine: str, token: Any, before: Any, binding: Any) -> None:
        shard, epoch, sequence = token
        stale = bool(shard) and (
            (epoch, sequence) <= self.marks.get((shard, machine), (-1, -1))
            or epoch < self.floors.get(shard, -1)
        )
        if answer.code is Code.UNAVAILABLE:
            assert self.lab.store_down
            return
        assert (answer.code is Code.FAILED_PRECONDITION) == stale, (answer, token)
        if stale:
            return
        if shard:
            self.marks[(shard, machine)] = (epoch, sequence)
            self.floors[shard] = max(epoch, self.floors.get(shard, epoch))
        if before is None:
            assert answer.code is Code.NOT_FOUND
            return
        at_it = before.state in (TRANSITIONAL[kind], TARGET[kind])
        recorded = self.operations.get((machine, kind)) if at_it else None
        if recorded is not None and (kind is not Kind.CONFIGURE or binding == self.bindings.get(machine)):
            assert answer.code is Code.OK, answer
            assert answer.operation_id == recorded, "an operation changed its id"
        elif answer.code is Code.OK:
            assert before.state is SOURCE[kind]
            assert answer.operation_id not in self.minted, "an operation id was used twice"
            self.accepted(kind, machine, answer.operation_id, binding)
        elif answer.code is Code.ALREADY_EXISTS:
            assert kind is Kind.CONFIGURE and at_it
        else:
            assert answer.code is Code.ABORTED and before.state is not SOURCE[kind], answer

    def accepted(self, kind: Kind, machine: str, operation: str, binding: Any) -> None:
        self.minted.add(operation)
        self.operations[(machine, kind)] = operation
        if kind is Kind.CREATE:
            self.operations.pop((machine, Kind.DELETE), None)
        if kind is Kind.CONFIGURE:
            self.bindings[machine] = binding

    def learn_after_crash(self, machine: str, token: Any) -> None:
        """A caller without an answer knows nothing; the model looks at what was stored."""
        shard = token[0]
        image = self.lab.store.load()
        if shard in image.floors:
            self.floors[shard] = image.floors[shard]
        slot = image.slots.get(machine)
        if slot is None:
            return
        if shard in slot.marks:
            self.marks[(shard, machine)] = slot.marks[shard]
        for kind in Kind:
            operation = slot.operations[kind.place]
            if operation and operation not in self.minted:
                binding = (slot.cluster, dict(self.read(slot.record).shard_metadata))
                self.accepted(kind, machine, operation, binding)

    # ---- the substrate

    def invokes(self) -> list[Invoke]:
        return [i for i in self.lab.running.values() if i.method not in ("offerings", "discover")]

    @precondition(lambda self: self.invokes())
    @step(data=st.data(), outcome=st.sampled_from(["ok", "ok", "ok", "raised", "raised after", "retry"]))
    def backend_returns(self, data: st.DataObject, outcome: str) -> None:
        invoke = data.draw(st.sampled_from(self.invokes()))
        value = self.substrate.act(invoke) if outcome in ("ok", "raised after") else None
        error = {"raised": Terminal("no"), "raised after": RuntimeError("odd"), "retry": Retryable("later")}
        self.returned(invoke, value if outcome == "ok" else None, error.get(outcome))

    @precondition(lambda self: self.invokes())
    @step()
    def backend_catches_up(self) -> None:
        for invoke in self.invokes():
            self.returned(invoke, self.substrate.act(invoke))

    @precondition(lambda self: self.invokes())
    @step(data=st.data())
    def backend_acts_without_returning(self, data: st.DataObject) -> None:
        self.substrate.act(data.draw(st.sampled_from(self.invokes())))

    def returned(self, invoke: Invoke, value: Any, error: BaseException | None = None) -> None:
        del self.lab.running[invoke.call]
        self.lab.step(Returned(invoke.call, value, error))
        self.describe()

    def describe(self) -> None:
        self.lab.hosts = self.found()
        if not self.lab.store_down:
            self.lab.reconcile()

    def found(self) -> list[DiscoveredHost]:
        return [
            DiscoveredHost(machine, Host("found", binding=Binding(cluster, {})))
            for machine, hosts in self.substrate.hosts.items()
            for cluster in hosts.values()
        ]

    # ---- the world

    @step(seconds=st.sampled_from([0.1, 1, 15, 25, 70, 400]))
    def time_passes(self, seconds: float) -> None:
        if self.lab.store_down:
            self.lab.now += round(seconds * SECOND)
            self.lab.step()
        else:
            self.lab.advance(seconds)
            self.describe()

    @step()
    def crash(self) -> None:
        self.boot()

    @step(down=st.booleans())
    def disk(self, down: bool) -> None:
        self.lab.store_down = down

    def boot(self) -> None:
        self.lab.store_down = False
        # What a caller was told of machines nobody has is in no store (P-33); the floor is.
        self.marks = {key: mark for key, mark in self.marks.items() if key[1] != "ghost"}
        self.lab.hosts = self.found()
        self.lab.restart()
        while looks := [i for i in self.invokes() if i.method == "inspect" and not self.lab.core.ready]:
            self.lab.end(looks[0], self.substrate.act(looks[0]))
        assert self.lab.core.ready, "boot does not come to an end"

    # ---- what must always hold

    @staticmethod
    def read(record: bytes) -> Any:
        from bigfleet_base.api.v1alpha1 import provider_pb2 as pb

        return pb.Machine.FromString(record)

    @invariant()
    def no_machine_has_two_hosts(self) -> None:
        for machine, hosts in self.substrate.hosts.items():
            assert len(hosts) <= 1, f"{machine} has hosts {hosts}"

    @invariant()
    def every_host_has_a_machine_that_shows_it(self) -> None:
        for machine, hosts in self.substrate.hosts.items():
            if hosts:
                assert self.lab.state(machine) is not S.SPECULATIVE, f"the host of {machine} is forgotten"

    @invariant()
    def no_binding_is_lost_or_changed(self) -> None:
        for machine, (cluster, metadata) in list(self.bindings.items()):
            record = self.lab.machine(machine)
            if S(record.state) in (S.IDLE, S.SPECULATIVE, S.CREATING, S.DELETING):
                # Only a drain or a repair leads here, and both empty the host.
                assert not any(self.substrate.hosts.get(machine, {}).values()), (
                    "a bound host is shown unbound"
                )
                del self.bindings[machine]
                continue
            assert S(record.state) in BOUND and record.cluster == cluster
            echoed = dict(record.shard_metadata)
            assert {key: echoed.get(key) for key in metadata} == metadata
            if S(record.state) is not S.DRAINING and not record.last_error.startswith("drain:"):
                assert echoed == metadata

    @invariant()
    def what_is_shown_is_so(self) -> None:
        for machine in self.lab.ids():
            record = self.lab.machine(machine)
            if S(record.state) is S.CONFIGURED:
                hosts = self.substrate.hosts[machine]
                assert list(hosts.values()) == [record.cluster], (
                    f"{machine} is Configured and its host is not"
                )
            if S(record.state) in (S.SPECULATIVE, S.IDLE, S.DELETING):
                assert not record.cluster and not record.shard_metadata

    @invariant()
    def operations_end_with_the_life_of_their_slot(self) -> None:
        for machine in self.lab.ids():
            if self.lab.state(machine) is S.SPECULATIVE:
                for kind in (Kind.CREATE, Kind.CONFIGURE, Kind.DRAIN):
                    self.operations.pop((machine, kind), None)

    @invariant()
    def readers_agree(self) -> None:
        listed = self.lab.list()
        assert listed.full and len({machine.id for machine in listed.machines}) == MACHINES
        for machine in listed.machines:
            assert machine == self.lab.machine(machine.id)
            assert (S(machine.state) is S.FAILED) == bool(machine.last_error)

    def teardown(self) -> None:
        """Left alone with a working disk and backend, everything comes to rest, and nothing stays Failed."""
        self.lab.store_down = False
        for _ in range(1_000):
            while invokes := self.invokes():
                self.returned(invokes[0], self.substrate.act(invokes[0]))
            self.lab.advance(10)
            self.describe()
            states = {self.lab.state(machine) for machine in self.lab.ids()}
            if not states & {*KIND_OF, S.FAILED}:
                break
        else:
            raise AssertionError(f"stuck in {states}")
        self.no_machine_has_two_hosts()
        self.every_host_has_a_machine_that_shows_it()


@pytest.mark.timeout(1800)  # thousands of histories in the nightly tier
@rule(
    "provider.P-20",
    "provider.P-40",
    "provider.P-52",
    "provider.P-100",
    "provider.P-120",
    "provider.P-122",
    "ruling.R11",
)
def test_whatever_happens_the_promises_hold(full_size: bool) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Provider,
        settings=settings(max_examples=5_000 if full_size else 150, stateful_step_count=60),
    )
