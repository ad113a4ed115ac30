"""Area 12: random calls against small oracles; the seed and the id decide every draw."""

from collections.abc import Awaitable, Callable

from grpc import StatusCode as Code

from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.checks import check
from bigfleet_providerkit.conformance.client import CLUSTER, Ack
from bigfleet_providerkit.conformance.tokens import unused_id
from bigfleet_providerkit.conformance.trial import Trial

Numbers = tuple[int, int]

# Call → where it starts, where it ends.
EDGES = {
    "create": (S.SPECULATIVE, S.IDLE),
    "configure": (S.IDLE, S.CONFIGURED),
    "drain": (S.CONFIGURED, S.IDLE),
    "delete": (S.IDLE, S.SPECULATIVE),
}
DURING = {"create": S.CREATING, "configure": S.CONFIGURING, "drain": S.DRAINING, "delete": S.DELETING}


@check("B1201")
async def biased_tokens_follow_the_order(t: Trial) -> None:
    machine_id, shard = await t.speculative(), t.shard()
    mark: Numbers = (-1, -1)
    for _ in range(240):
        token = near(t, mark)
        reply = await t.provider.create(machine_id, shard.token(*token))
        if token > mark:
            expect.ok(reply)
            mark = token
        else:
            expect.fenced(reply)


@check("B1202")
async def random_metadata_survives(t: Trial) -> None:
    machine_id = await t.idle()
    for _ in range(20):
        sent = {"k" + random_text(t, 24): random_text(t, 64) for _ in range(t.random.randint(0, 11))}
        expect.metadata(await t.configure(machine_id, metadata=sent), sent)
        listed = (await t.list_machines(S.CONFIGURED)).machines
        expect.once(listed, machine_id)
        expect.metadata(next(machine for machine in listed if machine.id == machine_id), sent)
        expect.unbound(await t.drain(machine_id))


@check("B1203")
async def random_walks_follow_the_edges(t: Trial) -> None:
    for machine_id in await t.take(5):
        state = S.SPECULATIVE
        for _ in range(9):
            name = t.random.choice(list(EDGES))
            source, goal = EDGES[name]
            reply = await _CALLS[name](t, machine_id)
            if name == "delete" and not t.can.delete:
                expect.code(reply, Code.UNIMPLEMENTED)
            elif state is source:
                expect.ok(reply)
                state = goal
                await t.settle(machine_id, state)
                continue
            elif state is goal:
                expect.not_fenced(reply)
            else:
                expect.rejected(reply)
            await t.holds(machine_id, state, 0.05)


@check("B1204")
async def shards_share_machines(t: Trial) -> None:
    *shards, fresh = t.shards(4)
    machine_ids = await t.take(4)
    marks: dict[tuple[int, str], Numbers] = {}
    floors = dict.fromkeys(range(len(shards)), 0)
    for _ in range(200):
        who, machine_id = t.random.randrange(len(shards)), t.random.choice(machine_ids)
        mark = marks.get((who, machine_id), (-1, -1))
        token = near(t, mark)
        reply = await t.provider.create(machine_id, shards[who].token(*token))
        if token <= mark:
            expect.fenced(reply)
        elif token[0] < floors[who]:
            if reply.code is Code.FAILED_PRECONDITION:
                continue
            t.lenient(f"{reply} although the shard was at epoch {floors[who]} on another machine")
            marks[who, machine_id] = token
        else:
            expect.ok(reply)
            marks[who, machine_id] = token
            floors[who] = token[0]
    expect.ok(await t.provider.create(machine_ids[0], fresh.token(1, 1)))


@check("B1205")
async def bad_shapes_are_refused_as_what_they_are(t: Trial) -> None:
    machine_ids = await t.take(4)
    for _ in range(60):
        name = t.random.choice(list(EDGES))
        kind = t.random.choice(("empty", "ghost", "odd"))
        machine_id = {"empty": "", "ghost": unused_id("ghost")}.get(kind) or t.random.choice(machine_ids)
        reply = await odd_call(t, name, "" if kind == "empty" else machine_id)
        absent = (Code.UNIMPLEMENTED,) if name == "delete" and not t.can.delete else ()
        if kind == "empty":
            expect.code(reply, Code.INVALID_ARGUMENT, *absent)
        elif kind == "ghost":
            # A grace or a size that is refused by itself is so before anyone looks for the machine.
            shape = (Code.INVALID_ARGUMENT,) if name in ("configure", "drain") else ()
            expect.code(reply, Code.NOT_FOUND, *shape, *absent)
        else:
            expect.not_fenced(reply)


def near(t: Trial, mark: Numbers) -> Numbers:
    """Numbers around a mark, where comparisons go wrong: equal, beside, a new epoch that starts low, far."""
    epoch, sequence = mark
    drawn = t.random.choice(
        (
            (epoch, sequence),
            (epoch, sequence + t.random.randint(1, 3)),
            (epoch, sequence - t.random.randint(1, 3)),
            (epoch - 1, sequence + t.random.randint(0, 1_000)),
            (epoch + 1, t.random.randint(0, 2)),
            (epoch, sequence + t.random.randint(1_000, 100_000)),
        )
    )
    return max(0, drawn[0]), max(0, drawn[1])


def random_text(t: Trial, longest: int) -> str:
    """Characters of every width; surrogates are no text."""
    ranges = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))
    return "".join(
        chr(t.random.randint(*t.random.choice(ranges))) for _ in range(t.random.randint(0, longest))
    )


async def odd_call(t: Trial, name: str, machine_id: str) -> Ack:
    """A call with something odd about it, of a shard that nobody knows."""
    token = t.shard().token(t.random.choice((0, 1, 1_000)), t.random.choice((0, 1, 2**40)))
    match name:
        case "create":
            return await t.provider.create(machine_id, token)
        case "delete":
            return await t.provider.delete(machine_id, token)
        case "drain":
            return await t.provider.drain(machine_id, t.random.choice((0, 5, -(2**40))), token)
    if t.random.random() < 0.5:
        metadata = {f"key-{n}": "v" * t.random.randint(0, 64) for n in range(t.random.randint(400, 800))}
        return await t.provider.configure(machine_id, metadata=metadata, token=token)
    blob = bytes(t.random.randint(64 << 10, 128 << 10))
    return await t.provider.configure(machine_id, blob=blob, token=token)


_CALLS: dict[str, Callable[[Trial, str], Awaitable[Ack]]] = {
    "create": lambda t, machine_id: t.provider.create(machine_id),
    "configure": lambda t, machine_id: t.provider.configure(machine_id, CLUSTER),
    "drain": lambda t, machine_id: t.provider.drain(machine_id),
    "delete": lambda t, machine_id: t.provider.delete(machine_id),
}
