"""Series of the scale-test harness (observability.md §5)."""

from bigfleet_base.telemetry.buckets import BIND, MACHINE, gated
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries, Label, declared

# Load driver; one per cluster, so none of these names the cluster.

CR_CREATED = CounterSeries("scaletest_loadgen_cr_created_total", "CapacityRequests that load has led to")
CR_DELETED = CounterSeries("scaletest_loadgen_cr_deleted_total", "CapacityRequests that have gone again")
CR_ACTIVE = GaugeSeries("scaletest_loadgen_cr_active", "CapacityRequests alive")
CR_TARGET = GaugeSeries("scaletest_loadgen_cr_target", "CapacityRequests the profile asks for")
ERRORS = CounterSeries("scaletest_loadgen_errors_total", "API calls that failed", (Label("kind"),))
STEADY_STATE = GaugeSeries("scaletest_loadgen_steady_state", "1 once the target has been reached")
PHASE_STARTED_AT = GaugeSeries(
    "scaletest_loadgen_phase_started_at_seconds",
    "Unix time at which a phase of the test began",
    (Label("phase"),),
)
ANCHORS_BOUND = CounterSeries("scaletest_loadgen_anchors_bound_total", "Anchor pods bound")

POD_BIND_LATENCY = HistogramSeries(
    "bigfleet_scaletest_pod_bind_latency_seconds",
    "Pod created until bound",
    buckets=gated(BIND, 10, 30),
    exact=(),
)
POD_BIND_LATENCY_STEADY = HistogramSeries(
    "bigfleet_scaletest_pod_bind_latency_steady_seconds",
    "Pod created until bound, for pods created after the target was reached",
    buckets=gated(BIND, 10, 30),
    exact=(),
)
POD_BIND_LATENCY_STEADY_MAX = GaugeSeries(
    "bigfleet_scaletest_pod_bind_latency_steady_max_seconds",
    "Longest time from created to bound, for pods created after the target was reached",
)

# Node creator

FAKE_NODES_CREATED = CounterSeries(
    "bigfleet_scaletest_node_creator_fake_nodes_created_total", "Nodes made for UpcomingNodes"
)
UPCOMING_TO_NODE_LATENCY = HistogramSeries(
    "bigfleet_scaletest_node_creator_upcoming_to_node_latency_seconds",
    "UpcomingNode seen until its Node exists",
    buckets=MACHINE,
)
BOUND_PODS = GaugeSeries("bigfleet_scaletest_node_creator_bound_pods", "Pods bound to the nodes made")

# Simulated operators

OPERATOR_SIM_STREAMS = GaugeSeries("bigfleet_scaletest_operator_sim_streams", "Sessions held open")
OPERATOR_SIM_ROLLUPS_SENT = CounterSeries(
    "bigfleet_scaletest_operator_sim_rollups_sent_total", "Roll-ups sent"
)
OPERATOR_SIM_ROLLUPS_ACKED = CounterSeries(
    "bigfleet_scaletest_operator_sim_rollups_acked_total", "Roll-ups acknowledged by the shard"
)
OPERATOR_SIM_BOOTSTRAPS_ANSWERED = CounterSeries(
    "bigfleet_scaletest_operator_sim_bootstraps_answered_total", "Bootstrap requests answered"
)
OPERATOR_SIM_WRITE_DELAY = GaugeSeries(
    "bigfleet_scaletest_operator_sim_write_delay_seconds", "Delay injected into every simulated API write"
)

SERIES = declared(globals())
