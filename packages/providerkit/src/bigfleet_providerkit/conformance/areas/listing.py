"""Area 9: List by state, by cap and by cursor, and what a cursor is worth."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from grpc import StatusCode as Code

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.areas.fields import INTERRUPTION
from bigfleet_providerkit.conformance.checks import CheckFailed, SkipCapability, SkipFixture, check
from bigfleet_providerkit.conformance.client import Client, ids, state_of
from bigfleet_providerkit.conformance.connection import Connection
from bigfleet_providerkit.conformance.lanes import LANE_SEEDS
from bigfleet_providerkit.conformance.managed import Managed
from bigfleet_providerkit.conformance.trial import Trial

STATES: Final = tuple(state for state in S if state is not S.UNSPECIFIED)
_MORE_THAN_THERE_ARE: Final = 2**31 - 1
_NO_CURSOR: Final = (b"", b"not-a-cursor", bytes(range(256)), b"\xde" * 4_096)
_QUIET_S, _QUIET_POLL_S = 0.75, 0.05
_PRICES_S, _PRICES_POLL_S = 2.0, 0.1
_FEW, _MANY = 6, 12


@check("B901", alone=True)
async def states_partition_the_inventory(t: Trial) -> None:
    await t.idle()
    await t.configured()
    distinct((await t.list_machines()).machines)
    for state in STATES:
        await in_states(t, state)
    await in_states(t, S.SPECULATIVE, S.SPECULATIVE)
    stable = (S.SPECULATIVE, S.IDLE, S.CONFIGURED)
    before = [await in_states(t, state) for state in stable]
    union = await in_states(t, *stable)
    after = [await in_states(t, state) for state in stable]
    # What moved meanwhile may be in two of them, or in none.
    stayed = set[str]().union(*(first & second for first, second in zip(before, after, strict=True)))
    expect.that(
        stayed <= union,
        f"List of three states lacks {some(stayed - union)}, found in the List of one of them",
    )
    strangers = union - set[str]().union(*before, *after)
    expect.that(
        not strangers, f"List of three states has {some(strangers)}, found in the List of none of them"
    )


@check("B902")
async def a_cap_is_a_ceiling(t: Trial) -> None:
    everything = distinct((await t.list_machines(max_results=_MORE_THAN_THERE_ARE)).machines)
    for cap in (1, 2, 3):
        found = distinct((await t.list_machines(max_results=cap)).machines)
        strangers = found - everything
        expect.that(len(found) <= cap, f"List(max_results={cap}) has {len(found)} machines")
        expect.that(found, f"List(max_results={cap}) is empty although there are {len(everything)} machines")
        expect.that(not strangers, f"List(max_results={cap}) has {some(strangers)}, not in List")
    complete(everything, await t.list_machines(), "List() without a cap")


@check("B903", alone=True)
async def a_change_moves_the_revision(t: Trial) -> None:
    before = (await t.list_machines()).revision
    machine_id = await t.idle()
    after = (await t.list_machines()).revision
    expect.that(after != before, f"the revision did not change although {machine_id} was created")
    has(await t.list_machines(since=before), [machine_id])


@check("B904", alone=True)
async def nothing_has_changed_since_now(t: Trial) -> None:
    fleet = await t.list_machines()
    quiet(fleet, await t.list_machines(since=fleet.revision))


@check("B905", alone=True)
async def every_cursor_has_its_delta(t: Trial) -> None:
    machine_ids = await t.take(4)
    cursors = [(await t.list_machines()).revision]
    for machine_id in machine_ids:
        expect.ok(await t.provider.create(machine_id))
        await t.settle(machine_id, S.IDLE)
        cursors.append((await t.list_machines()).revision)
        expect.that(
            cursors[-1] != cursors[-2], f"the revision did not change over the Create of {machine_id}"
        )
    for place, cursor in enumerate(cursors):
        delta = await t.list_machines(since=cursor)
        has(delta, machine_ids[place:])
        for machine in delta.machines:
            if machine.id in machine_ids:
                expect.in_state(machine, S.IDLE)


@check("B906")
async def what_is_no_cursor_gives_everything(t: Trial) -> None:
    everything = distinct((await t.list_machines()).machines)
    for cursor in _NO_CURSOR:
        said = f"List since {len(cursor)} bytes that are no cursor"
        complete(everything, await t.list_machines(since=cursor), said)


@check("B907", alone=True)
async def a_delta_can_be_paged(t: Trial) -> None:
    base = (await t.list_machines()).revision
    changed = set(await t.idle_machines(5))
    delta = await t.list_machines(since=base)
    has(delta, changed)
    seen, echoed = await paged(t, base, 2, len(delta.machines) + 8)
    # A price that moved by itself meanwhile is in the later one.
    later = await t.list_machines(since=base)
    strangers = seen - set(ids(delta.machines)) - set(ids(later.machines))
    expect.that(not strangers, f"paging brought {some(strangers)}, not in the uncapped delta")
    covered(t, changed, seen, echoed=echoed)


@check("B908", alone=True)
async def quiet_providers_say_nothing(t: Trial) -> None:
    fleet = await t.list_machines()
    end = asyncio.get_running_loop().time() + _QUIET_S
    while asyncio.get_running_loop().time() < end:
        quiet(fleet, await t.list_machines(since=fleet.revision))
        await asyncio.sleep(_QUIET_POLL_S)


@check("B909", alone=True)
async def cursors_are_taken_whole(t: Trial) -> None:
    fleet = await t.list_machines()
    everything, cursor = distinct(fleet.machines), fleet.revision
    quiet(fleet, await t.list_machines(since=cursor))
    for mangled, said in (
        (cursor + b"!", "its cursor and a '!'"),
        (b"~" + cursor, "a '~' and its cursor"),
        (cursor + b"\x00\xff", "its cursor and two bytes"),
    ):
        complete(everything, await t.list_machines(since=mangled), f"List since {said}")
    truncated = distinct((await t.list_machines(since=cursor[:-1])).machines)
    strangers = truncated - everything
    expect.that(not strangers, f"List since a truncated cursor has {some(strangers)}, not in List")
    if missing := everything - truncated:
        t.lenient(f"List since a truncated cursor is without {some(missing)}, expected everything")
    flipped = cursor[:-1] + bytes((cursor[-1] ^ 0xFF,))
    strangers = distinct((await t.list_machines(since=flipped)).machines) - everything
    expect.that(not strangers, f"List since a cursor with a flipped byte has {some(strangers)}, not in List")


@check("X901", alone=True)
async def caps_lose_nothing(t: Trial) -> None:
    free = await t.target.slots.free()
    if len(free) < 3:
        raise SkipFixture(f"needs 3 Speculative machines and {len(free)} are free")
    picks = [ids((await t.list_machines(S.SPECULATIVE, max_results=1)).machines) for _ in range(3)]
    distinct_picks = {machine_id for pick in picks for machine_id in pick}
    expect.that(
        len(distinct_picks) == 3,
        f"three List(SPECULATIVE, max_results=1) in a row gave {len(distinct_picks)} different machines of"
        f" {len(free)}, expected 3",
    )
    everything = distinct((await t.list_machines()).machines)
    complete(everything, await t.list_machines(max_results=-1), "List(max_results=-1)")
    if not t.can.cursor:
        t.note(f"without paging: {t.can.evidence['cursor']}")
        return
    cap = max(1, len(everything) // 8)
    # A cap is a ceiling: how much less a page may have is the provider's choice (provider.P-62).
    seen, _ = await paged(t, b"", cap, len(everything) + 8)
    expect.that(
        everything <= seen,
        f"pages of {cap} brought {len(seen)} of {len(everything)} machines; {some(everything - seen)} never",
    )
    pick = await t.list_machines(S.SPECULATIVE, max_results=1)
    said = "List since the revision of a truncated List(SPECULATIVE)"
    complete(everything, await t.list_machines(since=pick.revision), said)


@check("X902", alone=True)
async def what_is_gone_is_named(t: Trial) -> None:
    fleet = await t.list_machines()
    if not fleet.HasField("full"):
        expect.that(
            t.can.info is None or not t.can.info.tombstones,
            "ProviderInfo says that it sends tombstones and `full`, and List() has no `full`",
        )
        raise SkipCapability("its List has no `full`")
    t.need_cursor()
    asked = [
        ("List()", fleet, True),
        ("List(IDLE)", await t.list_machines(S.IDLE), False),
        ("List since the current revision", await t.list_machines(since=fleet.revision), False),
        ("List since junk", await t.list_machines(since=_NO_CURSOR[1]), True),
    ]
    if len(fleet.machines) > 1:
        asked += [
            ("List(max_results=1)", await t.list_machines(max_results=1), False),
            (
                "List since junk, max_results=1,",
                await t.list_machines(since=_NO_CURSOR[1], max_results=1),
                False,
            ),
        ]
    for said, listed, full in asked:
        is_full(listed, said, full=full)
    await _retire_and_return(t)


@check("X903", alone=True)
async def cursors_are_of_one_store(t: Trial) -> None:
    t.need_cursor()
    assert t.target.managed is not None, "lane D has a process"
    other = Managed(t.options.provider_cmd, LANE_SEEDS, (), t.target.connection.tls)
    try:
        async with booted(t, other) as stranger:
            # Of two counters one is behind: each is asked with the other's.
            for asked, foreign in ((stranger, t.provider), (t.provider, stranger)):
                cursor = expect.ok(await foreign.list()).revision
                everything = distinct(expect.ok(await asked.list()).machines)
                listed = expect.ok(await asked.list(since=cursor))
                complete(everything, listed, "List since a cursor of another store")
    finally:
        await other.stop()


@check("X904", alone=True)
async def a_delta_by_state_is_no_delta(t: Trial) -> None:
    # Our shards cannot ask for one (``encode_list``); to those who do, it must not look like everything.
    machine_id = await t.idle()
    cursor = (await t.list_machines()).revision
    await t.configure(machine_id)
    reply = await t.provider.list(S.IDLE, since=cursor)
    expect.code(reply, Code.OK, Code.INVALID_ARGUMENT)
    if reply.answer is not None:
        said = "List(IDLE) since a cursor"
        _only(reply.answer, said, S.IDLE)
        if reply.answer.HasField("full"):
            is_full(reply.answer, said, full=False)
    expect.code(await t.provider.list(S.UNSPECIFIED), Code.INVALID_ARGUMENT)


@check("X905")
async def prices_come_with_the_delta(t: Trial) -> None:
    t.need_hooks()
    t.need_cursor()
    # Notice of a kill changes a probability and nothing else; a price that moves by itself will do as well.
    await t.configure(await t.idle(), INTERRUPTION)
    fleet = await t.list_machines()
    before = {machine.id: machine for machine in fleet.machines}
    end = asyncio.get_running_loop().time() + _PRICES_S
    moved: set[str] = set()
    while not moved and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(_PRICES_POLL_S)
        now = (await t.list_machines()).machines
        moved = {machine.id for machine in now if _is_repriced(before.get(machine.id), machine)}
    if not moved:
        t.vacuous(f"no price, probability or label changed within {_PRICES_S:g} s")
        return
    delta = await t.list_machines(since=fleet.revision)
    has(delta, moved)
    stale = [
        machine.id for machine in delta.machines if machine.id in moved and before[machine.id] == machine
    ]
    expect.that(not stale, f"the delta has {some(stale)} as of before the change of price or labels")


def distinct(machines: Iterable[pb.Machine]) -> set[str]:
    """The ids of a List, which is a set (P-60)."""
    found: set[str] = set()
    for machine in machines:
        expect.that(machine.id not in found, f"machine {machine.id} is in one List twice")
        found.add(machine.id)
    return found


async def in_states(t: Trial, *states: S) -> set[str]:
    """The ids of a List by state, which holds nothing else."""
    listed = await t.list_machines(*states)
    _only(listed, f"List({', '.join(state.name for state in states)})", *states)
    return distinct(listed.machines)


def complete(everything: set[str], listed: pb.MachineList, said: str) -> None:
    """The List has the whole inventory."""
    found = distinct(listed.machines)
    missing, strangers = everything - found, found - everything
    expect.that(
        not missing,
        f"{said} has {len(found)} machines, expected all {len(everything)}: without {some(missing)}",
    )
    expect.that(
        not strangers, f"{said} has {some(strangers)}, expected only the {len(everything)} known ones"
    )


def has(delta: pb.MachineList, changed: Iterable[str]) -> None:
    """The delta has every machine that changed, once."""
    missing = set(changed) - distinct(delta.machines)
    expect.that(not missing, f"the delta lacks {some(missing)}, changed after its cursor")


def quiet(fleet: pb.MachineList, delta: pb.MachineList) -> None:
    """The delta has nothing that is as it was; a spot price may have changed by itself."""
    before = {machine.id: machine for machine in fleet.machines}
    same = [machine.id for machine in delta.machines if before.get(machine.id) == machine]
    expect.that(not same, f"the delta has {some(same)}, unchanged since its cursor")


async def paged(t: Trial, since: bytes, cap: int, limit: int) -> tuple[set[str], bool]:
    """All ids that paging brings, and whether it was over after one full page.

    The cursor of one page asks for the next, until one is empty.
    """
    seen: dict[str, pb.Machine] = {}
    for place in range(limit):
        page = await t.list_machines(max_results=cap, since=since)
        if not page.machines:
            return set(seen), place == 1 and len(seen) == cap
        expect.that(len(page.machines) <= cap, f"a page of {cap} has {len(page.machines)} machines")
        distinct(page.machines)
        for machine in page.machines:
            # One that changed meanwhile comes again, changed.
            again = seen.get(machine.id) == machine
            expect.that(not again, f"page {place + 1} has machine {machine.id} again, which has not changed")
            seen[machine.id] = machine
        since = page.revision
    raise CheckFailed(f"paging by {cap} is not over after {limit} pages and {len(seen)} machines")


def covered(t: Trial, wanted: set[str], seen: set[str], *, echoed: bool) -> None:
    """Paging brought all of them. The reference puts up with a cursor that skips what a cap cut off."""
    missing = wanted - seen
    if missing and echoed:
        t.lenient(f"the cursor of a capped page skips {some(missing)}, cut off by the cap")
        return
    expect.that(not missing, f"paging ended without {some(missing)}")


def is_full(listed: pb.MachineList, said: str, *, full: bool) -> None:
    """``full`` tells a complete list from every other (P-70)."""
    expect.that(listed.HasField("full"), f"{said} has no `full`, which other answers of this provider have")
    expect.that(listed.full is full, f"{said} says full={listed.full}, expected {full}")


def some(machine_ids: Iterable[str]) -> str:
    """A few of them, for a sentence."""
    found: Sequence[str] = sorted(machine_ids)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0]}{more}" if found else "none"


@asynccontextmanager
async def booted(t: Trial, managed: Managed) -> AsyncIterator[Client]:
    """Another provider than the lane's; killed at the end, its state left for the next boot."""
    try:
        connection = Connection(await managed.boot(), t.target.connection.tls)
        try:
            yield Client(connection, t.tokens, t.evidence)
        finally:
            await connection.close()
    finally:
        managed.kill()


async def _retire_and_return(t: Trial) -> None:
    """A provider of its own loses half of its slots over a restart, and gets them back over another."""
    command = t.options.provider_cmd
    if "{state}" not in command or "{seed_count}" not in command:
        t.note("no machine was removed: that takes a --provider-cmd with {state} and {seed_count}")
        return
    many = Managed(command, _MANY, (), t.target.connection.tls)
    few = Managed(command, _FEW, (), t.target.connection.tls)
    few.state = many.state
    try:
        async with booted(t, many) as client:
            fleet = expect.ok(await client.list())
        async with booted(t, few) as client:
            left = expect.ok(await client.list())
            gone = distinct(fleet.machines) - distinct(left.machines)
            if not gone:
                t.note(f"no machine was removed: {_FEW} seeds instead of {_MANY} leave all of them")
                return
            expect.that(not left.removed_ids, f"a full List has {len(left.removed_ids)} removed_ids")
            delta = expect.ok(await client.list(since=fleet.revision))
            is_full(delta, "List since a cursor", full=False)
            apart(delta)
            unnamed = gone - set(delta.removed_ids)
            expect.that(not unnamed, f"the delta lacks {some(unnamed)} among removed_ids")
        async with booted(t, many) as client:
            delta = expect.ok(await client.list(since=fleet.revision))
            apart(delta)
            still = gone & set(delta.removed_ids)
            expect.that(
                not still, f"the delta has {some(still)} among removed_ids, although List has them again"
            )
            has(delta, gone)
    finally:
        await few.stop()
        await many.stop()


def apart(delta: pb.MachineList) -> None:
    """No id is both there and removed."""
    both = distinct(delta.machines) & set(delta.removed_ids)
    expect.that(not both, f"the delta has {some(both)} among its machines and among removed_ids")


def _only(listed: pb.MachineList, said: str, *states: S) -> None:
    for machine in listed.machines:
        state = state_of(machine)
        expect.that(state in states, f"{said} has machine {machine.id}, which is {state.name}")


def _is_repriced(before: pb.Machine | None, now: pb.Machine) -> bool:
    """Whether only what no call can change has changed."""
    if before is None or (before.state, before.cluster) != (now.state, now.cluster):
        return False
    return _priced(before) != _priced(now)


def _priced(machine: pb.Machine) -> tuple[float, float, Mapping[str, str]]:
    return machine.price_per_hour, machine.interruption_probability, dict(machine.labels)
