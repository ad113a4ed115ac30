"""Series of the coordinator (observability.md §3, coordinator.md §17)."""

from bigfleet_base.telemetry.buckets import COUNT, RPC
from bigfleet_base.telemetry.catalogue.labels import OUTCOME, SHARD
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries, Label, declared

_STATE = Label("state")

RAFT_TERM = GaugeSeries(
    "bigfleet_coordinator_raft_term",
    "Leadership term used for fencing, shown by every replica; the name is older than the store behind it",
)
APPLY = CounterSeries(
    "bigfleet_coordinator_apply_total",
    "Commands that change state, on the leader: error when the store failed, fsm_error when a rule refused",
    (Label("outcome", ("success", "error", "fsm_error")),),
)
PENDING_INSTRUCTIONS = GaugeSeries(
    "bigfleet_coordinator_pending_instructions",
    "Instructions the shard has not acknowledged; drains to 0",
    (SHARD,),
)
IS_LEADER = GaugeSeries("bigfleet_coordinator_is_leader", "1 on the leader, 0 elsewhere")
LEASE_REMAINING = GaugeSeries(
    "bigfleet_coordinator_lease_remaining_seconds", "Time left on the leader's lease; 0 on followers"
)
LEADER_CHANGES = CounterSeries(
    "bigfleet_coordinator_leader_changes_total", "Changes of leader that this replica has seen"
)
ELECTION = HistogramSeries(
    "bigfleet_coordinator_election_seconds",
    "Loss of the lease noticed until the new leader serves",
    buckets=RPC,
)
STORE_RAFT_TERM = GaugeSeries("bigfleet_coordinator_store_raft_term", "Raft term of the store itself")
STORE_APPLIED_LAG = GaugeSeries(
    "bigfleet_coordinator_store_applied_lag", "Log entries the store has committed but not applied"
)
STORE_DB_BYTES = GaugeSeries("bigfleet_coordinator_store_db_bytes", "Size of the store's database")
STORE_DB_IN_USE_BYTES = GaugeSeries(
    "bigfleet_coordinator_store_db_in_use_bytes", "Part of the store's database that holds data"
)
STORE_HAS_QUORUM = GaugeSeries("bigfleet_coordinator_store_has_quorum", "1 while the store can commit")
APPLY_DURATION = HistogramSeries(
    "bigfleet_coordinator_apply_seconds", "One commit of commands to the store", buckets=RPC
)
APPLY_BATCH_SIZE = HistogramSeries(
    "bigfleet_coordinator_apply_batch_size", "Commands in one commit", buckets=COUNT
)
REPORTS = CounterSeries(
    "bigfleet_coordinator_reports_total",
    "Reports of shards by what became of them",
    (Label("outcome", ("ok", "stale_cycle", "stale_epoch", "denied", "not_leader")),),
)
SHARD_LAST_REPORT_AGE = GaugeSeries(
    "bigfleet_coordinator_shard_last_report_age_seconds", "Time since the shard's last report", (SHARD,)
)
SHARDS = GaugeSeries("bigfleet_coordinator_shards", "Shards known", (_STATE,))
DOMAINS = GaugeSeries("bigfleet_coordinator_domains", "Topology domains known", (_STATE,))
CLUSTERS = GaugeSeries("bigfleet_coordinator_clusters", "Clusters known", (_STATE,))
TRANSFERS = GaugeSeries("bigfleet_coordinator_transfers", "Machine transfers recorded", (_STATE,))
REBALANCE_PASS = HistogramSeries(
    "bigfleet_coordinator_rebalance_pass_seconds", "One pass of the rebalancer", buckets=RPC
)
REBALANCE_DECISIONS = CounterSeries(
    "bigfleet_coordinator_rebalance_decisions_total",
    "Shortfalls looked at per tier; the result is the gate that stopped it or what was done",
    (Label("tier", ("1", "2", "3")), Label("result")),
)
INSTRUCTION_OUTCOMES = CounterSeries(
    "bigfleet_coordinator_instruction_outcomes_total",
    "Answers of shards to instructions",
    (Label("kind"), OUTCOME),
)
CLUSTER_BINDING_CONFLICTS = GaugeSeries(
    "bigfleet_coordinator_cluster_binding_conflicts", "Clusters that two shards claim"
)
ESCALATED_SHORTFALLS = GaugeSeries(
    "bigfleet_coordinator_escalated_shortfalls", "Reported shortfalls past the age of escalation"
)
IDENTITY_REJECTED = CounterSeries(
    "bigfleet_coordinator_identity_rejected_total",
    "Calls refused because the certificate does not allow them; every one is a security event",
    (Label("rpc"),),
)
SNAPSHOT_EXPORT_AGE = GaugeSeries(
    "bigfleet_coordinator_snapshot_export_age_seconds", "Time since the last good snapshot export"
)
SNAPSHOT_EXPORT_FAILURES = CounterSeries(
    "bigfleet_coordinator_snapshot_export_failures_total", "Snapshot exports that failed"
)

SERIES = declared(globals())
