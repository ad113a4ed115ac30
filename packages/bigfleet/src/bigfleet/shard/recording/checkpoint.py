"""A core as it was at one moment, written while it goes on, and put together again.

What the core and the engine remember is copied when the checkpoint is taken, which is cheap because whatever
is large in it never changes and is taken over by reference: rows of demand, frames, the records of machines.
Writing it is not cheap, so it happens piece by piece, and the core takes events and runs cycles meanwhile.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from bigfleet.engine.cycle import Engine
from bigfleet.engine.ledger import Part, PartKey
from bigfleet.engine.needs import NeedsState, NeedsTable
from bigfleet.engine.normalise import FoldState, GangClass
from bigfleet.engine.parking import GangKey
from bigfleet.engine.rails import Bucket
from bigfleet.engine.records import Entry
from bigfleet.engine.stock import AgeKey
from bigfleet.shard.core.core import CoreState, ShardCore
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.recording import machines
from bigfleet.shard.recording.codec import schema_digest
from bigfleet.shard.recording.pieces import Pieces
from bigfleet.shard.recording.segments import BATCHES, Frame, Kind
from bigfleet_base.model import CapacityType

PIECE: Final = 4_000
"""Values in one piece of the state, a few milliseconds' worth."""
BLOCK: Final = 500
"""Machines in one block, the same."""


@dataclass(slots=True)
class EngineState:
    """What the engine remembers besides its machines."""

    asked: frozenset[str]
    undeletable: frozenset[tuple[str, CapacityType]]
    needs: NeedsState
    parked: dict[GangKey, int]
    helped: set[GangKey]
    parts: dict[PartKey, Part]
    buckets: dict[str, Bucket]
    ages: dict[AgeKey, int]
    folds: dict[GangClass, FoldState]


@dataclass(slots=True)
class SavedState:
    settings: Settings
    engine: EngineState
    core: CoreState


def capture(core: ShardCore) -> Iterator[Frame]:
    """A checkpoint of a core that is not in the middle of a cycle; the frames are made when they are asked
    for and show the core as it was when this was called."""
    assert core.running is None, "what a running cycle has found out so far cannot be written down"
    # The core goes on as a restored one does, so that the segment replays just as it was.
    core.engine.start_over()
    core.hints.wait_for_a_cycle()
    state = _PIECES.copy(SavedState(core.settings, _engine_state(core.engine), core.state))
    return _frames(state, core.engine.inventory.capture())


def restore(frames: Iterable[Frame]) -> ShardCore:
    """The core that a checkpoint shows, ready for the event that came next."""
    pieces: list[bytes] = []
    blocks: list[bytes] = []
    for each in frames:
        (pieces if each.kind is Kind.STATE else blocks).append(each.body)
    saved = _PIECES.join(pieces)
    engine = _engine(saved.engine)
    for block in blocks:
        for entry in machines.decode_block(block):
            # An Idle machine's clock is set by the time of the write.
            engine.inventory.insert(entry.machine, entry.sidecar.idle_since or 0, entry.sidecar)
    return ShardCore(saved.settings, engine, saved.core)


def _frames(state: SavedState, entries: Iterator[Entry]) -> Iterator[Frame]:
    for piece in _PIECES.cut(state, PIECE):
        yield Frame(Kind.STATE, piece)
    for block in machines.encode_blocks(entries, BLOCK):
        yield Frame(Kind.MACHINES, block)


def _engine_state(engine: Engine) -> EngineState:
    return EngineState(
        asked=engine.inventory.asked,
        undeletable=engine.inventory.undeletable,
        needs=engine.needs.state,
        parked=engine.parking.ages,
        helped=engine.parking.helped,
        parts=engine.ledger.parts,
        # Which of them are full is not written down, and the others come in another order by that.
        buckets=dict(sorted(engine.rails.buckets.items())),
        ages=engine.ages,
        folds=engine.folds,
    )


def _engine(state: EngineState) -> Engine:
    engine = Engine(needs=NeedsTable(state.needs), ages=state.ages, folds=state.folds)
    engine.inventory.ask(state.asked)
    for provider, capacity_type in state.undeletable:
        engine.inventory.mark_not_deletable(provider, capacity_type)
    engine.parking.ages, engine.parking.helped = state.parked, state.helped
    engine.ledger.parts = state.parts
    engine.rails.buckets = state.buckets
    return engine


_PIECES: Final = Pieces(SavedState)
SCHEMA: Final = schema_digest(_PIECES.schema, machines.CODEC.schema, BATCHES.schema)
"""Stands for the shape of all that a segment holds: only programs that agree on it read each other's."""
