"""Area 4: calls at the same time, over one connection and several."""

import asyncio
from collections.abc import Awaitable, Callable

from grpc import StatusCode as Code

from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.areas.matrix import same
from bigfleet_providerkit.conformance.checks import SkipFixture, check
from bigfleet_providerkit.conformance.client import CLUSTER, Ack, state_of
from bigfleet_providerkit.conformance.trial import Trial, at_most

WIDTH = 16
_METADATA = {"owner": "conformance", "empty": ""}
_STAY_S = 0.3


async def burst(call: Callable[[], Awaitable[Ack]], width: int = WIDTH) -> list[Ack]:
    """The same call, many times at once."""
    return list(await asyncio.gather(*(call() for _ in range(width))))


@check("B401")
async def parallel_creates_are_one(t: Trial) -> None:
    machine_id = await t.speculative()
    t.one_operation(await burst(lambda: t.provider.create(machine_id)))
    await t.settle(machine_id, S.IDLE)
    expect.once((await t.list_machines(S.IDLE)).machines, machine_id)


@check("B402")
async def parallel_configures_are_one(t: Trial) -> None:
    machine_id = await t.idle()
    t.one_operation(await burst(lambda: t.provider.configure(machine_id, metadata=_METADATA)))
    machine = await t.settle(machine_id, S.CONFIGURED)
    expect.bound(machine, CLUSTER)
    expect.metadata(machine, _METADATA)
    expect.once((await t.list_machines(S.CONFIGURED)).machines, machine_id)


@check("B403")
async def parallel_drains_are_one(t: Trial) -> None:
    machine_id = await t.configured(metadata=_METADATA)
    t.one_operation(await burst(lambda: t.provider.drain(machine_id)))
    expect.unbound(await t.settle(machine_id, S.IDLE))
    expect.once((await t.list_machines(S.IDLE)).machines, machine_id)


@check("B404")
async def configure_and_drain_do_not_mix(t: Trial) -> None:
    machine_id = await t.configured()
    for reply in await asyncio.gather(t.provider.configure(machine_id), t.provider.drain(machine_id)):
        if not t.tokens.checks_identity:
            expect.not_fenced(reply)
    machine = await t.at_rest(machine_id)
    expect.in_state(machine, S.IDLE, S.CONFIGURED)
    machine = await t.holds(machine_id, state_of(machine), _STAY_S)
    if state_of(machine) is S.IDLE:
        expect.unbound(machine)
    else:
        expect.bound(machine, CLUSTER)


@check("B405")
async def zombies_do_not_get_through(t: Trial) -> None:
    machine_id, shard = await t.speculative(), t.shard()
    expect.ok(await t.provider.create(machine_id, shard.token(1, 1_000)))
    await t.settle(machine_id, S.IDLE)
    zombies = [t.provider.create(machine_id, shard.token(1, n)) for n in range(12)]
    living = [t.provider.create(machine_id, shard.token(2, 100 + n)) for n in range(12)]
    replies = await asyncio.gather(*(call for pair in zip(zombies, living, strict=True) for call in pair))
    for zombie in replies[::2]:
        expect.fenced(zombie)
    for live in replies[1::2]:
        # A newer call of its own may have overtaken it.
        expect.code(live, Code.OK, Code.FAILED_PRECONDITION)
    expect.that(any(live.code is Code.OK for live in replies[1::2]), "no call of the new epoch was accepted")
    expect.fenced(await t.provider.create(machine_id, shard.token(1, 9)))
    expect.ok(await t.provider.create(machine_id, shard.token(2, 9_999)))


@check("B406")
async def connections_do_not_matter(t: Trial) -> None:
    machine_id = await t.idle()
    async with t.another_connection() as other:
        calls = [client.configure(machine_id) for _ in range(WIDTH // 2) for client in (t.provider, other)]
        operation_id = t.one_operation(await asyncio.gather(*calls))
        await t.settle(machine_id, S.CONFIGURED)
        same(operation_id, await t.provider.configure(machine_id))
        same(operation_id, await other.configure(machine_id))


@check("B407")
async def machines_do_not_disturb_each_other(t: Trial) -> None:
    machine_ids = await t.take(8)
    replies = await asyncio.gather(*map(t.provider.create, machine_ids))
    operations = {expect.operation(reply) for reply in replies}
    expect.that(len(operations) == 8, f"8 machines got {len(operations)} operation ids: {sorted(operations)}")
    for machine_id in machine_ids:
        expect.unbound(await t.settle(machine_id, S.IDLE))


@check("B408")
async def acks_are_whole(t: Trial) -> None:
    machine_id = await t.idle()
    replies = await burst(lambda: t.provider.configure(machine_id))
    t.one_operation(replies)
    for reply in replies:
        if reply.answer is not None and reply.answer.HasField("machine"):
            machine = reply.answer.machine
            expect.in_state(machine, S.CONFIGURING, S.CONFIGURED)
            if state_of(machine) is S.CONFIGURED:
                expect.bound(machine, CLUSTER)
    await t.settle(machine_id, S.CONFIGURED)


@check("B409")
async def parallel_deletes_are_one(t: Trial) -> None:
    machine_id = await t.idle()
    t.one_operation(await burst(lambda: t.provider.delete(machine_id)))
    await t.settle(machine_id, S.SPECULATIVE)
    expect.once((await t.list_machines(S.SPECULATIVE)).machines, machine_id)


@check("X401")
async def acks_do_not_wait_for_the_substrate(t: Trial) -> None:
    t.need_hooks()
    hanging = await t.take_faulty("hang")
    idle = await t.idle()
    for reply, state in (
        (await t.provider.create(hanging), S.CREATING),
        (await t.provider.configure(idle, "fault-timeout"), S.CONFIGURING),
    ):
        expect.that(
            reply.seconds < 1, f"{reply.call} was answered after {reply.seconds:.1f} s, expected within 1 s"
        )
        expect.in_state(expect.ok(reply).machine, state)
        expect.operation(reply)


@check("X402", alone=True)
async def a_shard_does_not_fence_itself(t: Trial) -> None:
    free = [machine.id for machine in await t.target.slots.ordinary()][:200]
    if len(free) < 8:
        raise SkipFixture(f"needs 8 Speculative machines and {len(free)} are free")
    shard = t.shard()
    sequence = 0
    for _ in range(2):
        numbered = []
        for machine_id in free:
            sequence += 1
            numbered.append((machine_id, shard.token(1, sequence)))
        t.random.shuffle(numbered)
        # Drain of a free machine is refused and changes nothing, but its token counts.
        replies = await at_most(
            32, [t.provider.drain(machine_id, token=token) for machine_id, token in numbered]
        )
        fenced = [reply for reply in replies if reply.code is Code.FAILED_PRECONDITION]
        expect.that(
            not fenced,
            f"{len(fenced)} of {len(replies)} calls of one shard to different machines fenced each other:"
            f" {fenced[0] if fenced else ''}",
        )
        for reply in replies:
            expect.rejected(reply)
    t.note(f"{len(free)} machines")
