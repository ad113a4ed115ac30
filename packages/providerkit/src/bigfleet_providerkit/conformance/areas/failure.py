"""Area 7: what happens when a step fails, hangs or never gets ready (provider.md §6, §9)."""

import asyncio
import base64
import math
import re
import secrets
import time
from typing import Final

from grpc import StatusCode as Code

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.areas.fields import placed
from bigfleet_providerkit.conformance.areas.lifecycle import host
from bigfleet_providerkit.conformance.checks import CheckFailed, check
from bigfleet_providerkit.conformance.client import CLUSTER, OTHER_CLUSTER, state_of
from bigfleet_providerkit.conformance.trial import Trial

ERROR: Final = "fault-error"
TIMEOUT: Final = "fault-timeout"
SLOW_OK: Final = "fault-slow-ok"
DRAIN_ERROR: Final = "fault-drain-error"
NEVER_READY: Final = "fault-readiness-block"
HOST_LOSS: Final = "fault-host-loss"
MARGIN_S: Final = 3.0
"""How much later than its timeout a transition may be Failed."""
_STAY_S: Final = 0.3
_LATE_S: Final = 2.0
"""Long enough after the timeout for the success that comes 1 s too late."""
_ERROR_SHAPED: Final = re.compile(
    "(create|configure|drain|delete|host)"
    ":(timeout|substrate|capacity|readiness|interrupted|host-lost|binding-unknown):"
)
_LONGEST_ERROR: Final = 1_024
"""Bytes (provider.P-86)."""
_TIMEOUT_SHAPED: Final = re.compile(r"time[ds]?[ -]?out|deadline", re.IGNORECASE)


@check("B701")
async def an_error_in_configure_fails_the_machine(t: Trial) -> None:
    machine_id = await configured_to_fail(t)
    await t.holds(machine_id, S.FAILED, _STAY_S)


@check("B702")
async def an_error_in_create_fails_the_machine(t: Trial) -> None:
    machine_id = await t.take_faulty("error")
    expect.ok(await t.provider.create(machine_id))
    await failed(t, machine_id, t.timeout("create") + MARGIN_S)
    await t.holds(machine_id, S.FAILED, _STAY_S)


@check("B703")
async def a_hanging_configure_times_out(t: Trial) -> None:
    machine_id = await configured_to_fail(t, TIMEOUT)
    said = (await t.get(machine_id)).last_error
    expect.that(
        _TIMEOUT_SHAPED.search(said),
        f"machine {machine_id} timed out, and last_error is {said!r}: no timeout",
    )


@check("B704")
async def a_late_success_changes_nothing(t: Trial) -> None:
    machine_id = await configured_to_fail(t, SLOW_OK)
    said = (await t.get(machine_id)).last_error
    later = await t.holds(machine_id, S.FAILED, _LATE_S)
    _same_error(later, said)


@check("B705")
async def failed_is_no_start(t: Trial) -> None:
    machine_id = await configured_to_fail(t)
    said = (await t.get(machine_id)).last_error
    for reply in (
        await t.provider.configure(machine_id, OTHER_CLUSTER),
        await t.provider.configure(machine_id, ERROR),
        await t.provider.create(machine_id),
        await t.provider.drain(machine_id),
        await t.provider.delete(machine_id),
    ):
        expect.rejected(reply)
    _same_error(await t.holds(machine_id, S.FAILED), said)


@check("B706")
async def a_failing_drain_ends(t: Trial) -> None:
    machine_id = await t.configured(DRAIN_ERROR)
    expect.ok(await t.provider.drain(machine_id))
    machine = await t.at_rest(machine_id, t.timeout("drain") + MARGIN_S)
    expect.in_state(machine, S.FAILED, S.IDLE)
    _has_error(machine)
    await t.holds(machine_id, state_of(machine), _STAY_S)


@check("B707")
async def failed_reads_the_same(t: Trial) -> None:
    machine_id = await configured_to_fail(t)
    said = (await t.get(machine_id)).last_error
    for _ in range(3):
        machine = await t.get(machine_id)
        expect.in_state(machine, S.FAILED)
        _same_error(machine, said)
    for listed in (await t.list_machines(S.FAILED), await t.list_machines()):
        expect.once(listed.machines, machine_id)
        _same_error(next(machine for machine in listed.machines if machine.id == machine_id), said)


@check("B708")
async def what_never_gets_ready_fails(t: Trial) -> None:
    machine_id = await t.idle()
    expect.ok(await t.provider.configure(machine_id, NEVER_READY))
    limit = t.timeout("configure") + MARGIN_S
    try:
        async with asyncio.timeout(limit):
            while state_of(machine := await t.get(machine_id)) is not S.FAILED:
                expect.in_state(machine, S.CONFIGURING)
                await asyncio.sleep(t.options.poll)
    except TimeoutError:
        raise CheckFailed(
            f"machine {machine_id} is not Ready and still {state_of(machine).name} after {limit:g} s"
        ) from None
    _has_error(machine)


@check("X701")
async def the_hooks_are_the_providers_own(t: Trial) -> None:
    t.need_hooks()
    for fault in ("error", "hang"):
        machine_id = await t.take_faulty(fault)
        before = (await t.list_machines()).revision
        expect.ok(await t.provider.create(machine_id))
        if fault == "hang":
            await _is_busy(t, machine_id, "configure", "drain", "delete")
            await _is_listed(t, machine_id, S.CREATING, before)
        await failed(t, machine_id, t.timeout("create") + MARGIN_S)
        await _is_listed(t, machine_id, S.FAILED, before)
    machine_id = await t.idle()
    expect.ok(await t.provider.configure(machine_id, TIMEOUT))
    await _is_busy(t, machine_id, "create", "drain", "delete")
    machine_id = await t.idle()
    asked = time.monotonic()
    await t.configure(machine_id, "fault-ready-after-1s")
    took = time.monotonic() - asked
    expect.that(took >= 1, f"fault-ready-after-1s was CONFIGURED after {took:.2f} s, expected 1 s at least")


@check("X702")
async def a_lost_host_is_noticed(t: Trial) -> None:
    machine_id = await configured_to_lose_its_host(t)
    machine = await left(t, machine_id, S.CONFIGURED, "its host is gone")
    expect.in_state(machine, S.FAILED)
    expect.that(
        machine.last_error.startswith("host:host-lost:"),
        f"the host of machine {machine_id} is gone, and last_error is {machine.last_error!r}, expected"
        " host:host-lost: and more",
    )
    expect.bound(machine, HOST_LOSS)


@check("X703")
async def repair_returns_the_slot(t: Trial) -> None:
    refused, lost, uncreated = (
        await configured_to_fail(t),
        await configured_to_lose_its_host(t),
        await t.take_faulty("error"),
    )
    first = expect.operation(await t.provider.create(uncreated))
    await failed(t, uncreated, t.timeout("create") + MARGIN_S)
    await left(t, lost, S.CONFIGURED, "its host is gone")
    for machine_id in (uncreated, refused, lost):
        machine = await left(t, machine_id, S.FAILED, "nobody repairs it")
        expect.in_state(machine, S.SPECULATIVE, S.IDLE)
        placed(machine)
        expect.unbound(machine)
        expect.that(not machine.last_error, f"machine {machine_id} was repaired and kept its last_error")
    # Never made, and gone for good: of either a host would be one too many.
    for machine_id in (uncreated, lost):
        host(await t.get(machine_id), present=False)
    again = expect.operation(await t.provider.create(uncreated))
    expect.that(again != first, f"machine {uncreated} was repaired, and its next life began with {first}")
    for machine_id in (refused, lost):
        if state_of(await t.get(machine_id)) is S.SPECULATIVE:
            expect.ok(await t.provider.create(machine_id))
            await t.settle(machine_id, S.IDLE)
        await t.configure(machine_id, CLUSTER)
    await one_host_each(t)


@check("X704")
async def a_drain_has_its_grace(t: Trial) -> None:
    timeout = t.timeout("drain")
    lasts = math.ceil(timeout) + 2
    cluster = f"fault-drain-after-{lasts}s"
    patient, hasty = [await t.configured(cluster) for _ in range(2)]
    started = time.monotonic()
    expect.ok(await t.provider.drain(patient, grace=lasts + 5))
    expect.ok(await t.provider.drain(hasty))
    ended = await t.at_rest(hasty, timeout + MARGIN_S)
    if state_of(ended) is S.IDLE:
        t.vacuous(f"its hooks know no cluster {cluster}, so no drain outlasted its timeout")
        return
    await failed(t, hasty)
    await t.settle(patient, S.IDLE, lasts + t.options.settle["drain"])
    took = time.monotonic() - started
    expect.that(took >= timeout, f"a drain that lasts {lasts} s was over after {took:.1f} s")


@check("X705")
async def secrets_stay_secret(t: Trial) -> None:
    secret = secrets.token_hex(16)
    blob = f"join with {secret}\n".encode()
    shown = [secret, base64.b64encode(blob).decode()]
    for cluster in (ERROR, DRAIN_ERROR):
        machine_id = await t.idle()
        expect.ok(await t.provider.configure(machine_id, cluster, {"note": f"of {secret}"}, blob=blob))
        if cluster == DRAIN_ERROR:
            await t.settle(machine_id, S.CONFIGURED)
            expect.ok(await t.provider.drain(machine_id))
        machine = await t.at_rest(machine_id, t.timeout("configure") + MARGIN_S)
        said = machine.last_error
        if state_of(machine) is S.FAILED:
            expect.that(
                _ERROR_SHAPED.match(said) and len(said.encode()) <= _LONGEST_ERROR,
                f"last_error of machine {machine_id} has {len(said.encode())} bytes and begins {said[:60]!r},"
                f" expected KIND:CLASS: and at most {_LONGEST_ERROR} bytes",
            )
        expect.that(
            not any(text in said for text in shown),
            f"last_error of machine {machine_id} has the token of the bootstrap blob or the metadata in it",
        )
        # Only the metadata comes back (provider.md §4).
        machine.ClearField("shard_metadata")
        record = machine.SerializeToString()
        expect.that(
            not any(text.encode() in record for text in shown),
            f"the record of machine {machine_id} has the token of the bootstrap blob in it",
        )
    if t.target.managed is None:
        t.note("logs were not looked at: they are to be had of a provider that the suite starts")
        return
    # What is logged last may be on its way still.
    await t.holds(machine_id, state_of(machine))
    output = t.target.managed.output()
    expect.that(
        not any(text in output for text in shown),
        "the provider's log has the token of the bootstrap blob or the metadata in it",
    )


async def configured_to_fail(t: Trial, cluster: str = ERROR) -> str:
    """A machine whose Configure has failed."""
    machine_id = await t.idle()
    expect.ok(await t.provider.configure(machine_id, cluster))
    await failed(t, machine_id, t.timeout("configure") + MARGIN_S)
    return machine_id


async def configured_to_lose_its_host(t: Trial) -> str:
    """A machine that is Configured, and whose host then goes; some notice that before anyone can look."""
    machine_id = await t.idle()
    expect.ok(await t.provider.configure(machine_id, HOST_LOSS))
    expect.in_state(await t.at_rest(machine_id), S.CONFIGURED, S.FAILED)
    return machine_id


async def failed(t: Trial, machine_id: str, limit: float | None = None) -> pb.Machine:
    """The machine at its rest, which must be Failed and say why."""
    machine = await t.at_rest(machine_id, limit)
    expect.in_state(machine, S.FAILED)
    _has_error(machine)
    return machine


async def left(t: Trial, machine_id: str, state: S, because: str) -> pb.Machine:
    """The machine once the provider has taken it out of a state by itself."""
    limit = t.options.recovery
    try:
        async with asyncio.timeout(limit):
            while True:
                machine = await t.get(machine_id)
                if state_of(machine) is not state:
                    return machine
                await asyncio.sleep(t.options.poll)
    except TimeoutError:
        raise CheckFailed(
            f"machine {machine_id} is still {state.name} after {limit:g} s, and {because}"
            " (--recovery-timeout says how long is allowed)"
        ) from None


async def one_host_each(t: Trial) -> None:
    """No host is two machines', and no machine is listed twice."""
    machines = [machine for machine in (await t.list_machines()).machines if machine.HasField("host")]
    refs = [(machine.host.provider, machine.host.ref) for machine in machines]
    twice = sorted({ref for ref in refs if refs.count(ref) > 1})
    expect.that(not twice, f"host {'/'.join(twice[0]) if twice else ''} is the host of two machines")


async def _is_busy(t: Trial, machine_id: str, *kinds: str) -> None:
    """No other call starts from a transition that is under way."""
    for kind in kinds:
        absent = (Code.UNIMPLEMENTED,) if kind == "delete" and not t.can.delete else ()
        expect.code(await getattr(t.provider, kind)(machine_id), Code.ABORTED, *absent)


async def _is_listed(t: Trial, machine_id: str, state: S, before: bytes) -> None:
    """Nobody looks after a machine that is missing from Lists until it has settled (provider.P-61, P-64)."""
    lists = [await t.list_machines(), await t.list_machines(state)]
    if t.can.cursor:
        lists.append(await t.list_machines(since=before))
    # What has left the state meanwhile is rightly missing from some of them.
    if state_of(await t.get(machine_id)) is not state:
        return
    for listed in lists:
        expect.once(listed.machines, machine_id)
        expect.in_state(next(machine for machine in listed.machines if machine.id == machine_id), state)


def _has_error(machine: pb.Machine) -> None:
    if state_of(machine) is S.FAILED:
        expect.that(machine.last_error, f"machine {machine.id} is FAILED without last_error")


def _same_error(machine: pb.Machine, said: str) -> None:
    expect.that(
        machine.last_error == said,
        f"last_error of machine {machine.id} changed from {said!r} to {machine.last_error!r}",
    )
