"""Series of the shard (observability.md §2, shard.md §18)."""

from bigfleet_base.model.machine import MachineState
from bigfleet_base.model.penalty import PINNED, ZERO, bucket_label
from bigfleet_base.telemetry.buckets import COUNT, CYCLE, FANOUT, MACHINE, RPC, gated
from bigfleet_base.telemetry.catalogue.labels import CAPACITY_TYPE, CODE, OUTCOME, PROVIDER, STATE, VERBS
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries, Label, declared

_KIND = Label("kind", ("Bootstrap", "Provision", "Reclaim", "Preempt", "Delete", "Unspecified"))
_PRIORITY_CLASS = Label("priority_class", ("batch", "service", "critical", "other"))
_PENALTY_BUCKET = Label(
    "interruption_penalty_bucket", tuple(bucket_label(bucket) for bucket in range(ZERO, PINNED + 1))
)
_CLUSTER = Label("cluster")
_FRAME_CLASS = Label("class", ("bootstrap", "reclaim", "node", "available", "ack"))
_TRANSITIONAL = Label("state", ("Creating", "Configuring", "Draining", "Deleting"))
_STATES = tuple(state.title for state in MachineState if state is not MachineState.UNSPECIFIED)

# The cycle

CYCLE_DURATION = HistogramSeries(
    "bigfleet_shard_cycle_duration_seconds",
    "One full decision cycle; grows with the number of Needs, so read it with the split by phase",
    buckets=gated(CYCLE, 25, 100),
    exact=(),
)
CYCLE_PHASE_DURATION = HistogramSeries(
    "bigfleet_shard_cycle_phase_duration_seconds",
    "One phase of a cycle; all but reconcile, which is merge time since the last cycle, add up to the cycle",
    (Label("phase", ("reconcile", "snapread", "phase1", "phase2", "phase3", "emit", "execute")),),
    buckets=CYCLE,
    exact=("phase1",),
)
CYCLE_TRIGGER = CounterSeries(
    "bigfleet_shard_cycle_trigger_total",
    "Cycles by what started them: timer (also a merged List), a changed roll-up, deferred actions, "
    "or an action queue that drained after a drop",
    (Label("cause", ("timer", "rollup", "deferred", "drain")),),
)
FULL_PASS_MISMATCHES = CounterSeries(
    "bigfleet_shard_full_pass_mismatches_total",
    "Cycles in which a pass over everything came to something else than one over what had changed; never, or "
    "there is a defect: the log has the first difference, and the recording of it is kept",
)
LAST_CYCLE_TIMESTAMP = GaugeSeries(
    "bigfleet_shard_last_cycle_timestamp_seconds", "Unix time at which the last cycle ended"
)
NEEDS_ROWS = GaugeSeries(
    "bigfleet_shard_needs_rows",
    "Rows of the needs table, without and with a Same constraint",
    (Label("kind", ("plain", "same")),),
)
PHASE1_PER_NEED = GaugeSeries(
    "bigfleet_shard_phase1_per_need_seconds", "Phase 1 of the last cycle divided by its rows"
)

# Latency per machine, and from demand to machine. These end when the terminal state is observed, not when the
# provider has acknowledged the call.

CONFIGURE_PHASE = HistogramSeries(
    "bigfleet_shard_configure_phase_seconds",
    "Start of Configuring to Configured, for machines that got there: bootstrap round trip and provider",
    buckets=gated(MACHINE, 15),
    exact=(),
)
REQUEST_BOOTSTRAP = HistogramSeries(
    "bigfleet_shard_request_bootstrap_seconds",
    "Asking the operator for a bootstrap blob until its answer",
    buckets=MACHINE,
    exact=(),
)
DRAIN_PHASE = HistogramSeries(
    "bigfleet_shard_drain_phase_seconds", "Start of Draining to Idle", buckets=MACHINE, exact=()
)
PROVISION_PHASE = HistogramSeries(
    "bigfleet_shard_provision_phase_seconds", "Start of Creating to Idle", buckets=MACHINE
)
PROVISIONING_LATENCY = HistogramSeries(
    "bigfleet_shard_provisioning_latency_seconds",
    "First roll-up that names a cluster's Profile until its first machine is Configured; a diagnostic of "
    "fan-out, not a service level",
    buckets=FANOUT,
)

# Inventory and demand

INVENTORY_MACHINES = GaugeSeries(
    "bigfleet_shard_inventory_machines",
    "Machines in the inventory",
    (STATE, CAPACITY_TYPE, _PENALTY_BUCKET),
)
DEMAND_MACHINES = GaugeSeries(
    "bigfleet_shard_demand_machines",
    "Rows of the needs table by penalty; rows, despite the name, not machines",
    (_PENALTY_BUCKET,),
)
DEMAND_UNITS = GaugeSeries(
    "bigfleet_shard_demand_units",
    "Machines that current demand implies in its bottleneck resource",
    (_PRIORITY_CLASS,),
)
INVENTORY_HOURLY_COST = GaugeSeries(
    "bigfleet_shard_inventory_hourly_cost",
    "Sum of the hourly prices that providers report, in dollars",
    (STATE, CAPACITY_TYPE),
)
INVENTORY_OLDEST_TRANSITION = GaugeSeries(
    "bigfleet_shard_inventory_oldest_transition_seconds",
    "Age of the machine that has been in the transitional state longest",
    (_TRANSITIONAL,),
)
STUCK_TRANSITIONS = GaugeSeries(
    "bigfleet_shard_stuck_transitions",
    "Machines in the transitional state beyond its time budget",
    (_TRANSITIONAL,),
)

# Shortfall

SHORTFALLS = GaugeSeries(
    "bigfleet_shard_shortfalls", "Profiles whose demand the last cycle could not cover; 0 when all is well"
)
SHORTFALLS_BY_PRIORITY = GaugeSeries(
    "bigfleet_shard_shortfalls_by_priority",
    "Shortfalls by class of priority: critical from 1,000,000, service from 1,000, batch from 100",
    (_PRIORITY_CLASS,),
)
SHORTFALLS_AGED = GaugeSeries(
    "bigfleet_shard_shortfalls_aged",
    "Shortfalls by how many cycles they have stood",
    (Label("bucket", ("1-9", "10-59", "60-299", "300+")),),
)
SHORTFALL_AGE = HistogramSeries(
    "bigfleet_shard_shortfall_age_seconds", "Age of shortfalls when they were resolved", buckets=FANOUT
)

# Actions and their execution

ACTIONS = CounterSeries(
    "bigfleet_shard_actions_total", "Actions emitted for execution, and nothing else", (_KIND,)
)
ACTION_OUTCOMES = CounterSeries(
    "bigfleet_shard_action_execute_outcomes_total",
    "Ends of executed actions; fenced means that two shards share one identity: investigate, never retry",
    (
        _KIND,
        # The fixed set of shard.md X7.
        Label(
            "outcome",
            (
                *("success", "ctx_canceled", "fenced", "no_session", "transition_raced_to_idle"),
                *("transition_error", "blob_error", "provider_error", "stale_state", "inventory_miss"),
                *("missing_profile", "other", "provider_transient", "blob_expired", "unsatisfiable"),
            ),
        ),
    ),
)
ACTIONS_DEFERRED = CounterSeries(
    "bigfleet_shard_actions_deferred_total",
    "Actions not started this cycle, to be derived again: over the limit per cycle, first roll-ups still "
    "out, the cluster's outbox full, or a provider not listed or failing",
    (Label("reason", ("limit", "settling", "outbox", "provider")),),
)
ACTIONS_DROPPED = CounterSeries(
    "bigfleet_shard_actions_dropped_total", "Actions dropped because the execute queue was full"
)
ACTIONS_DEDUPED = CounterSeries(
    "bigfleet_shard_actions_deduped_total", "Actions whose machine was already queued or in flight"
)
ACTION_QUEUE_DEPTH = GaugeSeries(
    "bigfleet_shard_action_queue_depth", "Actions waiting; when it reaches its cap, drops follow"
)
EXECUTE_INFLIGHT = GaugeSeries("bigfleet_shard_execute_inflight", "Provider mutations in flight")
AUDIT_ERRORS = CounterSeries("bigfleet_shard_audit_errors_total", "Failed writes of the audit log")
RECORDING_ERRORS = CounterSeries("bigfleet_shard_recording_errors_total", "Failed writes of the recording")

# Safety rails

RECLAIMS_CAPPED = CounterSeries(
    "bigfleet_shard_reclaims_capped_total", "Reclaims deferred by the cap per cluster"
)
ROLLUP_QUARANTINED = GaugeSeries(
    "bigfleet_shard_rollup_quarantined",
    "Consecutive roll-ups of the cluster that the empty-roll-up guard holds back",
    (_CLUSTER,),
)
ACTIONS_SUPPRESSED = CounterSeries(
    "bigfleet_shard_actions_suppressed_total", "Actions decided while actuation was paused", (_KIND,)
)
ACTUATION_PAUSED = GaugeSeries("bigfleet_shard_actuation_paused", "1 while actuation is paused")
ACTIONS_DRYRUN = CounterSeries(
    "bigfleet_shard_actions_dryrun_total", "Actions that a dry run would have executed", (_KIND,)
)
IDLE_RELEASES = CounterSeries(
    "bigfleet_shard_idle_releases_total",
    "Machines given back after their idle hold; in step with Provision it is a money loop",
)

# Ingest, sessions, providers, coordinator

MACHINES_REJECTED = CounterSeries(
    "bigfleet_shard_machines_rejected_total",
    "Provider records refused; the last good record stays",
    (Label("reason", ("price", "interruption_probability", "structural", "undecodable", "duplicate_id")),),
)
ROLLUPS_REJECTED = CounterSeries(
    "bigfleet_shard_rollups_rejected_total",
    "Roll-ups of the cluster refused; its last good demand stays",
    (_CLUSTER,),
)
ACTIVE_SESSIONS = GaugeSeries(
    "bigfleet_shard_active_sessions", "Operator sessions open; should equal the clusters bound here"
)
UNREADY_NODES = GaugeSeries(
    "bigfleet_shard_unready_nodes",
    "Configured machines whose Node the operator sees missing or not Ready",
)
SESSION_LIFECYCLE = CounterSeries(
    "bigfleet_shard_session_lifecycle_total",
    "Operator sessions installed, removed, or replaced by a newer one of the same cluster",
    (Label("event", ("installed", "removed", "replaced")),),
)
SESSION_IDENTITY_REJECTED = CounterSeries(
    "bigfleet_shard_session_identity_rejected_total",
    "Sessions refused because the certificate names another cluster; every one is a security event",
)
OUTBOX_FRAMES = GaugeSeries(
    "bigfleet_shard_outbox_frames", "Frames waiting in the outboxes of all sessions", (_FRAME_CLASS,)
)
OUTBOX_DROPPED = CounterSeries(
    "bigfleet_shard_outbox_dropped_total", "Frames dropped from full outboxes", (_FRAME_CLASS,)
)
OUTBOX_REISSUED = CounterSeries(
    "bigfleet_shard_outbox_reissued_total",
    "Frames sent again with their first id after a reconnect",
    (_FRAME_CLASS,),
)
OUTBOX_SUPERSEDED = CounterSeries(
    "bigfleet_shard_outbox_superseded_total",
    "Frames replaced by a newer one before they were sent",
    (_FRAME_CLASS,),
)

# Phase 1 has no optimistic workers; dashboards of the reference read the names all the same (ruling R18).
PHASE1_OCC_PROPOSALS = CounterSeries(
    "bigfleet_shard_phase1_occ_proposals_total",
    "Always 0: Phase 1 has no concurrent workers; kept for dashboards made for the reference",
    (Label("outcome", ("committed", "conflict")),),
)
PHASE1_OCC_DISPLACEMENTS = CounterSeries(
    "bigfleet_shard_phase1_occ_displacements_total",
    "Always 0: Phase 1 has no concurrent workers; kept for dashboards made for the reference",
)
PHASE1_OCC_RETRIES_EXHAUSTED = CounterSeries(
    "bigfleet_shard_phase1_occ_retries_exhausted_total",
    "Always 0: Phase 1 has no concurrent workers; kept for dashboards made for the reference",
)

PROVIDER_RPC = HistogramSeries(
    "bigfleet_shard_provider_rpc_seconds",
    "Calls to the provider; the share of codes other than OK is its error rate",
    (PROVIDER, Label("rpc", VERBS), CODE),
    buckets=RPC,
)
PROVIDER_REJECTED = CounterSeries(
    "bigfleet_shard_provider_rejected_total", "Records of the provider that were refused", (PROVIDER,)
)
PROVIDER_FENCED = CounterSeries(
    "bigfleet_shard_provider_fenced_total", "Mutations that the provider fenced", (PROVIDER,)
)
PROVIDER_BREAKER_STATE = GaugeSeries(
    "bigfleet_shard_provider_breaker_state",
    "1 while the circuit breaker holds back mutations to the provider, else 0",
    (PROVIDER,),
)
RECONCILE_AGE = GaugeSeries(
    "bigfleet_shard_reconcile_age_seconds", "Time since the provider's last complete List", (PROVIDER,)
)
RECONCILE_OBSERVED_JUMPS = CounterSeries(
    "bigfleet_shard_reconcile_observed_jumps_total",
    "Transitions that only a List has shown",
    (Label("from", _STATES), Label("to", _STATES)),
)
RECONCILE_REMOVALS_HELD = GaugeSeries(
    "bigfleet_shard_reconcile_removals_held", "Machines missing from Lists that the mass-removal guard keeps"
)
PROVIDER_LIST_RECORDS = HistogramSeries(
    "bigfleet_shard_provider_list_records",
    "Records in one List",
    (Label("mode", ("full", "delta")),),
    buckets=COUNT,
)
COORDINATOR_REPORTS = CounterSeries(
    "bigfleet_shard_coordinator_reports_total", "Reports to the coordinator by how they ended", (OUTCOME,)
)
FENCED = GaugeSeries("bigfleet_shard_fenced", "1 after this shard has paused itself because it was fenced")
EPOCH = GaugeSeries("bigfleet_shard_epoch", "Epoch of this process in the fencing token")
COORDINATOR_TERM_SEEN = GaugeSeries(
    "bigfleet_shard_coordinator_term_seen", "Highest coordinator term that this shard has accepted"
)

SERIES = declared(globals())
