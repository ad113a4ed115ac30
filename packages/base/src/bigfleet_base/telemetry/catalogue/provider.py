"""Series of providers built on the kit (provider.md §12.6)."""

from bigfleet_base.telemetry.buckets import FANOUT, MACHINE, RPC
from bigfleet_base.telemetry.catalogue.labels import (
    CAPACITY_TYPE,
    CODE,
    OUTCOME,
    PROVIDER,
    SHARD,
    STATE,
    VERBS,
)
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries, Label, declared

_METHOD = Label("method", (*VERBS, "Describe"))
_KIND = Label("kind", ("create", "configure", "drain", "delete"))
_OP = Label("op")

RPCS = CounterSeries("bigfleet_provider_rpc_total", "Calls answered", (PROVIDER, _METHOD, CODE))
RPC_DURATION = HistogramSeries(
    "bigfleet_provider_rpc_seconds", "Time to answer a call", (PROVIDER, _METHOD), buckets=RPC
)
TRANSITIONS = CounterSeries(
    "bigfleet_provider_transitions_total", "Transitions ended", (PROVIDER, _KIND, OUTCOME)
)
# Up to 87 minutes: a drain alone may take ten.
TRANSITION_DURATION = HistogramSeries(
    "bigfleet_provider_transition_seconds",
    "Acceptance of a call to the end of its transition",
    (PROVIDER, _KIND),
    buckets=FANOUT,
)
INFLIGHT = GaugeSeries("bigfleet_provider_inflight", "Transitions in flight", (PROVIDER, _KIND))
MACHINES = GaugeSeries("bigfleet_provider_machines", "Machines held", (PROVIDER, STATE, CAPACITY_TYPE))
FENCED = CounterSeries("bigfleet_provider_fenced_total", "Mutations of the shard fenced", (PROVIDER, SHARD))
IDEMPOTENT_REPLAYS = CounterSeries(
    "bigfleet_provider_idempotent_replays_total",
    "Calls answered with an operation that was already recorded",
    (PROVIDER, _KIND),
)
SUBSTRATE_CALLS = CounterSeries(
    "bigfleet_provider_substrate_calls_total", "Calls to the substrate", (PROVIDER, _OP, OUTCOME)
)
SUBSTRATE_DURATION = HistogramSeries(
    "bigfleet_provider_substrate_seconds", "Time of calls to the substrate", (PROVIDER, _OP), buckets=MACHINE
)
RECONCILES = CounterSeries(
    "bigfleet_provider_reconcile_total", "Comparisons of the store with the substrate", (PROVIDER, OUTCOME)
)
RECONCILE_LAST_SUCCESS_TIMESTAMP = GaugeSeries(
    "bigfleet_provider_reconcile_last_success_timestamp",
    "Unix time of the last good comparison with the substrate",
    (PROVIDER,),
)
PRICE_REFRESHES = CounterSeries(
    "bigfleet_provider_price_refresh_total",
    "Refreshes of prices and interruption probabilities",
    (PROVIDER, Label("source"), OUTCOME),
)
PRICE_LAST_SUCCESS_TIMESTAMP = GaugeSeries(
    "bigfleet_provider_price_last_success_timestamp", "Unix time of the last good price refresh", (PROVIDER,)
)
INTERRUPTIONS = CounterSeries(
    "bigfleet_provider_interruptions_total", "Hosts that the substrate took away", (PROVIDER,)
)
REPAIRS = CounterSeries(
    "bigfleet_provider_repairs_total", "Attempts to repair a Failed machine", (PROVIDER, OUTCOME)
)
STORE_WRITE_DURATION = HistogramSeries(
    "bigfleet_provider_store_write_seconds",
    "One durable write of the store, fsync included",
    (PROVIDER,),
    buckets=RPC,
)
STORE_WRITE_FAILURES = CounterSeries(
    "bigfleet_provider_store_write_failures_total", "Writes of the store that failed", (PROVIDER,)
)
REVISION = GaugeSeries("bigfleet_provider_revision", "Revision of the inventory", (PROVIDER,))
PANICS = CounterSeries(
    "bigfleet_provider_panics_total",
    "Calls and background steps that ended in an unexpected error",
    (PROVIDER,),
)

SERIES = declared(globals())
