"""What a shard's processes have left behind, held against what its provider has written down."""

from collections import Counter
from pathlib import Path
from typing import Final

from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.effects import (
    ConfigureMachine,
    CreateMachine,
    DeleteMachine,
    DrainMachine,
    Effect,
    WriteAudit,
)
from bigfleet.shard.recording.checkpoint import SCHEMA, restore
from bigfleet.shard.recording.replay import Run
from bigfleet.shard.recording.segments import SegmentReader, digest
from bigfleet_base.model import Machine
from tests.component.shard.deployment import Deployment


def check_ledger(world: Deployment) -> None:
    """The provider was asked for nothing twice, and obeyed no process after its successor."""
    newest = 0
    operations: set[str] = set()
    last: dict[str, str] = {}
    for entry in world.ledger():
        if entry.epoch < newest:
            assert entry.code == "FAILED_PRECONDITION", entry
        elif entry.is_fence:
            assert entry.code == "NOT_FOUND" and entry.epoch > newest, entry
            newest = entry.epoch
        else:
            assert entry.code == "OK", entry
            assert entry.epoch == newest, f"a process fences its predecessors before it acts: {entry}"
            assert entry.operation not in operations, f"asked for twice: {entry}"
            operations.add(entry.operation)
            assert last.get(entry.machine, "") in _BEFORE[entry.rpc], entry
            last[entry.machine] = entry.rpc


def check_audit(world: Deployment, ended_cleanly: int | None = None) -> None:
    """Every accepted mutation is explained by one line, and its end by another if there was time for it."""
    lines = world.audit()
    emitted = {line["op_id"]: line for line in lines if line["type"] == "action.emitted"}
    results = {line["op_id"]: line for line in lines if line["type"] == "action.result"}
    assert len(emitted) == sum(line["type"] == "action.emitted" for line in lines)
    assert len(results) == sum(line["type"] == "action.result" for line in lines)
    assert results.keys() <= emitted.keys()
    done: Counter[tuple[int, str, str]] = Counter()
    unknown: Counter[tuple[int, str, str]] = Counter()
    for op_id, line in emitted.items():
        epoch = int(op_id.partition("-")[0])
        key = (epoch, line["machine_id"], _KINDS[line["kind"]])
        if op_id not in results:
            assert epoch != ended_cleanly, f"ended without a result: {line}"
            unknown[key] += 1
        elif results[op_id]["outcome"] == "success":
            done[key] += 1
    accepted = Counter((e.epoch, e.machine, e.rpc) for e in world.ledger() if e.code == "OK")
    for key in accepted | done:
        assert done[key] <= accepted[key] <= done[key] + unknown[key], key


def check_recording(world: Deployment) -> None:
    """Each kept segment leads to what it says was done, and nothing was done that none of them says."""
    sent: Counter[tuple[int, str, str]] = Counter()
    audited = []
    for path in world.segments():
        core, effects = replayed(path)
        for effect in effects:
            if rpc := _RPCS.get(type(effect)):
                sent[core.settings.epoch, effect.machine_id, rpc] += 1  # type: ignore[union-attr]  # all of _RPCS have it
            elif isinstance(effect, WriteAudit):
                audited.append(dict(effect.line))
    arrived = Counter((e.epoch, e.machine, e.rpc) for e in world.ledger() if not e.is_fence)
    assert arrived <= sent, arrived - sent
    # A kill may come between the record of a line and the line.
    rest = iter(audited)
    assert all(line in rest for line in world.audit())


def recorded_inventory(world: Deployment) -> dict[str, Machine]:
    """The machines as the last process knows them, or knew them at its end."""
    inventory = replayed(world.segments()[-1])[0].engine.inventory
    return {machine_id: inventory.entry(machine_id).machine for machine_id in inventory}


def replayed(path: Path) -> tuple[ShardCore, list[Effect]]:
    """The core at the end of a segment, and all that came of its events, which is what was recorded."""
    found: list[Effect] = []
    with path.open("rb") as file:
        segment = SegmentReader(file, path.name, SCHEMA)
        run = Run(restore(segment.checkpoint()))
        for number, batch in enumerate(segment.batches(), 1):
            derived, error = run.take(batch, number)
            assert not error, f"{path.name}: {error}"
            effects = [effect for each in derived for effect in each.effects]
            assert digest(effects) == batch.digest, f"{path.name}: batch {number} leads to something else"
            found += effects
    return run.core, found


_BEFORE: Final = {
    "Create": ("", "Delete"),
    "Configure": ("", "Create", "Drain"),
    "Drain": ("", "Configure"),
    "Delete": ("", "Create", "Drain"),
}
"""What a machine's last operation can have been; none for one that existed from the start."""

_KINDS: Final = {
    "Provision": "Create",
    "Bootstrap": "Configure",
    "Reclaim": "Drain",
    "Preempt": "Drain",
    "Delete": "Delete",
}

_RPCS: Final[dict[type, str]] = {
    CreateMachine: "Create",
    ConfigureMachine: "Configure",
    DrainMachine: "Drain",
    DeleteMachine: "Delete",
}
