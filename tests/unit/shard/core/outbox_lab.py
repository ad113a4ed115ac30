"""Outboxes with a fleet under them, and operators that read as much as a test lets them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from bigfleet.engine.cycle import Engine
from bigfleet.shard.core.context import Context
from bigfleet.shard.core.effects import Count, SendFrames
from bigfleet.shard.core.fleet import Fleet, FleetState
from bigfleet.shard.core.outbox import Outboxes, OutboxesState
from bigfleet.shard.core.settings import Settings
from bigfleet_base.model import HostRef, Machine, MachineState, ResourceVector, transition
from bigfleet_base.model.frames import BootstrapRequest, Frame, NodeState, ReclaimInstruction

S = MachineState


def idle(machine_id: str) -> Machine:
    return Machine(
        id=machine_id,
        state=S.IDLE,
        host=HostRef("p", f"host-of-{machine_id}"),
        instance_type="m6i.large",
        zone="z1",
        resources=ResourceVector(cpu=4000),
        allocatable=ResourceVector(cpu=3900),
        labels={"rack": "r1"},
    )


def bound(machine_id: str, cluster: str = "a", state: MachineState = S.CONFIGURED) -> Machine:
    return replace(
        idle(machine_id),
        state=state,
        cluster=cluster,
        assigned_priority=100,
        assigned_need_fingerprint="fp",
        last_error="broken" if state is S.FAILED else "",
    )


def request(n: int, cluster: str = "a") -> BootstrapRequest:
    return BootstrapRequest(f"request-{n}", cluster, (), f"m-{n}", {})


class Lab:
    """Sent frames are collected per session; nothing is written unless ``write`` says so."""

    def __init__(self, *, listed: bool = True, concurrency: int = 32) -> None:
        settings = Settings("shard-0", 7, b"seed", ("default",), concurrency=concurrency)
        self.ctx = Context(settings, Engine())
        self.fleet = Fleet(self.ctx, FleetState())
        self.outboxes = Outboxes(self.ctx, self.fleet, OutboxesState())
        self.fleet.listeners.append(self.outboxes.changed)
        self.sent: dict[int, list[Frame]] = {}
        self.unwritten: Counter[str] = Counter()
        self.clusters: dict[int, str] = {}
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.sessions = 0
        if listed:
            self.outboxes.lists_complete()

    # Events, each of which ends with a flush as in the core

    def end(self) -> None:
        self.outboxes.flush()
        effects, self.ctx.effects = self.ctx.effects, []
        for effect in effects:
            if isinstance(effect, SendFrames):
                self.sent[effect.session] += effect.frames
                self.unwritten[self.clusters[effect.session]] += len(effect.frames)
            elif isinstance(effect, Count):
                self.counts[effect.series.name.removeprefix("bigfleet_shard_"), *effect.labels] += int(
                    effect.by
                )

    def open(self, cluster: str = "a") -> int:
        self.sessions += 1
        self.clusters[self.sessions] = cluster
        self.sent[self.sessions] = []
        self.unwritten[cluster] = 0
        self.outboxes.opened(cluster, self.sessions)
        self.end()
        return self.sessions

    def close(self, cluster: str = "a") -> None:
        self.outboxes.closed(cluster)
        self.end()

    def write(self, cluster: str = "a", frames: int | None = None) -> None:
        """The operator reads; without a number, until there is nothing more."""
        while count := self.unwritten[cluster] if frames is None else frames:
            self.unwritten[cluster] -= count
            self.outboxes.writable(cluster, count)
            self.end()
            if frames is not None:
                return

    def pass_time(self, by: int) -> None:
        self.ctx.now += by
        while (due := self.ctx.timers.due(self.ctx.now)) is not None:
            self.outboxes.timer(*due)
        self.end()

    def insert(self, *machines: Machine) -> None:
        for machine in machines:
            self.fleet.insert(machine, "default")
        self.end()

    def move(self, machine_id: str, *states: MachineState, cluster: str = "a") -> None:
        """Take a machine over edges, as the executor does, an event for each."""
        for state in states:
            before = self.fleet.machine(machine_id)
            assert before is not None
            binding = {"cluster": cluster, "assigned_priority": 100} if state is S.CONFIGURING else {}
            self.fleet.command(transition(before, state, **binding))
            self.end()

    def observe(self, machine: Machine) -> None:
        self.fleet.observe(machine)
        self.end()

    def remove(self, machine_id: str) -> None:
        self.fleet.remove(machine_id)
        self.end()

    def drain(self, machine_id: str, grace_s: int = 600, cluster: str = "a") -> str:
        """As the executor starts one; returns the instruction's id."""
        self.move(machine_id, S.DRAINING)
        frame = ReclaimInstruction(self.outboxes.new_instruction_id(), machine_id, grace_s, 0)
        self.outboxes.reclaim(cluster, machine_id, frame)
        self.end()
        return frame.instruction_id

    # What was sent

    def take(self, session: int | None = None) -> list[Frame]:
        session = self.sessions if session is None else session
        frames, self.sent[session] = self.sent[session], []
        return frames


def states(frames: Iterable[Frame]) -> list[tuple[str, MachineState]]:
    return [(f.machine_id, f.state) for f in frames if isinstance(f, NodeState)]


def instructions(frames: Iterable[Frame]) -> list[str]:
    return [f.instruction_id for f in frames if isinstance(f, ReclaimInstruction)]


def requests(frames: Iterable[Frame]) -> list[str]:
    return [f.request_id for f in frames if isinstance(f, BootstrapRequest)]
