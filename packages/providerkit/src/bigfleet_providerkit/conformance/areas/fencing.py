"""Area 3: tokens, and who may still act (provider.md §3.2)."""

from grpc import StatusCode as Code

from bigfleet_base.model import MachineState as S
from bigfleet_base.wire.provider_calls import Token
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.areas.matrix import same
from bigfleet_providerkit.conformance.checks import SkipCapability, check
from bigfleet_providerkit.conformance.client import CLUSTER, Ack
from bigfleet_providerkit.conformance.tokens import ZERO, Shard, unused_id
from bigfleet_providerkit.conformance.trial import Trial, at_most

REMEMBERED_GHOSTS = 10_000
"""As many marks of machines that do not exist as a provider may keep (provider.P-33)."""

# Epoch, sequence, whether it is newer than everything accepted before.
_SEQUENCE = (
    *((2, 5, True), (2, 5, False), (2, 4, False), (1, 9, False), (1, 99_999, False)),
    *((2, 6, True), (2, 6, False), (2, 5, False)),
    *((3, 0, True), (3, 0, False), (2, 999_999, False), (3, 1, True)),
    *((4, 0, True), (4, 0, False)),
    *((10, 7, True), (10, 7, False), (9, 999, False)),
)


class Session:
    """A shard that counts its calls."""

    def __init__(self, t: Trial, shard: Shard, machine_id: str) -> None:
        self._t = t
        self._shard = shard
        self._machine_id = machine_id
        self.epoch, self.sequence = 1, 0

    async def create(self) -> None:
        await self._settled(await self._t.provider.create(self._machine_id, self._next()), S.IDLE)

    async def configure(self) -> None:
        reply = await self._t.provider.configure(self._machine_id, token=self._next())
        await self._settled(reply, S.CONFIGURED)

    async def drain(self) -> None:
        await self._settled(await self._t.provider.drain(self._machine_id, token=self._next()), S.IDLE)

    def _next(self) -> Token:
        self.sequence += 1
        return self._shard.token(self.epoch, self.sequence)

    async def _settled(self, reply: Ack, state: S) -> None:
        expect.ok(reply)
        await self._t.settle(self._machine_id, state)


@check("B301")
async def a_ghost_is_fenced_before_it_is_missed(t: Trial) -> None:
    ghost, shard = unused_id("ghost"), t.shard()
    expect.code(await t.provider.create(ghost, shard.token(5, 5)), Code.NOT_FOUND)
    stale = shard.token(1, 1)
    expect.fenced(await t.provider.create(ghost, stale))
    expect.fenced(await t.provider.configure(ghost, token=stale))
    expect.fenced(await t.provider.drain(ghost, token=stale))
    expect.code(await t.provider.delete(ghost, stale), Code.FAILED_PRECONDITION, Code.UNIMPLEMENTED)
    expect.code(await t.provider.create(ghost, shard.token(9, 9)), Code.NOT_FOUND)


@check("B302")
async def marks_are_per_shard_and_machine(t: Trial) -> None:
    a, b, c, d = t.shards(4)
    machine_ids = await t.take(3)
    first = (a.token(9, 9), b.token(7, 3), c.token(1, 1))
    for machine_id, token in zip(machine_ids, first, strict=True):
        expect.ok(await t.provider.create(machine_id, token))
        await t.settle(machine_id, S.IDLE)
    for machine_id, token in zip(machine_ids, first, strict=True):
        expect.fenced(await t.provider.create(machine_id, token))
    expect.ok(await t.provider.create(machine_ids[1], b.token(7, 4)))
    one, two, _ = machine_ids
    expect.ok(await t.provider.create(one, d.token(5, 30)))
    expect.ok(await t.provider.create(two, d.token(5, 7)))
    expect.fenced(await t.provider.create(one, d.token(5, 30)))
    expect.fenced(await t.provider.create(two, d.token(5, 7)))
    expect.fenced(await t.provider.create(two, d.token(4, 999)))


@check("B303")
async def only_newer_tokens_pass(t: Trial) -> None:
    machine_id, shard = await t.speculative(), t.shard()
    for epoch, sequence, newer in _SEQUENCE:
        reply = await t.provider.create(machine_id, shard.token(epoch, sequence))
        if newer:
            expect.ok(reply)
        else:
            expect.fenced(reply)


@check("B305")
async def reads_are_never_fenced(t: Trial) -> None:
    machine_id, shard = await t.speculative(), t.shard()
    expect.ok(await t.provider.create(machine_id, shard.token(7, 7)))
    await t.settle(machine_id, S.IDLE)
    for sequence in range(4):
        expect.fenced(await t.provider.create(machine_id, shard.token(7, sequence)))
        expect.in_state(await t.get(machine_id), S.IDLE)
        expect.that((await t.list_machines()).machines, "List is empty after a fenced-out call")
        expect.once((await t.list_machines(S.IDLE)).machines, machine_id)


@check("B306")
async def a_stale_configure_learns_nothing(t: Trial) -> None:
    machine_id, shard = await t.idle(), t.shard()
    operation_id = expect.operation(await t.provider.configure(machine_id, token=shard.token(5, 5)))
    await t.settle(machine_id, S.CONFIGURED)
    expect.fenced(await t.provider.configure(machine_id, token=shard.token(1, 1)))
    same(operation_id, await t.provider.configure(machine_id, token=shard.token(5, 6)))
    expect.bound(await t.holds(machine_id, S.CONFIGURED), CLUSTER)


@check("B307")
async def a_stale_drain_learns_nothing(t: Trial) -> None:
    machine_id, shard = await t.configured(), t.shard()
    operation_id = expect.operation(await t.provider.drain(machine_id, token=shard.token(5, 5)))
    await t.settle(machine_id, S.IDLE)
    expect.fenced(await t.provider.drain(machine_id, token=shard.token(1, 1)))
    same(operation_id, await t.provider.drain(machine_id, token=shard.token(5, 6)))
    await t.holds(machine_id, S.IDLE)


@check("B308")
async def the_zero_token_is_never_stale(t: Trial) -> None:
    t.need_plaintext()
    one, two = await t.take(2)
    for machine_id in (one, one, two):
        expect.ok(await t.provider.create(machine_id, ZERO))
    for machine_id in (one, two):
        await t.settle(machine_id, S.IDLE)


@check("B309")
async def a_session_drives_a_machine(t: Trial) -> None:
    machine_id, shard = await t.speculative(), t.shard()
    session = Session(t, shard, machine_id)
    await session.create()
    for _ in range(2):
        await session.configure()
        await session.drain()
    expect.fenced(await t.provider.create(machine_id, shard.token(1, 1)))


@check("B310")
async def a_new_epoch_ends_the_old_one(t: Trial) -> None:
    machine_id, shard = await t.speculative(), t.shard()
    session = Session(t, shard, machine_id)
    await session.create()
    await session.configure()
    await session.drain()
    session.epoch, session.sequence = 2, 0
    await session.configure()
    expect.fenced(await t.provider.drain(machine_id, token=shard.token(1, 1)))
    expect.fenced(await t.provider.drain(machine_id, token=shard.token(1, 3)))
    await session.drain()


@check("B311")
async def a_refused_call_uses_up_its_token(t: Trial) -> None:
    machine_id, shard = await t.speculative(), t.shard()
    expect.rejected(await t.provider.drain(machine_id, token=shard.token(5, 5)))
    expect.fenced(await t.provider.create(machine_id, shard.token(5, 4)))
    expect.ok(await t.provider.create(machine_id, shard.token(5, 6)))


@check("B312")
async def random_tokens_follow_the_order(t: Trial) -> None:
    machine_id, shard = await t.speculative(), t.shard()
    mark = (-1, -1)
    accepted = 0
    for _ in range(200):
        token = (max(0, mark[0] + t.random.randint(-1, 1)), max(0, mark[1] + t.random.randint(-3, 3)))
        reply = await t.provider.create(machine_id, shard.token(*token))
        if token > mark:
            expect.ok(reply)
            mark, accepted = token, accepted + 1
        else:
            expect.fenced(reply)
    expect.that(accepted, "no token was accepted")


@check("X301")
async def an_older_epoch_is_stale_everywhere(t: Trial) -> None:
    if t.can.info is not None and not t.can.info.epoch_floor:
        raise SkipCapability("ProviderInfo says epoch_floor=false")
    touched, untouched = await t.take(2)
    shard = t.shard()
    expect.ok(await t.provider.create(touched, shard.token(5, 1)))
    expect.fenced(await t.provider.create(untouched, shard.token(4, 999)))
    await t.holds(untouched, S.SPECULATIVE)
    # A machine that does not exist raises the floor as well: a starting shard relies on it.
    expect.code(await t.provider.drain(unused_id("ghost"), token=shard.token(7, 1)), Code.NOT_FOUND)
    expect.fenced(await t.provider.create(untouched, shard.token(6, 1)))
    expect.ok(await t.provider.create(untouched, shard.token(7, 1)))


@check("X302")
async def zeros_of_a_shard_are_a_token(t: Trial) -> None:
    shard = t.tokens.unknown_shard()
    machine_id = await t.speculative()
    expect.ok(t.first_contact(await t.provider.create(machine_id, shard.raw(0, 0))))
    expect.fenced(await t.provider.create(machine_id, shard.raw(0, 0)))
    expect.ok(await t.provider.create(machine_id, shard.raw(0, 1)))


@check("X303", alone=True)
async def ghosts_are_forgotten(t: Trial) -> None:
    shard = t.shard()
    ghosts = [f"{unused_id('ghost')}-{n}" for n in range(REMEMBERED_GHOSTS + 500)]
    token = shard.token(1, 1)

    async def haunt(ghost: str) -> None:
        expect.code(await t.provider.create(ghost, token), Code.NOT_FOUND)

    await at_most(32, [haunt(ghost) for ghost in ghosts])
    for ghost in ghosts[-20:]:
        expect.fenced(await t.provider.create(ghost, token))
    for ghost in ghosts[:20]:
        reply = await t.provider.create(ghost, token)
        expect.that(
            reply.code is Code.NOT_FOUND,
            f"{reply} although {len(ghosts)} other machines that do not exist were asked for since:"
            f" at most {REMEMBERED_GHOSTS} of their marks are to be kept",
        )
