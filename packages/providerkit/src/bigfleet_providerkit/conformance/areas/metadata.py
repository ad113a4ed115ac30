"""Area 5: what a shard keeps with a machine comes back byte for byte."""

from grpc import StatusCode as Code

from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.checks import check
from bigfleet_providerkit.conformance.client import CLUSTER, OTHER_CLUSTER, state_of
from bigfleet_providerkit.conformance.trial import Trial


def hostile() -> dict[str, str]:
    """55 keys that something between the wire and a store is likely to mangle."""
    kinds = {
        "nul\0key": "a\0b",
        "c0\x01\x1f": "\x01\x02\x1b\x7f",
        "c1": "\x80\x9f",
        "multi-byte ключ 鍵": "значение 値 🚚",
        "empty": "",
        "trailing ": "spaces  ",
        "newline\n": "a\r\nb\n",
        'quote"': "\\\"'`${}",
        " ": "under a blank",
        "bigfleet.lucy.sh/assigned-group": "zone\0rack",
        "combining": "e\u0301 is not \u00e9",
    }
    return {f"{key}{n}" if n else key: value * (n + 1) for n in range(5) for key, value in kinds.items()}


@check("B501")
async def hostile_metadata_survives(t: Trial) -> None:
    sent = hostile()
    assert len(sent) == 55
    machine_id = await t.configured(metadata=sent)
    for _ in range(4):
        expect.metadata(await t.get(machine_id), sent)
    listed = (await t.list_machines(S.CONFIGURED)).machines
    expect.once(listed, machine_id)
    expect.metadata(next(machine for machine in listed if machine.id == machine_id), sent)


@check("B502")
async def metadata_ends_with_the_binding(t: Trial) -> None:
    machine_id = await t.configured(metadata={"first": "1", "both": "1"})
    expect.unbound(await t.drain(machine_id))
    sent = {"second": "2", "other": "2"}
    machine = await t.configure(machine_id, OTHER_CLUSTER, sent)
    expect.bound(machine, OTHER_CLUSTER)
    expect.metadata(machine, sent)


@check("B503")
async def much_metadata_is_whole_or_refused(t: Trial) -> None:
    sent = {f"key-{n}": f"{n:08}" * 1_024 for n in range(256)}
    machine_id = await t.idle()
    reply = await t.provider.configure(machine_id, metadata=sent)
    expect.code(reply, Code.OK, Code.INVALID_ARGUMENT)
    if reply.code is Code.OK:
        expect.metadata(await t.settle(machine_id, S.CONFIGURED), sent)
        # Not left behind: two of these fill the answers of clients that keep gRPC's 4 MiB.
        await t.drain(machine_id)
    else:
        expect.unbound(await t.holds(machine_id, S.IDLE))


@check("B504")
async def metadata_is_there_from_acceptance(t: Trial) -> None:
    sent = {"owner": "conformance"}
    machine_id = await t.idle()
    ack = expect.ok(await t.provider.configure(machine_id, metadata=sent))
    seen = await t.trace(machine_id, ack, S.CONFIGURED)
    passing = [machine for machine in seen if state_of(machine) is S.CONFIGURING]
    for machine in (*passing, seen[-1]):
        expect.metadata(machine, sent)
    if not passing:
        t.vacuous("CONFIGURING was never seen: the provider is faster than its readers")


@check("B505")
async def the_callers_map_is_the_callers(t: Trial) -> None:
    mine = {"owner": "conformance"}
    sent = dict(mine)
    machine_id = await t.idle()
    expect.ok(await t.provider.configure(machine_id, metadata=mine))
    mine["owner"] = "somebody else"
    mine["late"] = "key"
    expect.metadata(await t.settle(machine_id, S.CONFIGURED), sent)
    expect.metadata(await t.get(machine_id), sent)


@check("X501")
async def acks_carry_metadata(t: Trial) -> None:
    sent = {"owner": "conformance", "empty": ""}
    machine_id = await t.idle()
    acks = [expect.ok(await t.provider.configure(machine_id, metadata=sent))]
    await t.settle(machine_id, S.CONFIGURED)
    acks.append(expect.ok(await t.provider.configure(machine_id, metadata=sent)))
    acks.append(expect.ok(await t.provider.drain(machine_id)))
    for ack in acks:
        expect.that(
            ack.HasField("machine"), f"operation {ack.operation_id} was acknowledged without a machine"
        )
        # A provider that has drained already has nothing more to show.
        if ack is not acks[-1] or state_of(ack.machine) is not S.IDLE:
            expect.bound(ack.machine, CLUSTER)
            expect.metadata(ack.machine, sent)
