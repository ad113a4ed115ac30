"""Area 10: what a provider still knows after kill -9 (provider.md §11)."""

import asyncio
import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from grpc import StatusCode as Code

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.areas.failure import TIMEOUT, one_host_each
from bigfleet_providerkit.conformance.areas.fields import STABLE, placed
from bigfleet_providerkit.conformance.areas.fuzz import DURING, EDGES
from bigfleet_providerkit.conformance.areas.lifecycle import host
from bigfleet_providerkit.conformance.areas.matrix import same
from bigfleet_providerkit.conformance.checks import CheckFailed, SkipFixture, check
from bigfleet_providerkit.conformance.client import CLUSTER, OTHER_CLUSTER, Ack, state_of
from bigfleet_providerkit.conformance.managed import Managed
from bigfleet_providerkit.conformance.tokens import Shard, unused_id
from bigfleet_providerkit.conformance.trial import Trial

KILLS: Final = 100
DURABLE_CLUSTER: Final = "durable-cluster"
_METADATA: Final = {"owner": "conformance", "group": "zone\0rack"}
_SLOW_DRAIN: Final = "fault-drain-after-1s"
_DRAIN_GRACE_S: Final = 5
_DRAIN_MARGIN_S: Final = 60
"""What a drain's timeout is at least longer than its grace (provider.P-85)."""
_BUSY_S: Final = 0.15
"""How long at most writes go on before a kill."""
_BINDS_EACH: Final = 5
"""One kill in so many meets a Configure: the machine that it strikes is Failed and lost to the check."""


@dataclass(frozen=True)
class Restarted:
    """What was before a kill, and what List said right after it."""

    shard: Shard
    marked: str
    """A machine that ``shard`` has created with (3, 7)."""
    bound: str
    configure: str
    """The operation that has bound it."""
    operations: frozenset[str]
    before: Mapping[str, S]
    after: Mapping[str, S]
    revision: bytes


@check("B1001")
async def marks_survive(t: Trial) -> None:
    restarted = await _restarted(t)
    expect.fenced(await t.provider.create(restarted.marked, restarted.shard.token(3, 7)))


@check("B1002")
async def operations_survive(t: Trial) -> None:
    restarted = await _restarted(t)
    same(restarted.configure, await t.provider.configure(restarted.bound, DURABLE_CLUSTER, _METADATA))


@check("B1003")
async def bindings_survive(t: Trial) -> None:
    restarted = await _restarted(t)
    listed = (await t.list_machines(S.CONFIGURED)).machines
    expect.once(listed, restarted.bound)
    for machine in (await t.get(restarted.bound), *(m for m in listed if m.id == restarted.bound)):
        expect.in_state(machine, S.CONFIGURED)
        expect.bound(machine, DURABLE_CLUSTER)
        expect.metadata(machine, _METADATA)


@check("B1004")
async def the_inventory_survives(t: Trial) -> None:
    restarted = await _restarted(t)
    before, after = restarted.before, restarted.after
    for said, ids in (("lost", before.keys() - after.keys()), ("added", after.keys() - before.keys())):
        expect.that(not ids, f"the restart {said} {len(ids)} machines, {min(ids, default='')} first")
    for machine_id, state in before.items():
        now = after[machine_id]
        expect.that(
            now is state, f"machine {machine_id} was {state.name} before the restart and is {now.name}"
        )


@check("B1005")
async def counters_survive(t: Trial) -> None:
    t.need_cursor()
    restarted = await _restarted(t)
    expect.that(restarted.revision, "after the restart List has no revision")
    operation_id = expect.operation(await t.provider.create(await t.speculative()))
    expect.that(
        operation_id not in restarted.operations,
        f"after the restart a new Create got {operation_id}, the id of an earlier operation",
    )


@check("B1006")
async def an_interrupted_configure_fails(t: Trial) -> None:
    t.need_hooks()
    machine_id = await t.idle()
    expect.ok(await t.provider.configure(machine_id, TIMEOUT))
    await t.restart()
    machine = await t.get(machine_id)
    expect.in_state(machine, S.FAILED)
    expect.that(machine.last_error, f"machine {machine_id} is FAILED without last_error")


@check("B1007")
async def new_shards_are_welcome(t: Trial) -> None:
    restarted = await _restarted(t)
    # The last to need them.
    t.taken += [restarted.marked, restarted.bound]
    shard = t.tokens.unknown_shard()
    expect.ok(t.first_contact(await t.provider.create(await t.speculative(), shard.raw(1, 1))))


@check("X1001", alone=True)
async def kills_tear_nothing(t: Trial) -> None:
    marked, *churned = await t.take(3)
    marks = Marks(t, marked, t.shard())
    driven = [Driven(t, machine_id, binds=not t.can.delete) for machine_id in churned]
    binder: Driven | None = None
    known = {machine.id for machine in (await t.list_machines()).machines}
    for number in range(KILLS):
        binder = binder or Driven(t, await t.speculative(), binds=True)
        writers: list[Marks | Driven] = [marks, *driven, *([binder] if number % _BINDS_EACH == 0 else [])]
        tasks = [asyncio.create_task(writer.write()) for writer in writers]
        try:
            await asyncio.sleep(t.random.uniform(0, _BUSY_S))
            _process(t).kill()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        await t.restart()
        machines = {machine.id: machine for machine in (await t.list_machines()).machines}
        expect.that(machines.keys() == known, f"kill {number + 1} lost or added machines")
        for machine in machines.values():
            if state_of(machine) in STABLE:
                placed(machine)
        await marks.check()
        for one in (*driven, binder):
            one.check(machines[one.machine_id])
        if state_of(machines[binder.machine_id]) is S.FAILED:
            binder = None


@check("X1002")
async def marks_of_all_pairs_survive(t: Trial) -> None:
    one, two, three, untouched = await t.take(4)
    a, b, c = t.shards(3)
    expect.ok(await t.provider.create(one, a.token(3, 7)))
    await t.settle(one, S.IDLE)
    expect.ok(await t.provider.create(one, b.token(1, 9)))
    # Refused, and its token is used up all the same (provider.P-34).
    for machine_id, token in ((two, a.token(3, 2)), (two, b.token(1, 4)), (three, b.token(1, 1))):
        expect.rejected(await t.provider.drain(machine_id, token=token))
    # As a starting shard does: of a machine that does not exist only the epoch is kept.
    expect.code(await t.provider.drain(unused_id("ghost"), token=c.token(5, 1)), Code.NOT_FOUND)
    await t.restart()
    for machine_id, shard, epoch, sequence in (
        (one, a, 3, 7),
        (one, b, 1, 9),
        (two, a, 3, 2),
        (two, b, 1, 4),
        (three, b, 1, 1),
    ):
        expect.fenced(await t.provider.drain(machine_id, token=shard.token(epoch, sequence)))
        expect.not_fenced(await t.provider.drain(machine_id, token=shard.token(epoch, sequence + 1)))
    if t.can.info.epoch_floor if t.can.info else not t.options.compat:
        for token in (a.token(2, 99), c.token(4, 99)):
            expect.fenced(await t.provider.drain(untouched, token=token))


@check("X1003", alone=True)
async def a_lost_store_frees_nobody(t: Trial) -> None:
    # Of what is Failed now nobody might know afterwards whom it serves, and only its owner could end that.
    await t.put_away_others()
    machine_id = await t.configured(CLUSTER, _METADATA)
    process = _process(t)
    process.kill()
    _lose(process.state)
    await t.restart()
    reply = await t.provider.get(machine_id)
    expect.code(reply, Code.OK, Code.NOT_FOUND)
    if reply.answer is None:
        return
    machine = reply.answer
    expect.that(
        state_of(machine) is not S.IDLE,
        f"machine {machine_id} was bound to {CLUSTER} and is IDLE now that the store is lost: whatever it"
        " runs would be deleted or bound anew",
    )
    expect.in_state(machine, S.CONFIGURED, S.FAILED, S.SPECULATIVE)
    if state_of(machine) is S.CONFIGURED:
        expect.bound(machine, CLUSTER)
        expect.metadata(machine, _METADATA)
    if state_of(machine) is S.FAILED:
        expect.that(machine.last_error, f"machine {machine_id} is FAILED without last_error")
    if state_of(machine) is S.SPECULATIVE:
        t.note("the hosts of this provider end with it")


@check("X1004")
async def interrupted_transitions_go_on(t: Trial) -> None:
    created = await t.speculative()
    drained = await t.configured(_SLOW_DRAIN if t.target.hooks else CLUSTER)
    calls = {
        "create": (created, t.provider.create(created)),
        "drain": (drained, t.provider.drain(drained, grace=_DRAIN_GRACE_S)),
    }
    if t.can.delete:
        deleted = await t.idle()
        calls["delete"] = (deleted, t.provider.delete(deleted))
    acks = await asyncio.gather(*(call for _, call in calls.values()))
    _process(t).kill()
    operations = [expect.operation(ack) for ack in acks]
    await t.restart()
    for kind, (machine_id, _) in calls.items():
        machine = await t.get(machine_id)
        expect.in_state(machine, DURING[kind], EDGES[kind][1])
        t.note(f"{kind}: {state_of(machine).name} after the boot")
    for (kind, (machine_id, _)), operation_id in zip(calls.items(), operations, strict=True):
        # A drain has its grace on top, and all of it again.
        grace = _DRAIN_GRACE_S + _DRAIN_MARGIN_S if kind == "drain" else 0
        machine = await t.settle(machine_id, EDGES[kind][1], t.timeout(kind) + grace)
        placed(machine)
        same(operation_id, await _again(t, kind, machine_id))
    await one_host_each(t)


@check("X1005", alone=True)
async def what_cannot_be_kept_is_not_done(t: Trial) -> None:
    process = _process(t)
    if not process.state.exists():
        raise SkipFixture("the provider keeps nothing at {state}, so its store cannot be made unwritable")
    machine_id, shard = await t.speculative(), t.shard()
    with _unwritable(process):
        before = _last_write(process.state)
        for reply in (
            await t.provider.create(machine_id, shard.token(1, 1)),
            # A refusal, too, has a mark to keep (provider.P-34).
            await t.provider.drain(machine_id, token=shard.token(1, 2)),
        ):
            if reply.code is not Code.UNAVAILABLE:
                if _last_write(process.state) != before:
                    raise SkipFixture("the store is written by a process that --provider-cmd did not start")
                raise CheckFailed(f"{reply} although nothing can be written, expected UNAVAILABLE")
        if process.is_running:
            await t.holds(machine_id, S.SPECULATIVE)
    await t.restart()
    machine = await t.holds(machine_id, S.SPECULATIVE)
    host(machine, present=False)
    # Nothing was kept of the tokens either.
    expect.ok(await t.provider.create(machine_id, shard.token(1, 1)))
    await t.settle(machine_id, S.IDLE)


class Marks:
    """A shard whose every call is refused and advances its mark: as many writes as there are answers."""

    def __init__(self, t: Trial, machine_id: str, shard: Shard) -> None:
        self._t = t
        self._machine_id = machine_id
        self._shard = shard
        self._sent = self._answered = 0

    async def write(self) -> None:
        """Until the provider is gone."""
        while True:
            self._sent += 1
            reply = await self._drain(self._sent)
            if reply.code is Code.UNAVAILABLE:
                return
            expect.rejected(reply)
            self._answered = self._sent

    async def check(self) -> None:
        """What was answered is fenced for ever."""
        if self._answered:
            expect.fenced(await self._drain(self._answered))

    async def _drain(self, sequence: int) -> Ack:
        return await self._t.provider.drain(self._machine_id, token=self._shard.token(1, sequence))


@dataclass
class Driven:
    """A machine that is driven round and round, and in which states it may be found after a kill."""

    t: Trial
    machine_id: str
    binds: bool
    """Whether its rounds are Configure and Drain; else Create and Delete."""
    _allowed: set[S] = field(default_factory=lambda: set(S))
    _binding: dict[str, str] = field(default_factory=dict)
    _rounds: int = 0

    async def write(self) -> None:
        """Until the provider is gone."""
        while True:
            reply = await self.t.provider.get(self.machine_id)
            if reply.answer is None:
                return
            state = state_of(reply.answer)
            kind = self._next(state)
            if not kind:
                await asyncio.sleep(self.t.options.fast_poll)
                continue
            goal = EDGES[kind][1]
            self._allowed = {state, DURING[kind], goal, S.FAILED}
            ack = await self._call(kind)
            if ack.code is Code.UNAVAILABLE:
                return
            expect.ok(ack)
            self._allowed.discard(state)

    def check(self, machine: pb.Machine) -> None:
        """It is where its last call may have left it, and its binding is of one piece."""
        expect.in_state(machine, *sorted(self._allowed))
        if machine.cluster:
            expect.bound(machine, self._binding["cluster"])
            expect.metadata(machine, self._binding)
        if state_of(machine) is S.FAILED:
            expect.that(machine.last_error, f"machine {machine.id} is FAILED without last_error")

    def _next(self, state: S) -> str:
        idle = "configure" if self.binds else "delete"
        return {S.SPECULATIVE: "create", S.IDLE: idle, S.CONFIGURED: "drain"}.get(state, "")

    async def _call(self, kind: str) -> Ack:
        if kind != "configure":
            return await _again(self.t, kind, self.machine_id)
        self._rounds += 1
        cluster = (CLUSTER, OTHER_CLUSTER)[self._rounds % 2]
        # Large enough to be torn, and every part says which round it is of.
        self._binding = {f"key-{n}": f"{cluster}/{self._rounds}" * 20 for n in range(20)} | {
            "cluster": cluster
        }
        return await self.t.provider.configure(self.machine_id, cluster, self._binding)


async def _restarted(t: Trial) -> Restarted:
    return await t.once("restarted", lambda: _restart(t))


async def _restart(t: Trial) -> Restarted:
    # Not as the trial's own: they have to outlast the check that happens to be first.
    marked, bound = await t.target.slots.take(2)
    shard = t.shard()
    operations = [
        expect.operation(await t.provider.create(marked, shard.token(3, 7))),
        expect.operation(await t.provider.create(bound)),
    ]
    for machine_id in (marked, bound):
        await t.settle(machine_id, S.IDLE)
    configure = expect.operation(await t.provider.configure(bound, DURABLE_CLUSTER, _METADATA))
    await t.settle(bound, S.CONFIGURED)
    before = (await t.list_machines()).machines
    await t.restart()
    listed = await t.list_machines()
    return Restarted(
        shard,
        marked,
        bound,
        configure,
        frozenset((*operations, configure)),
        {machine.id: state_of(machine) for machine in before},
        {machine.id: state_of(machine) for machine in listed.machines},
        listed.revision,
    )


async def _again(t: Trial, kind: str, machine_id: str) -> Ack:
    match kind:
        case "create":
            return await t.provider.create(machine_id)
        case "drain":
            return await t.provider.drain(machine_id)
    return await t.provider.delete(machine_id)


def _process(t: Trial) -> Managed:
    assert t.target.managed is not None, "lane D has a process"
    return t.target.managed


def _lose(state: Path) -> None:
    """Remove the store, and what SQLite keeps beside one; whatever else is there belongs to the hosts."""
    for path in _store(state):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _last_write(state: Path) -> int:
    """When the store was last written to."""
    files = [file for path in _store(state) for file in (path, *path.rglob("*"))]
    return max(file.stat().st_mtime_ns for file in files if file.exists())


def _store(state: Path) -> list[Path]:
    return [Path(f"{state}{suffix}") for suffix in ("", "-wal", "-shm", "-journal")]


@contextmanager
def _unwritable(process: Managed) -> Iterator[None]:
    """As on a full disk: no file of the provider's can be written, whatever it has opened already."""
    if not hasattr(resource, "prlimit"):
        raise SkipFixture("making a store unwritable needs prlimit, which is Linux's")
    leader = process.pid
    limited = {pid: _limit(pid, 0) for pid in _session(leader)}
    try:
        yield
    finally:
        for pid, soft in limited.items():
            with suppress(ProcessLookupError):
                _limit(pid, soft)


def _limit(pid: int, soft: int) -> int:
    """Bound the size of files that a process writes; what the bound was."""
    was, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
    return was


def _session(leader: int) -> list[int]:
    """The processes of the session, for a command may be a wrapper of the provider."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(ValueError, ProcessLookupError):
            if os.getsid(int(name)) == leader:
                found.append(int(name))
    return found
