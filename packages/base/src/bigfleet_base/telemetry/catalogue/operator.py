"""Series of the operator (observability.md §4, operator.md §13)."""

from bigfleet_base.telemetry.buckets import MACHINE, NODESTATE, ROLLUP, RPC, gated
from bigfleet_base.telemetry.catalogue.labels import OUTCOME
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries, Label, declared

ROLLUP_DURATION = HistogramSeries(
    "bigfleet_operator_rollup_duration_seconds",
    "Listing, building and queueing one roll-up, without sending and acknowledgement",
    buckets=ROLLUP,
    exact=(),
)
ROLLUP_PHASE_DURATION = HistogramSeries(
    "bigfleet_operator_rollup_phase_duration_seconds",
    "One step of a roll-up",
    (Label("phase", ("list", "build", "enqueue")),),
    buckets=ROLLUP,
)
ACKNOWLEDGE_DURATION = HistogramSeries(
    "bigfleet_operator_acknowledge_duration_seconds",
    "One batch of CapacityRequests from Pending to Acknowledged",
    buckets=gated(MACHINE, 12, 30),
    exact=(),
)
ACKNOWLEDGED = CounterSeries("bigfleet_operator_acknowledged_total", "CapacityRequests acknowledged")
SESSION_RECONNECTS = CounterSeries(
    "bigfleet_operator_session_reconnects_total", "Sessions opened again after a loss"
)
OUTBOX_DROPPED = CounterSeries(
    "bigfleet_operator_outbox_dropped_total", "Frames dropped because the outbox was full"
)
NODE_STATE_UPDATE_DURATION = HistogramSeries(
    "bigfleet_operator_node_state_update_duration_seconds",
    "Handling one node-state frame, API writes included, by the UpcomingNode phase it led to",
    (Label("phase", ("Provisioning", "Launched", "Registered", "Ready", "Draining", "Drained", "Failed")),),
    buckets=gated(NODESTATE, 5),
    exact=(),
)
UPCOMING_NODE_WRITES = CounterSeries(
    "bigfleet_operator_upcoming_node_writes_total",
    "Writes of UpcomingNodes",
    (
        Label("op", ("create", "spec_update", "status_update", "delete")),
        Label("outcome", ("success", "conflict", "error", "noop")),
    ),
)
UPCOMING_NODE_OP_DURATION = HistogramSeries(
    "bigfleet_operator_upcoming_node_op_duration_seconds",
    "One API call for an UpcomingNode",
    (Label("op", ("get", "create", "get_refetch", "spec_patch", "status_patch", "delete")),),
    buckets=NODESTATE,
)
DISPATCH_INFLIGHT = GaugeSeries("bigfleet_operator_dispatch_inflight", "Frames being handled")
SESSION_CONNECTED = GaugeSeries(
    "bigfleet_operator_session_connected", "1 while the stream to the shard is up"
)
ROLLUP_NEEDS = GaugeSeries("bigfleet_operator_rollup_needs", "Rows of the last roll-up")
ROLLUP_BYTES = GaugeSeries("bigfleet_operator_rollup_bytes", "Size of the last roll-up on the wire")
ROLLUP_SKIPPED = CounterSeries(
    "bigfleet_operator_rollup_skipped_total",
    "Objects left out of a roll-up because of the field named; overflow: a sum cut at its limit",
    (Label("reason", ("operator", "quantity", "requirement", "spread", "selector", "overflow")),),
)
ROLLUP_LAST_ACKED_TIMESTAMP = GaugeSeries(
    "bigfleet_operator_rollup_last_acked_timestamp_seconds",
    "Unix time of the last roll-up the shard acknowledged; still while roll-ups are built but never arrive",
)
CACHE_STALENESS = GaugeSeries(
    "bigfleet_operator_cache_staleness_seconds", "Age of the stalest watch cache that roll-ups are built from"
)
CAPACITY_REQUESTS = GaugeSeries(
    "bigfleet_operator_capacity_requests", "CapacityRequests in the watch cache", (Label("phase"),)
)
BOOTSTRAP_DURATION = HistogramSeries(
    "bigfleet_operator_bootstrap_duration_seconds", "Rendering one bootstrap blob", (OUTCOME,), buckets=RPC
)
EVICTIONS = CounterSeries(
    "bigfleet_operator_evictions_total",
    "Pods evicted for a drain, or what stood in the way",
    (Label("outcome", ("evicted", "pdb_blocked", "timeout", "gone")),),
)
DRAINS_INFLIGHT = GaugeSeries("bigfleet_operator_drains_inflight", "Nodes being drained")
DRAIN_DURATION = HistogramSeries(
    "bigfleet_operator_drain_duration_seconds",
    "Cordon to the end of the drain; one abandoned because its deadline had passed counts as 0",
    (Label("outcome", ("drained", "failed", "provider_finished", "cancelled", "abandoned")),),
    buckets=MACHINE,
)
UNREADY_DELIVERED_NODES = GaugeSeries(
    "bigfleet_operator_unready_delivered_nodes",
    "Ready UpcomingNodes whose Node has been missing or not Ready for over 2 minutes: phantom capacity",
)
ORPHAN_NODES = GaugeSeries(
    "bigfleet_operator_orphan_nodes", "Our Nodes older than 10 minutes that have no UpcomingNode"
)

SERIES = declared(globals())
