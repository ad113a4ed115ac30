"""Area 2: which call is legal where, and the code of every refusal."""

from grpc import StatusCode as Code

from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.checks import check
from bigfleet_providerkit.conformance.client import CLUSTER, Ack
from bigfleet_providerkit.conformance.tokens import unused_id
from bigfleet_providerkit.conformance.trial import Trial

MAX_INT64 = 2**63 - 1


@check("B201")
async def create_on_configured(t: Trial) -> None:
    machine_id = await t.configured()
    expect.rejected(await t.provider.create(machine_id))
    expect.bound(await t.holds(machine_id, S.CONFIGURED), CLUSTER)


@check("B202")
async def configure_on_speculative(t: Trial) -> None:
    machine_id = await t.speculative()
    expect.rejected(await t.provider.configure(machine_id, metadata={"key": "value"}))
    expect.unbound(await t.holds(machine_id, S.SPECULATIVE))


@check("B203")
async def drain_on_idle(t: Trial) -> None:
    machine_id = await t.idle()
    reply = await t.provider.drain(machine_id, grace=5)
    expect.not_fenced(reply)
    if reply.code is Code.OK:
        t.lenient("Drain of an Idle machine that was never drained answered OK")
    await t.holds(machine_id, S.IDLE)
    await t.configure(machine_id)
    await t.drain(machine_id)
    # Now a Drain is on record, and a repeated one may be answered with it.
    expect.not_fenced(await t.provider.drain(machine_id, grace=5))
    await t.holds(machine_id, S.IDLE)
    if t.can.delete:
        await t.delete(machine_id)
        expect.ok(await t.provider.create(machine_id))
        await t.settle(machine_id, S.IDLE)
        reply = await t.provider.drain(machine_id, grace=5)
        expect.not_fenced(reply)
        if reply.code is Code.OK:
            t.lenient("Drain of an Idle machine that was drained in an earlier life answered OK")
        await t.holds(machine_id, S.IDLE)


@check("B204")
async def delete_off_idle(t: Trial) -> None:
    machine_id = await t.speculative()
    # OK is no transition: somebody may have deleted the machine before, and then this repeats it.
    expect.not_fenced(await t.provider.delete(machine_id))
    await t.holds(machine_id, S.SPECULATIVE)
    machine_id = await t.configured()
    expect.rejected(await t.provider.delete(machine_id))
    await t.holds(machine_id, S.CONFIGURED)


@check("B205")
async def repeats_change_nothing(t: Trial) -> None:
    metadata = {"key": "value"}
    machine_id = await t.configured(metadata=metadata)
    ack = expect.ok(await t.provider.configure(machine_id, metadata=metadata))
    expect.in_state(ack.machine, S.CONFIGURED)
    await t.holds(machine_id, S.CONFIGURED)
    machine_id = await t.idle()
    expect.in_state(expect.ok(await t.provider.create(machine_id)).machine, S.IDLE)
    await t.holds(machine_id, S.IDLE)


@check("B206")
async def repeats_return_the_operation(t: Trial) -> None:
    machine_id = await t.speculative()
    created = expect.operation(await t.provider.create(machine_id))
    await t.settle(machine_id, S.IDLE)
    same(created, await t.provider.create(machine_id))
    configured = expect.operation(await t.provider.configure(machine_id))
    await t.settle(machine_id, S.CONFIGURED)
    same(configured, await t.provider.configure(machine_id))
    expect.that(created != configured, f"Create and Configure have one operation id, {created}")
    if t.can.delete:
        await t.drain(machine_id)
        deleted = expect.operation(await t.provider.delete(machine_id))
        await t.settle(machine_id, S.SPECULATIVE)
        same(deleted, await t.provider.delete(machine_id))


@check("B207")
async def unknown_machines_are_not_found(t: Trial) -> None:
    ghost = unused_id("ghost")
    expect.code(await t.provider.create(ghost), Code.NOT_FOUND)
    expect.code(await t.provider.configure(ghost), Code.NOT_FOUND)
    expect.code(await t.provider.drain(ghost), Code.NOT_FOUND)
    expect.code(await t.provider.get(ghost), Code.NOT_FOUND)


@check("B208")
async def an_empty_id_is_invalid(t: Trial) -> None:
    expect.code(await t.provider.get(""), Code.INVALID_ARGUMENT)
    expect.code(await t.provider.create(""), Code.INVALID_ARGUMENT)
    expect.code(await t.provider.configure(""), Code.INVALID_ARGUMENT)
    expect.code(await t.provider.drain(""), Code.INVALID_ARGUMENT)


@check("B209")
async def large_metadata_is_whole_or_refused(t: Trial) -> None:
    metadata = {f"key-{n}": f"{n:04}" * 256 for n in range(512)}
    machine_id = await t.idle()
    reply = await t.provider.configure(machine_id, metadata=metadata)
    expect.code(reply, Code.OK, Code.INVALID_ARGUMENT)
    if reply.code is Code.OK:
        expect.metadata(await t.settle(machine_id, S.CONFIGURED), metadata)
    else:
        expect.unbound(await t.holds(machine_id, S.IDLE))


@check("B210")
async def negative_grace_is_invalid(t: Trial) -> None:
    machine_id = await t.configured()
    reply = await t.provider.drain(machine_id, grace=-5)
    expect.code(reply, Code.INVALID_ARGUMENT, Code.OK)
    if reply.code is Code.OK:
        t.lenient("Drain with grace -5 answered OK instead of INVALID_ARGUMENT")
        expect.unbound(await t.settle(machine_id, S.IDLE))
    else:
        expect.bound(await t.holds(machine_id, S.CONFIGURED), CLUSTER)


@check("B211")
async def negative_tokens_are_invalid(t: Trial) -> None:
    tokens = ((-1, 1), (1, -1), (-7, -3))
    for machine_id, (epoch, sequence) in zip(await t.take(3), tokens, strict=True):
        reply = await t.provider.create(machine_id, t.shard().raw(epoch, sequence))
        expect.code(reply, Code.INVALID_ARGUMENT, Code.OK)
        if reply.code is Code.OK:
            t.lenient(f"the token ({epoch}, {sequence}) was accepted instead of INVALID_ARGUMENT")
            await t.settle(machine_id, S.IDLE)
        else:
            await t.holds(machine_id, S.SPECULATIVE)


@check("B212")
async def the_greatest_token_is_ordinary(t: Trial) -> None:
    shard = t.tokens.unknown_shard()
    machine_id = await t.idle()
    greatest = shard.raw(MAX_INT64, MAX_INT64)
    expect.ok(t.first_contact(await t.provider.configure(machine_id, token=greatest)))
    expect.bound(await t.settle(machine_id, S.CONFIGURED), CLUSTER)
    expect.fenced(await t.provider.configure(machine_id, token=greatest))
    expect.fenced(await t.provider.configure(machine_id, token=shard.raw(MAX_INT64 - 1, MAX_INT64)))


@check("B213")
async def a_large_blob_is_taken_or_refused(t: Trial) -> None:
    machine_id = await t.idle()
    reply = await t.provider.configure(machine_id, blob=bytes(3 << 20))
    expect.code(reply, Code.OK, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
    if reply.code is Code.OK:
        expect.bound(await t.settle(machine_id, S.CONFIGURED), CLUSTER)
    else:
        expect.unbound(await t.holds(machine_id, S.IDLE))


@check("B214")
async def every_transition_has_its_own_operation(t: Trial) -> None:
    machine_id = await t.speculative()
    found = [expect.operation(await t.provider.create(machine_id))]
    await t.settle(machine_id, S.IDLE)
    for _ in range(2):
        found.append(expect.operation(await t.provider.configure(machine_id)))
        await t.settle(machine_id, S.CONFIGURED)
        found.append(expect.operation(await t.provider.drain(machine_id)))
        await t.settle(machine_id, S.IDLE)
    expect.that(len(set(found)) == 5, f"five transitions have {len(set(found))} operation ids: {found}")
    same(found[-1], await t.provider.drain(machine_id))
    # Shards probe the fence with it, at any time of a life (provider.P-45).
    same(found[0], await t.provider.create(machine_id))
    if t.can.delete:
        await t.delete(machine_id)
        again = expect.operation(await t.provider.create(machine_id))
        expect.that(
            again not in found, f"machine {machine_id} was deleted, and its next life has {again} again"
        )
        await t.settle(machine_id, S.IDLE)


@check("B215")
async def an_unknown_machine_cannot_be_deleted(t: Trial) -> None:
    ghost = unused_id("ghost")
    expect.code(await t.provider.get(ghost), Code.NOT_FOUND)
    expect.code(await t.provider.delete(ghost), Code.NOT_FOUND, Code.UNIMPLEMENTED)


def same(operation_id: str, repeat: Ack) -> None:
    """A repeated call is answered with the operation that it repeats."""
    again = expect.operation(repeat)
    expect.that(again == operation_id, f"{repeat.call} has operation id {again}, expected {operation_id}")
