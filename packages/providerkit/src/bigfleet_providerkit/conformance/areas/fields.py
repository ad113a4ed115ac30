"""Area 8: what a record says of its machine, and what it costs (provider.md §7)."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import CapacityType, MachineState, QuantityError, parse_quantity
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.areas.lifecycle import host
from bigfleet_providerkit.conformance.checks import CheckFailed, SkipFixture, check
from bigfleet_providerkit.conformance.client import state_of
from bigfleet_providerkit.conformance.trial import Trial

HOSTED: Final = (S.IDLE, S.CONFIGURED)
STABLE: Final = (S.SPECULATIVE, *HOSTED)
BARE_KEYS: Final = frozenset(
    f"{first}{second}"
    for first, seconds in (
        ("instance", ("-type", "_type", "Type")),
        ("capacity", ("-type", "_type", "Type")),
        ("availability", ("-zone", "_zone")),
        ("zone", ("",)),
    )
    for second in seconds
)
"""Selectors read the fields of these names, and a label of one would say the same twice, or not the same."""
INTERRUPTION: Final = "fault-interruption"
NOTICED: Final = 0.5
"""The least that a notice makes of a probability; an imminent kill makes 0.99 (provider.P-96)."""
_MONTHLY: Final = (0.025, 0.075, 0.125, 0.175, 0.225, 0.25, 0.3)
"""What a month's report of interruptions says, by its ranges; none of them is an hour's."""
_CAPACITY_TYPES: Final = frozenset(map(int, CapacityType))
_FREE: Final = (CapacityType.BARE_METAL, CapacityType.RESERVED)


@check("B801")
async def records_have_their_fields(t: Trial) -> None:
    for machine in await inventory(t):
        shape(machine)


@check("B802")
async def costs_are_in_bounds(t: Trial) -> None:
    machines = await inventory(t)
    for machine in machines:
        cost(machine)
    if not any(_is(machine, CapacityType.SPOT) for machine in machines):
        if "spot" in t.options.profiles:
            raise SkipFixture("the spot profile needs a SPOT machine, and List has none")
        t.vacuous("List has no SPOT machine")


@check("B803")
async def host_and_cluster_follow_the_state(t: Trial) -> None:
    for machine in await inventory(t):
        if state_of(machine) in STABLE:
            placed(machine)
    async for machine in _walk(t):
        placed(machine)


@check("B804")
async def quantities_parse(t: Trial) -> None:
    both = [one for one in await inventory(t) if one.HasField("allocatable") and one.HasField("resources")]
    for machine in both:
        _quantities(machine)
    if not both:
        t.vacuous("no machine has both allocatable and resources")


@check("B805")
async def the_hosts_provider_is_constant(t: Trial) -> None:
    seen: set[str] = set()
    async for machine in _walk(t):
        if state_of(machine) in HOSTED:
            listed = (await t.list_machines(state_of(machine))).machines
            expect.once(listed, machine.id)
            records = (machine, *(one for one in listed if one.id == machine.id))
            seen.update(record.host.provider for record in records)
    expect.that("" not in seen, "a machine with a host has an empty host.provider")
    expect.that(len(seen) == 1, f"host.provider changed over a machine's life: {sorted(seen)}")


@check("B806")
async def hosts_have_a_zone_and_a_capacity_type(t: Trial) -> None:
    for machine in await inventory(t):
        if state_of(machine) in HOSTED:
            located(machine)
    async for machine in _walk(t):
        if state_of(machine) in HOSTED:
            located(machine)


@check("B807")
async def delete_leaves_a_bare_slot(t: Trial) -> None:
    machine_id = await t.configured(metadata={"owner": "conformance", "empty": ""})
    await t.drain(machine_id)
    expect.ok(await t.provider.delete(machine_id))
    machine = await t.settle(machine_id, S.SPECULATIVE)
    host(machine, present=False)
    expect.unbound(machine)


@check("X801")
async def only_what_is_owned_is_free(t: Trial) -> None:
    for machine in await inventory(t):
        expect.that(
            machine.price_per_hour > 0 or any(_is(machine, kind) for kind in _FREE),
            f"machine {machine.id} ({_type(machine)}) costs nothing: it would win every choice, and only"
            " owned capacity (BARE_METAL, or RESERVED and paid for) may",
        )


@check("X802")
async def what_a_machine_is_never_changes(t: Trial) -> None:
    first: tuple[str, str, int] | None = None
    async for machine in _walk(t):
        now = (machine.instance_type, machine.zone, int(machine.capacity_type))
        expect.that(
            first in (None, now),
            f"machine {machine.id} became another at {state_of(machine).name}: instance type, zone and"
            f" capacity type were {first} and are {now}",
        )
        first = now


@check("X803")
async def probabilities_are_hourly(t: Trial) -> None:
    spot = [one for one in await inventory(t) if _is(one, CapacityType.SPOT)]
    # What an observation has raised is no forecast; of a free machine there is nothing to observe.
    if noted := hourly([machine for machine in spot if state_of(machine) is S.SPECULATIVE]):
        t.note(noted)
    if not spot:
        t.vacuous("List has no SPOT machine")


@check("X804")
async def a_notice_is_visible(t: Trial) -> None:
    t.need_hooks()
    machine_id = await t.idle()
    forecast = (await t.get(machine_id)).interruption_probability
    await t.configure(machine_id, INTERRUPTION)
    shown = got = forecast
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(t.options.settle["configure"]):
            while (shown := await _listed_probability(t, machine_id)) < NOTICED:
                got = (await t.get(machine_id)).interruption_probability
                await asyncio.sleep(t.options.poll)
    if max(shown, got) < NOTICED:
        t.vacuous(f"its hooks know no cluster {INTERRUPTION}, so there was no notice")
        return
    expect.that(
        shown >= NOTICED,
        f"machine {machine_id} got notice of an imminent kill: Get shows interruption_probability {got:g},"
        f" and List still {shown:g}",
    )
    expect.that(forecast <= shown <= 1, f"the notice changed the probability from {forecast:g} to {shown:g}")
    got = (await t.get(machine_id)).interruption_probability
    expect.that(got == shown, f"machine {machine_id} has probability {got:g} by Get and {shown:g} by List")
    if t.can.delete:
        await t.drain(machine_id)
        expect.ok(await t.provider.delete(machine_id))
        cleared = (await t.settle(machine_id, S.SPECULATIVE)).interruption_probability
        expect.that(
            cleared == forecast,
            f"after Delete the notice still shows: the probability is {cleared:g}, and was {forecast:g}",
        )


def shape(machine: pb.Machine) -> None:
    """A record of any state says which machine it is and what kind of."""
    expect.that(machine.id, "a listed machine has no id")
    expect.that(machine.instance_type, f"machine {machine.id} has no instance_type")
    expect.that(machine.state, f"machine {machine.id} has state UNSPECIFIED")
    state_of(machine)
    leaked = sorted(BARE_KEYS.intersection(machine.labels))
    expect.that(not leaked, f"machine {machine.id} has the label {leaked[:1]}, which is a field of its own")


def cost(machine: pb.Machine) -> None:
    """What a choice reckons with can be reckoned with."""
    price, probability = machine.price_per_hour, machine.interruption_probability
    expect.that(
        math.isfinite(price) and price >= 0,
        f"machine {machine.id} ({_type(machine)}) has price_per_hour {price}, expected a number from 0",
    )
    expect.that(
        0 <= probability <= 1,
        f"machine {machine.id} has interruption_probability {probability}, expected 0 to 1",
    )
    expect.that(
        probability > 0 or not _is(machine, CapacityType.SPOT),
        f"machine {machine.id} is SPOT with interruption_probability 0: it looks as safe as any other",
    )


def hourly(machines: Sequence[pb.Machine]) -> str:
    """Declared probabilities are not those of a month. Returns what looks like one and may be an hour's."""
    monthly = {
        share: machine
        for machine in reversed(machines)
        for share in _MONTHLY
        if math.isclose(machine.interruption_probability, share)
    }
    if not monthly:
        return ""
    share, machine = min(monthly.items(), key=lambda found: found[1].id)
    said = (
        f"machine {machine.id} ({machine.instance_type}) has interruption_probability {share:g}, a figure of"
        f" monthly reports; an hour's would be 1 - (1 - p)^(1/730), {1 - (1 - share) ** (1 / 730):.6f}"
    )
    # One may be an hour's by chance. Different ones, and nothing else, are not.
    declared = {machine.interruption_probability for machine in machines}
    expect.that(len(declared) > len(monthly) or len(monthly) == 1, said)
    return said


def located(machine: pb.Machine) -> None:
    """A record says where its machine is and how it is paid for."""
    where = f"machine {machine.id} at {state_of(machine).name}"
    expect.that(machine.capacity_type, f"{where} has capacity_type UNSPECIFIED")
    expect.that(
        int(machine.capacity_type) in _CAPACITY_TYPES,
        f"{where} has capacity_type {machine.capacity_type}, which does not exist",
    )
    expect.that(machine.zone, f"{where} has no zone")


def placed(machine: pb.Machine) -> None:
    """Host, binding and last_error of a machine at rest are there exactly when its state has them."""
    state = state_of(machine)
    host(machine, present=state in HOSTED)
    expect.that(
        bool(machine.cluster) == (state is S.CONFIGURED),
        f"machine {machine.id} at {state.name} has cluster {machine.cluster!r}",
    )
    if state is not S.CONFIGURED:
        expect.unbound(machine)
    expect.that(
        not machine.last_error,
        f"machine {machine.id} at {state.name} has last_error {machine.last_error!r}",
    )


async def inventory(t: Trial) -> list[pb.Machine]:
    """Everything there is, which must be something."""
    machines = list((await t.list_machines()).machines)
    if not machines:
        raise SkipFixture("List is empty")
    return machines


async def _walk(t: Trial) -> AsyncIterator[pb.Machine]:
    """One machine at each rest of its life."""
    machine_id = await t.speculative()
    yield await t.get(machine_id)
    expect.ok(await t.provider.create(machine_id))
    yield await t.settle(machine_id, S.IDLE)
    yield await t.configure(machine_id, metadata={"owner": "conformance"})
    yield await t.drain(machine_id)
    if t.can.delete:
        expect.ok(await t.provider.delete(machine_id))
        yield await t.settle(machine_id, S.SPECULATIVE)


async def _listed_probability(t: Trial, machine_id: str) -> float:
    listed = (await t.list_machines(MachineState.CONFIGURED)).machines
    return next((one.interruption_probability for one in listed if one.id == machine_id), 0.0)


def _quantities(machine: pb.Machine) -> None:
    allocatable, resources = machine.allocatable.resources, machine.resources.resources
    for name, given in (("allocatable", allocatable), ("resources", resources)):
        expect.that(given, f"machine {machine.id} has {name} with nothing in it")
    for key in sorted(allocatable.keys() & resources.keys()):
        expect.that(
            _parsed(machine, "resources", resources, key) > 0,
            f"machine {machine.id} has resources {key}={resources[key]!r}, expected above 0",
        )
        expect.that(
            _parsed(machine, "allocatable", allocatable, key) >= 0,
            f"machine {machine.id} has allocatable {key}={allocatable[key]!r}, expected 0 or more",
        )


def _parsed(machine: pb.Machine, name: str, given: Mapping[str, str], key: str) -> int:
    try:
        return parse_quantity(given[key])
    except QuantityError as error:
        raise CheckFailed(f"machine {machine.id} has {name} {key} that is no quantity: {error}") from None


def _is(machine: pb.Machine, capacity_type: CapacityType) -> bool:
    return int(machine.capacity_type) == int(capacity_type)


def _type(machine: pb.Machine) -> str:
    names = {int(kind): kind.name for kind in CapacityType}
    number = int(machine.capacity_type)
    return f"{machine.instance_type}, {names.get(number, number)}"
