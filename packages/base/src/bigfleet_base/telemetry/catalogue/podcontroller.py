"""Series of the unschedulable-pod controller (observability.md §4, operator.md §14)."""

from bigfleet_base.telemetry.buckets import RPC
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries, Label, declared

RECONCILES = CounterSeries(
    "bigfleet_unschedulable_pod_controller_reconciles_total",
    "Pods looked at, by what was done",
    (
        Label(
            "outcome",
            (
                *("cr_created", "cr_exists", "pod_gone", "pod_terminal", "error"),
                *("pod_ignored", "untranslatable"),
            ),
        ),
    ),
)
QUEUE_DEPTH = GaugeSeries("bigfleet_unschedulable_pod_controller_queue_depth", "Pods waiting to be looked at")
RECONCILE_DURATION = HistogramSeries(
    "bigfleet_unschedulable_pod_controller_reconcile_duration_seconds", "Looking at one pod", buckets=RPC
)
UNTRANSLATABLE_PODS = GaugeSeries(
    "bigfleet_unschedulable_pod_controller_untranslatable_pods",
    "Pods without a CapacityRequest because it cannot express what they ask for",
)

SERIES = declared(globals())
