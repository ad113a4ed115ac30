# ruff: noqa: E501  # one record, one line
"""What a provider must do: one record per id, and nothing about how it is checked.

Ids of the reference begin with B and are never reused; ours begin with X. Area 6 does not exist, and B102 and
B304 were never issued. ``areas`` holds the checks, bound by id; the two must agree (``checks.load``).
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final


class Lane(StrEnum):
    """Where an id runs. Each lane of a managed provider is a process of its own."""

    MAIN = "main"
    FAULT = "fault"
    DURABLE = "durable"
    SCALE = "scale"


class Gate(StrEnum):
    """What a provider may lack, or a run may not offer."""

    NONE = "none"
    DELETE = "Delete"
    CURSOR = "SinceRevision"
    FAULT = "Fault"
    DURABLE = "Durable"
    SCALE = "Scale"


PROFILES: Final = ("core", "cloud", "bare-metal", "spot", "fault", "durable", "scale")


@dataclass(frozen=True, slots=True)
class Area:
    number: int
    name: str
    phase: int
    black_box: bool = True


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One record of the catalogue."""

    id: str
    title: str
    """What must hold, in one sentence; a failure quotes it."""
    area: Area
    profiles: tuple[str, ...]
    """Required when any of them is selected."""
    gate: Gate
    lane: Lane
    level: str
    """M; C:D and C:R where Delete or the cursor may be absent; F, D, S in the lanes of faults, restarts, scale."""
    slots: int
    """Speculative machines it holds at once."""
    rules: tuple[str, ...]
    """The rules of provider.md that it shows."""
    option: str
    """An option without which nobody asks for it, so that leaving it out costs no certificate."""
    since: str
    deprecated: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether the reference does not have it."""
        return self.id.startswith("X")


AREAS: Final = {
    area.number: area
    for area in (
        Area(1, "Lifecycle & State Machine", 2),
        Area(2, "Transition Matrix / Errors", 2),
        Area(3, "Fencing", 2),
        Area(4, "Concurrency & Idempotency", 2),
        Area(5, "Metadata", 2),
        Area(7, "Timeouts & Failure", 4, black_box=False),
        Area(8, "Field Shape & Cost", 2),
        Area(9, "List, Revision & Pagination", 2),
        Area(10, "Durability / Restart Recovery", 4, black_box=False),
        Area(11, "Scale & Soak", 5),
        Area(12, "Property / Fuzz", 2),
    )
}

_LANE_OF: Final = {7: Lane.FAULT, 10: Lane.DURABLE, 11: Lane.SCALE}
_GATE_OF: Final = {
    Lane.MAIN: Gate.NONE,
    Lane.FAULT: Gate.FAULT,
    Lane.DURABLE: Gate.DURABLE,
    Lane.SCALE: Gate.SCALE,
}
_LEVEL_OF: Final = {
    Gate.NONE: "M",
    Gate.DELETE: "C:D",
    Gate.CURSOR: "C:R",
    Gate.FAULT: "F",
    Gate.DURABLE: "D",
    Gate.SCALE: "S",
}


def _(
    behaviour_id: str,
    title: str,
    rules: str = "",
    *,
    slots: int = 1,
    gate: Gate | None = None,
    lane: Lane | None = None,
    also: str = "",
    cursor: bool = False,
    option: str = "",
    area: int = 0,
) -> Behaviour:
    number = area or int(behaviour_id[1:-2])
    lane = lane or _LANE_OF.get(number, Lane.MAIN)
    gate = gate or _GATE_OF[lane]
    return Behaviour(
        id=behaviour_id,
        title=title,
        area=AREAS[number],
        profiles=("core" if lane is Lane.MAIN else str(lane), *also.split()),
        gate=gate,
        lane=lane,
        level=_LEVEL_OF[gate] + (", C:R" if cursor else ""),
        slots=slots,
        rules=tuple(f"provider.{r}" if r[0] == "P" else f"provider.md §{r}" for r in rules.split()),
        option=option,
        since="1.0",
    )


# fmt: off
BEHAVIOURS: Final = {
    behaviour.id: behaviour
    for behaviour in (
        # Lifecycle
        _("B101", "Four Configure/Drain rounds: at every Idle cluster, metadata and last_error are empty.", "P-06 P-101"),
        _("B103", "During Configure only CONFIGURING is seen, ending CONFIGURED.", "P-02"),
        _("B104", "During Drain only DRAINING is seen, ending IDLE.", "P-02"),
        _("B105", "The state trace of Create, Configure and Drain holds legal neighbours only.", "P-02"),
        _("B106", "cluster is empty at Idle, set while CONFIGURING, as requested at Configured and DRAINING, and empty after Drain.", "P-04 P-100"),
        _("B107", "Host is unset at Speculative and set at Idle, Configured and Idle again.", "P-03"),
        _("B108", "A machine left alone at Configured or Idle never leaves that state.", "P-05"),
        _("B109", "During Delete only DELETING is seen, ending SPECULATIVE.", "P-02", gate=Gate.DELETE, also="cloud"),
        _("X101", "Configure with an empty cluster_id is INVALID_ARGUMENT and stays Idle.", "5"),
        _("X102", "A conflicting rebind is ALREADY_EXISTS and the binding is intact.", "P-46"),
        _("X103", "Delete with an empty id is INVALID_ARGUMENT or UNIMPLEMENTED.", "5", slots=0),
        _("X104", "Drain while CONFIGURING and Configure while DRAINING are ABORTED without effect.", "5 P-50"),
        _("X105", "Token numbers without a shard_id are INVALID_ARGUMENT.", "P-30"),
        _("X110", "Drain waits for workloads to exit.", "P-110", option="workloads"),
        _("X111", "Drain escalates when the grace has passed.", "P-111", option="workloads"),
        _("X112", "Drain with grace 0 escalates at once.", "P-112", option="workloads"),
        _("X113", "A drained host holds nothing of its previous cluster.", "P-113", option="workloads"),
        # Transition matrix
        _("B201", "Create on Configured is rejected; state and cluster hold.", "P-11"),
        _("B202", "Configure on Speculative is rejected; it stays unbound.", "P-11"),
        _("B203", "Drain on Idle is rejected, or a no-op when a Drain is on record; never FAILED_PRECONDITION.", "P-11 P-45"),
        _(
            "B204",
            "Delete on Speculative is rejected, unsupported or a no-op; on Configured never OK; never FAILED_PRECONDITION.",
            "P-11 P-45",
            slots=2,
            also="cloud",
        ),
        _("B205", "Re-Configure at Configured and re-Create at Idle are OK and show no transitional state.", "P-40", slots=2),
        _("B206", "A replay returns the original operation id; Create's and Configure's ids differ.", "P-40 P-41"),
        _("B207", "Create, Configure and Drain of an unknown id are NOT_FOUND and create nothing.", "5", slots=0),
        _("B208", "Get, Create, Configure and Drain with an empty id are INVALID_ARGUMENT.", "5", slots=0),
        _("B209", "512 metadata keys of 1 KiB are echoed verbatim, or INVALID_ARGUMENT and still Idle.", "P-103"),
        _("B210", "Drain with negative grace is INVALID_ARGUMENT and the machine stays Configured.", "5"),
        _("B211", "Create with a negative token part is INVALID_ARGUMENT and the machine stays Speculative.", "P-30", slots=3),
        _("B212", "A token of greatest int64 parts is accepted, its replay and (max-1, max) are FAILED_PRECONDITION.", "P-31"),
        _("B213", "A 3 MiB blob is accepted, or refused with the machine Idle and unbound.", "5"),
        _("B214", "Create, Configure, Drain, Configure, Drain give five distinct ids; replaying the last gives the fifth.", "P-41 P-42"),
        _("B215", "Get of an unknown id is NOT_FOUND, Delete of it NOT_FOUND or UNIMPLEMENTED.", "5", slots=0, also="cloud"),
        # Fencing
        _("B301", "On a ghost id a stale token is FAILED_PRECONDITION by all four RPCs and a newer one NOT_FOUND.", "P-10", slots=0),
        _("B302", "Marks of shards are independent, and one shard's marks are per machine.", "P-21 P-25", slots=3),
        _("B303", "Seventeen tokens on one machine are accepted exactly when strictly newer, epoch first.", "P-20 P-22"),
        _("B305", "Get and List stay OK between fenced-out calls and the state is unchanged.", "P-28"),
        _(
            "B306",
            "A settled Configure replayed with an old token is fenced, with a new one it returns the original operation id.",
            "P-10",
        ),
        _("B307", "A settled Drain replayed with an old token is fenced, with a new one it returns the original operation id.", "P-10"),
        _("B308", "Zero-token Creates are never fenced.", "P-26", slots=2),
        _("B309", "A session of advancing tokens drives Create, Configure and Drain; a replay of (1,1) is fenced.", "P-20"),
        _("B310", "After an epoch bump tokens of the old epoch are fenced and the new epoch passes.", "P-22"),
        _("B311", "A call rejected for its position still advances the mark.", "P-23"),
        _("B312", "200 random tokens near the mark are accepted exactly as the strictly-greater oracle says.", "P-20"),
        _("X301", "A lower epoch is fenced on machines the shard has not touched yet.", "P-32 P-34", slots=2),
        _("X302", "(0,0) with a shard id is an ordinary first token, and fenced when repeated.", "P-25"),
        _("X303", "Marks of ghost ids are bounded.", "P-33", slots=0),
        # Concurrency
        _("B401", "16 parallel Creates on one slot collapse to one operation id and one Idle machine.", "P-40"),
        _("B402", "16 parallel identical Configures collapse to one id with cluster and metadata as sent.", "P-40"),
        _("B403", "16 parallel Drains collapse to one id, ending Idle and unbound.", "P-40"),
        _("B404", "Configure and Drain in parallel settle in Idle unbound or Configured bound, and stay.", "P-50"),
        _("B405", "Parallel zombies of an old epoch are all fenced while a newer epoch gets through.", "P-20"),
        _("B406", "Identical Configures over two connections collapse to one id, replays included.", "P-43"),
        _("B407", "8 parallel Creates on 8 slots give 8 ids and 8 unbound Idle machines.", "P-44 P-51", slots=8),
        _("B408", "Every ack of parallel Configures is CONFIGURING, or CONFIGURED with its cluster.", "P-13"),
        _("B409", "16 parallel Deletes collapse to one id and one Speculative slot.", "P-40", gate=Gate.DELETE, also="cloud"),
        _("X401", "The ack comes within 1 s while the actuator blocks.", "P-12", lane=Lane.FAULT),
        _("X402", "200 machines at concurrency 32 of one shard in random send order are never fenced.", "P-21", slots=0),
        # Metadata
        _("B501", "55 hostile metadata keys are echoed byte for byte on every read.", "P-100"),
        _("B502", "Drain clears map and cluster; the next Configure shows only its own keys.", "P-101"),
        _("B503", "2 MiB of metadata is echoed verbatim or refused with the machine Idle; never truncated.", "P-103"),
        _("B504", "Every CONFIGURING snapshot already carries the map.", "P-04 P-100"),
        _("B505", "Changing the caller's map after the ack changes nothing stored.", "P-102"),
        _("X501", "TransitionAck snapshots carry the metadata.", "P-100 P-13"),
        # Timeouts and failure
        _("X601", "CONFIGURED is reported only after the suite's own node turned Ready.", "9", area=7, lane=Lane.MAIN, option="readiness_oracle"),
        _("B701", "A Configure whose actuator raises ends FAILED with last_error, and is not CONFIGURING afterwards.", "P-80"),
        _("B702", "A Create whose actuator raises ends FAILED with last_error.", "P-80", slots=0),
        _("B703", "A hanging Configure is FAILED within the timeout + 3 s, naming the timeout.", "P-81"),
        _("B704", "A success that arrives after the timeout leaves the machine FAILED.", "P-52"),
        _("B705", "Configure on a FAILED machine is rejected and last_error stays verbatim.", "P-84"),
        _("B706", "A failing Drain with grace 0 ends FAILED or IDLE and never hangs in DRAINING.", "P-82"),
        _("B707", "A FAILED machine reads the same by every Get and List(FAILED).", "P-06 P-83"),
        _("B708", "Without readiness a machine is never CONFIGURED and ends FAILED at the timeout.", "9"),
        _("X701", "The fault ids run on the provider under test through its hooks."),
        _("X702", "A lost host is FAILED within the detection budget.", "6.4"),
        _("X703", "Repair returns the slot and leaks nothing in the substrate.", "6.3", slots=2),
        _("X704", "A drain longer than the default timeout but within its grace succeeds.", "P-85", slots=2),
        _("X705", "No secret appears in last_error or logs.", "P-86", slots=2),
        # Field shape
        _("B801", "Every listed machine has id, instance type and a real state, and none of the nine bare keys among its labels.", "P-90", slots=0),
        _("B802", "Prices are finite and not negative, probabilities in [0,1], and above 0 for spot.", "P-91 P-92", slots=0, also="spot"),
        _("B803", "Host and cluster follow the state table through all stable states.", "P-03"),
        _("B804", "Where allocatable and resources share a key, both parse and resources is above 0.", "7", slots=0),
        _("B805", "HostRef.provider is non-empty and identical by Get and List at Idle, Configured and Idle.", "P-97"),
        _("B806", "A stable machine with a host has a capacity type and a zone.", "P-90"),
        _("B807", "After Delete host, cluster and metadata are cleared.", "P-98", gate=Gate.DELETE, also="cloud"),
        _("X801", "Price 0 only for owned capacity.", "P-93", slots=0),
        _("X802", "Instance type, zone and capacity type never change over a machine's life.", "7"),
        _("X803", "Interruption probabilities are hourly, converted from monthly rates.", "P-94", slots=0),
        _("X804", "An interruption notice is visible on List.", "P-96", lane=Lane.FAULT),
        # List
        _("B901", "List by state returns only that state, without duplicates, and a union equals its parts.", "P-60 P-61", slots=2),
        _("B902", "max_results 1, 2, 3 bound the answer, at least one comes back, and 0 is everything.", "P-62", slots=0),
        _("B903", "The revision changes after a mutation, and the delta contains the machine.", "P-63 P-64", gate=Gate.CURSOR),
        _("B904", "The delta since the current revision is empty.", "P-65", gate=Gate.CURSOR, slots=0),
        _("B905", "A delta since each of five cursors contains all machines mutated after it.", "P-64", gate=Gate.CURSOR, slots=4),
        _("B906", "Unset, empty, junk and oversized cursors all give the full inventory.", "P-66", slots=0),
        _("B907", "Paging a delta by 2 loses none of 5 changed machines and repeats none.", "P-68", gate=Gate.CURSOR, slots=5),
        _("B908", "Without mutation every delta over 750 ms is empty.", "P-65", gate=Gate.CURSOR, slots=0),
        _("B909", "A cursor with bytes added gives the full list; with a flipped byte no error.", "P-66", gate=Gate.CURSOR, slots=0),
        _("X901", "Capped paging loses nothing, and successive picks differ.", "P-68", slots=0),
        _("X902", "Removed ids come as tombstones, and `full` tells complete lists apart.", "P-70", slots=0),
        _("X903", "A cursor of another store incarnation gives a full list.", "P-69", slots=0, lane=Lane.DURABLE),
        _("X904", "The client refuses states together with since_revision.", "P-71"),
        _("X905", "A delta carries price and label changes without a state change.", "P-64", lane=Lane.FAULT),
        # Durability
        _("B1001", "A persisted token replayed after kill and reboot is FAILED_PRECONDITION.", "P-29"),
        _("B1002", "The Configure repeated after the reboot returns the same operation id.", "P-44"),
        _("B1003", "Cluster and metadata are verbatim after the reboot.", "P-104"),
        _("B1004", "Every id has the same state after the reboot; none is lost or added.", "P-120", slots=2),
        _("B1005", "After the reboot the revision is non-empty and a new Create's id was never used.", "P-44", slots=2, cursor=True),
        _("B1006", "A machine killed in CONFIGURING is FAILED with last_error at the first Get after boot.", "P-121"),
        _("B1007", "A new shard's first token (1,1) is accepted after the reboot.", "P-25"),
        _("X1001", "100 kills during writes leave a store that loads without torn state.", "11", slots=4),
        _("X1002", "Marks of several (shard, machine) pairs survive a restart.", "P-29 P-34", slots=4),
        _("X1003", "A lost store never yields Idle for a bound host.", "P-124"),
        _("X1004", "Interrupted Create, Drain and Delete resume with one host and settle within their timeout.", "P-121 P-122", slots=3),
        _("X1005", "An unwritable store answers UNAVAILABLE without effect.", "P-34 P-123"),
        # Scale
        _("B1101", "A full List at scale passes shape and cost checks, zone and capacity type included.", "P-90", slots=0),
        _("B1102", "The delta after 20 Configures at scale has exactly those 20.", "P-64 P-67", slots=20, cursor=True),
        _("B1103", "Pages of 500 cover a full list at scale without duplicates.", "P-68", slots=0, cursor=True),
        _("B1104", "Configure/Drain churn over the soak returns clean Idle machines each time.", "P-06", slots=8),
        _("B1105", "Create and Delete over the soak leave the List's size unchanged.", "P-01"),
        _("B1106", "p99 of Get and Create is at most 250 ms, of a full List at most 2 s.", "P-12 P-72", slots=60),
        _("B1107", "One full List at scale takes at most 3 s.", "P-72", slots=0),
        _("B1108", "16 parallel Creates on distinct slots all succeed with distinct ids and are Idle within 30 s.", "P-44 P-51", slots=16),
        _("B1109", "8 Idle machines watched at scale never become transitional or FAILED.", "P-05", slots=8),
        _("X1101", "List p99 and memory hold at 100,000 machines.", "P-72", slots=0, option="hundred_thousand"),
        # Property and fuzz
        _("B1201", "240 seeded tokens biased at the mark match the lexicographic oracle; rejects leave the mark.", "P-20 P-24"),
        _("B1202", "20 random UTF-8 maps come back identical and are clean after each Drain.", "P-100"),
        _("B1203", "Random RPC walks match the four-edge model.", "P-45", slots=5),
        _("B1204", "200 fenced Creates of 3 shards on 4 machines match the oracle, epoch floor included.", "P-27 P-32", slots=4),
        _("B1205", "Random bad shapes give INVALID_ARGUMENT or NOT_FOUND as fit, and never FAILED_PRECONDITION.", "P-27", slots=4),
        _("X1201", "Random RPCs, crashes and faults of several shards match a reference model.", "P-20 P-40 P-120", slots=4, lane=Lane.DURABLE),
    )
}
# fmt: on


def catalogue_hash(behaviours: Iterable[Behaviour] = BEHAVIOURS.values()) -> str:
    """Tells two certificates by different catalogues apart."""
    text = json.dumps([asdict(behaviour) for behaviour in behaviours], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
