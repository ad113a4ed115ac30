"""Area 1: the life of a machine, its states and what its record says in each."""

import asyncio
from itertools import pairwise

from grpc import StatusCode as Code

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_base.wire.provider_calls import Token
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.areas.matrix import same
from bigfleet_providerkit.conformance.checks import check
from bigfleet_providerkit.conformance.client import CLUSTER, OTHER_CLUSTER, Ack, state_of
from bigfleet_providerkit.conformance.trial import Trial

_STAY_S = 0.3
_NO_NAMES = ("a blank", "a/slash", "ü", "x" * 254)
"""What no cluster and no shard may be called (wire.md §1.2)."""
_SUSPICIOUS = 8
_ROUNDS = 2 * _SUSPICIOUS
_LEGAL = {
    S.SPECULATIVE: {S.CREATING, S.IDLE},
    S.CREATING: {S.IDLE},
    S.IDLE: {S.CONFIGURING, S.CONFIGURED},
    S.CONFIGURING: {S.CONFIGURED},
    S.CONFIGURED: {S.DRAINING, S.IDLE},
    S.DRAINING: {S.IDLE},
}


@check("B101")
async def rounds_leave_no_residue(t: Trial) -> None:
    machine_id = await t.idle()
    clean(await t.get(machine_id))
    for _ in range(4):
        configured = await t.configure(machine_id, metadata={"round": "1", "owner": "conformance"})
        expect.bound(configured, CLUSTER)
        clean(await t.drain(machine_id, grace=5))


@check("B103")
async def configure_shows_only_configuring(t: Trial) -> None:
    machine_id = await t.idle()
    ack = expect.ok(await t.provider.configure(machine_id))
    only(t, await t.trace(machine_id, ack, S.CONFIGURED), S.CONFIGURING)


@check("B104")
async def drain_shows_only_draining(t: Trial) -> None:
    machine_id = await t.configured()
    ack = expect.ok(await t.provider.drain(machine_id))
    only(t, await t.trace(machine_id, ack, S.IDLE), S.DRAINING)


@check("B105")
async def every_step_is_an_edge(t: Trial) -> None:
    machine_id = await t.speculative()
    seen = [await t.get(machine_id)]
    seen += await t.trace(machine_id, expect.ok(await t.provider.create(machine_id)), S.IDLE)
    seen += await t.trace(machine_id, expect.ok(await t.provider.configure(machine_id)), S.CONFIGURED)
    seen += await t.trace(machine_id, expect.ok(await t.provider.drain(machine_id)), S.IDLE)
    for before, after in pairwise(map(state_of, seen)):
        legal = before is after or after in _LEGAL.get(before, ())
        expect.that(legal, f"machine {machine_id} went from {before.name} to {after.name}")


@check("B106")
async def cluster_follows_the_binding(t: Trial) -> None:
    metadata = {"owner": "conformance"}
    machine_id = await t.idle()
    expect.unbound(await t.get(machine_id))
    ack = expect.ok(await t.provider.configure(machine_id, metadata=metadata))
    seen = await t.trace(machine_id, ack, S.CONFIGURED)
    for machine in seen:
        if state_of(machine) is S.CONFIGURING:
            expect.that(machine.cluster, f"machine {machine_id} is CONFIGURING without a cluster")
    expect.bound(seen[-1], CLUSTER)
    seen = await t.trace(machine_id, expect.ok(await t.provider.drain(machine_id)), S.IDLE)
    for machine in seen:
        if state_of(machine) is S.DRAINING:
            expect.bound(machine, CLUSTER)
            expect.metadata(machine, metadata)
    expect.unbound(seen[-1])


@check("B107")
async def host_comes_with_create_and_stays(t: Trial) -> None:
    machine_id = await t.speculative()
    host(await t.get(machine_id), present=False)
    *creating, idle = await t.trace(machine_id, expect.ok(await t.provider.create(machine_id)), S.IDLE)
    if any(machine.HasField("host") for machine in creating if state_of(machine) is S.CREATING):
        t.lenient(f"machine {machine_id} has a host while it is CREATING")
    host(idle, present=True)
    seen = await t.trace(machine_id, expect.ok(await t.provider.configure(machine_id)), S.CONFIGURED)
    seen += await t.trace(machine_id, expect.ok(await t.provider.drain(machine_id)), S.IDLE)
    for machine in seen:
        host(machine, present=True)


@check("B108")
async def a_settled_machine_stays(t: Trial) -> None:
    machine_id = await t.configured()
    await t.holds(machine_id, S.CONFIGURED, _STAY_S)
    await t.drain(machine_id)
    await t.holds(machine_id, S.IDLE, _STAY_S)


@check("B109")
async def delete_shows_only_deleting(t: Trial) -> None:
    machine_id = await t.idle()
    ack = expect.ok(await t.provider.delete(machine_id))
    only(t, await t.trace(machine_id, ack, S.SPECULATIVE), S.DELETING)


@check("X101")
async def an_empty_cluster_is_invalid(t: Trial) -> None:
    machine_id = await t.idle()
    token = t.shard().token(5, 5)
    for cluster in ("", *_NO_NAMES):
        reply = await t.provider.configure(machine_id, cluster, token=token)
        expect.code(reply, Code.INVALID_ARGUMENT)
    expect.unbound(await t.holds(machine_id, S.IDLE))
    # Arguments are looked at before the token, which none of these has used up (provider.md §3.1).
    expect.ok(await t.provider.configure(machine_id, token=token))
    await t.settle(machine_id, S.CONFIGURED)


@check("X102")
async def a_binding_is_not_overwritten(t: Trial) -> None:
    metadata = {"owner": "first"}
    machine_id = await t.idle()
    operation_id = expect.operation(await t.provider.configure(machine_id, CLUSTER, metadata, b"one"))
    # Whether it is under way still or not makes no difference.
    expect.code(await t.provider.configure(machine_id, OTHER_CLUSTER, metadata), Code.ALREADY_EXISTS)
    await t.settle(machine_id, S.CONFIGURED)
    expect.code(await t.provider.configure(machine_id, OTHER_CLUSTER, metadata), Code.ALREADY_EXISTS)
    expect.code(await t.provider.configure(machine_id, CLUSTER, {"owner": "second"}), Code.ALREADY_EXISTS)
    # Blobs are not compared: a repeated call may bring a new join token.
    same(operation_id, await t.provider.configure(machine_id, CLUSTER, metadata, b"another"))
    machine = await t.holds(machine_id, S.CONFIGURED)
    expect.bound(machine, CLUSTER)
    expect.metadata(machine, metadata)


@check("X103")
async def delete_needs_an_id(t: Trial) -> None:
    expect.code(await t.provider.delete(""), Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED)


@check("X104")
async def a_transition_is_not_interrupted(t: Trial) -> None:
    machine_id = await t.idle()
    refused = [await is_refused(t, machine_id, S.CONFIGURING)]
    if not refused[0] and state_of(await t.at_rest(machine_id)) is S.IDLE:
        await t.configure(machine_id)
    await t.settle(machine_id, S.CONFIGURED)
    expect.bound(await t.holds(machine_id, S.CONFIGURED), CLUSTER)
    refused.append(await is_refused(t, machine_id, S.DRAINING))
    if not refused[1] and state_of(await t.at_rest(machine_id)) is S.CONFIGURED:
        await t.drain(machine_id)
    await t.settle(machine_id, S.IDLE)
    expect.unbound(await t.holds(machine_id, S.IDLE))
    if not all(refused):
        t.vacuous("the machine settled before the second call could be made")


@check("X105")
async def numbers_need_a_shard(t: Trial) -> None:
    t.need_plaintext()
    machine_id = await t.speculative()
    for epoch, sequence in ((1, 1), (1, 0), (0, 1)):
        reply = await t.provider.create(machine_id, Token("", epoch, sequence))
        expect.code(reply, Code.INVALID_ARGUMENT)
    for shard_id in _NO_NAMES:
        reply = await t.provider.create(machine_id, Token(shard_id, 1, 1))
        expect.code(reply, Code.INVALID_ARGUMENT)
    await t.holds(machine_id, S.SPECULATIVE)


def clean(machine: pb.Machine) -> None:
    """Idle, and nothing is left of what was."""
    expect.in_state(machine, S.IDLE)
    expect.unbound(machine)
    expect.that(not machine.last_error, f"machine {machine.id} at IDLE has last_error {machine.last_error!r}")


async def is_refused(t: Trial, machine_id: str, during: S) -> bool:
    """Whether the call that undoes a transition was refused during it; False if there was no telling.

    A machine may settle between a look and the call, and then the call is rightly accepted. So each call has
    a counterpart: the machine is looked at instead, when twice the time of a call is over. Wrong is only who
    is still at it then and accepts the call, again and again.
    """
    suspicious, slowest = 0, 0.0
    for _ in range(_ROUNDS):
        accepted = False
        if await _is_begun(t, machine_id, during):
            reply = await _undo(t, machine_id, during)
            expect.code(reply, Code.OK, Code.ABORTED)
            if reply.code is Code.ABORTED:
                return True
            accepted, slowest = True, max(slowest, reply.seconds)
        lasts = await _is_begun(t, machine_id, during)
        await asyncio.sleep(2 * slowest)
        lasts = lasts and state_of(await t.get(machine_id)) is during
        suspicious = suspicious + 1 if accepted and lasts else 0
        expect.that(
            suspicious < _SUSPICIOUS,
            f"{suspicious} times another call was accepted right after Get had shown {during.name}",
        )
    return False


async def _is_begun(t: Trial, machine_id: str, during: S) -> bool:
    """Begin the transition from where it begins; whether it was seen under way."""
    state = state_of(await t.at_rest(machine_id))
    if during is S.CONFIGURING:
        if state is S.CONFIGURED:
            await t.drain(machine_id)
        expect.ok(await t.provider.configure(machine_id))
    else:
        if state is S.IDLE:
            await t.configure(machine_id)
        expect.ok(await t.provider.drain(machine_id))
    return state_of(await t.get(machine_id)) is during


async def _undo(t: Trial, machine_id: str, during: S) -> Ack:
    if during is S.CONFIGURING:
        return await t.provider.drain(machine_id)
    return await t.provider.configure(machine_id, OTHER_CLUSTER)


def only(t: Trial, seen: list[pb.Machine], transitional: S) -> None:
    """No passing state but this one was seen, if any."""
    passing = expect.TRANSITIONAL.intersection(map(state_of, seen))
    wrong = sorted(state.name for state in passing - {transitional})
    expect.that(
        not wrong, f"machine {seen[-1].id} showed {', '.join(wrong)}, expected {transitional.name} alone"
    )
    if not passing:
        t.vacuous(f"{transitional.name} was never seen: the provider is faster than its readers")


def host(machine: pb.Machine, *, present: bool) -> None:
    """The record has a host exactly when it must."""
    there = machine.HasField("host") and bool(machine.host.ref or machine.host.provider)
    expect.that(
        there == present,
        f"machine {machine.id} at {state_of(machine).name} has {'a' if there else 'no'} host",
    )
