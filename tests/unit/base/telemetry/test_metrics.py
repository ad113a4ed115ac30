"""Live metrics: all there from the start, nothing that is not in the catalogue, cheap to scrape."""

import math
import threading
import time
from itertools import product
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bigfleet_base.telemetry import CONTENT_TYPE, Metrics, Role
from bigfleet_base.telemetry.catalogue import TABLES, coordinator, operator, process, provider, shard
from bigfleet_base.telemetry.metrics import MAX_LABEL_SETS
from bigfleet_base.telemetry.series import CounterSeries, HistogramSeries, Series
from bigfleet_base.telemetry.sketch import unpack_sketches
from tests.support.rules import rule

MINUTE = 60 * 10**9


class Clock:
    def __init__(self) -> None:
        self.now = 1_000 * MINUTE

    def __call__(self) -> int:
        return self.now


def scrape(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return scrape(metrics)[name, frozenset(labels.items())]


def families(metrics: Metrics) -> dict[str, tuple[str, str]]:
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = (family.type, family.documentation)
    return found


@rule("observability.12.1")
@pytest.mark.parametrize("role", Role)
def test_scrape_shows_exactly_the_catalogue_of_the_role(role: Role) -> None:
    table: list[Series] = [*TABLES[role], *process.SERIES]
    table += [s.exact_gauge() for s in table if isinstance(s, HistogramSeries) and s.exact is not None]
    shown = families(Metrics(role))
    runtime = {series.name: series for series in process.RUNTIME}
    assert shown.keys() - runtime.keys() == {series.name for series in table}
    for series in table:
        assert shown[series.name] == (series.kind, series.help)


@pytest.mark.parametrize("role", Role)
def test_every_process_shows_its_runtime(role: Role) -> None:
    metrics = Metrics(role)
    kinds = families(metrics)
    labels = {name: {key for key, _ in label_set} for name, label_set in scrape(metrics)}
    for series in process.RUNTIME:
        if series.name.startswith("process_") and not Path("/proc/self/stat").exists():
            continue  # the library reads them there
        assert kinds[series.name][0] == series.kind
        assert labels[series.name] == set(series.label_names)


@rule("ruling.R18")
@pytest.mark.parametrize("role", Role)
def test_series_with_fixed_label_values_start_at_zero(role: Role) -> None:
    samples = scrape(Metrics(role))
    for series in (*TABLES[role], *process.SERIES):
        if not all(label.values for label in series.labels):
            continue
        name = f"{series.name}_count" if isinstance(series, HistogramSeries) else series.name
        for values in product(*(label.values for label in series.labels)):
            key = frozenset(zip(series.label_names, values, strict=True))
            assert samples[name, key] == 0


def test_series_with_open_labels_start_without_samples() -> None:
    names = {name for name, _ in scrape(Metrics(Role.SHARD))}
    assert "bigfleet_shard_rollup_quarantined" not in names
    assert "bigfleet_tls_certificate_expiry_timestamp_seconds" not in names


def test_updates_are_scraped() -> None:
    metrics = Metrics(Role.SHARD)
    metrics.counter(shard.ACTION_OUTCOMES, "Bootstrap", "success").inc()
    metrics.counter(shard.ACTION_OUTCOMES, "Bootstrap", "success").inc(2)
    metrics.gauge(shard.SHORTFALLS).set(4)
    metrics.gauge(shard.EXECUTE_INFLIGHT).inc()
    metrics.gauge(shard.EXECUTE_INFLIGHT).dec(3)
    metrics.histogram(shard.PROVIDER_RPC, "default", "List", "OK").observe(0.003)
    assert (
        value(metrics, "bigfleet_shard_action_execute_outcomes_total", kind="Bootstrap", outcome="success")
        == 3
    )
    assert value(metrics, "bigfleet_shard_shortfalls") == 4
    assert value(metrics, "bigfleet_shard_execute_inflight") == -2
    labels = {"provider": "default", "rpc": "List", "code": "OK"}
    assert value(metrics, "bigfleet_shard_provider_rpc_seconds_sum", **labels) == 0.003
    assert value(metrics, "bigfleet_shard_provider_rpc_seconds_bucket", **labels, le="0.002") == 0
    assert value(metrics, "bigfleet_shard_provider_rpc_seconds_bucket", **labels, le="0.004") == 1


def test_series_outside_the_catalogue_cannot_be_had() -> None:
    metrics = Metrics(Role.SHARD)
    with pytest.raises(ValueError, match="not a series of the shard"):
        metrics.counter(CounterSeries("bigfleet_shard_surprises_total", "Something new"))
    with pytest.raises(ValueError, match="not a series of the shard"):
        metrics.counter(CounterSeries(shard.ACTIONS_DROPPED.name, shard.ACTIONS_DROPPED.help))
    with pytest.raises(ValueError, match="bigfleet_operator_acknowledged_total is not a series of the shard"):
        metrics.counter(operator.ACKNOWLEDGED)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ((), "takes values for kind, outcome"),
        (("Bootstrap",), "takes values for kind, outcome"),
        (("Bootstrap", "success", "more"), "takes values for kind, outcome"),
        (("Bootstrap", "exploded"), "outcome cannot be 'exploded'"),
    ],
)
def test_label_values_outside_the_catalogue_cannot_be_had(values: tuple[str, ...], complaint: str) -> None:
    metrics = Metrics(Role.SHARD)
    before = scrape(metrics).keys()
    with pytest.raises(ValueError, match=complaint):
        metrics.counter(shard.ACTION_OUTCOMES, *values)
    assert scrape(metrics).keys() == before


def test_picking_twice_gives_the_same_object() -> None:
    metrics = Metrics(Role.SHARD)
    picked = metrics.counter(shard.ACTIONS, "Delete")
    assert metrics.counter(shard.ACTIONS, "Delete") is picked


def test_label_set_whose_subject_is_gone_can_be_removed() -> None:
    metrics = Metrics(Role.COORDINATOR)
    metrics.gauge(coordinator.PENDING_INSTRUCTIONS, "shard-0").set(3)
    metrics.gauge(coordinator.PENDING_INSTRUCTIONS, "shard-1").set(1)
    metrics.remove(coordinator.PENDING_INSTRUCTIONS, "shard-0")
    metrics.remove(coordinator.PENDING_INSTRUCTIONS, "never seen")
    shown = {dict(key)["shard"] for name, key in scrape(metrics) if name.endswith("_pending_instructions")}
    assert shown == {"shard-1"}
    metrics.gauge(coordinator.PENDING_INSTRUCTIONS, "shard-0")
    assert value(metrics, "bigfleet_coordinator_pending_instructions", shard="shard-0") == 0


def test_label_set_with_fixed_values_cannot_be_removed() -> None:
    with pytest.raises(ValueError, match="set it to 0 instead"):
        Metrics(Role.SHARD).remove(shard.ACTIONS, "Delete")


def test_given_label_is_left_out_when_picking_and_lets_series_start_at_zero() -> None:
    metrics = Metrics(Role.PROVIDER, given={"provider": "fake"})
    assert value(metrics, "bigfleet_provider_inflight", provider="fake", kind="drain") == 0
    metrics.counter(provider.FENCED, "shard-0").inc()
    metrics.gauge(provider.REVISION).set(7)
    assert value(metrics, "bigfleet_provider_fenced_total", provider="fake", shard="shard-0") == 1
    assert value(metrics, "bigfleet_provider_revision", provider="fake") == 7
    metrics.remove(provider.FENCED, "shard-0")
    assert "bigfleet_provider_fenced_total" not in {name for name, _ in scrape(metrics)}


def test_given_label_must_exist_and_have_a_value_of_the_catalogue() -> None:
    with pytest.raises(ValueError, match="no series of the provider has a label vendor"):
        Metrics(Role.PROVIDER, given={"vendor": "fake"})
    with pytest.raises(ValueError, match="kind cannot be 'explode'"):
        Metrics(Role.PROVIDER, given={"provider": "fake", "kind": "explode"})


def test_endless_label_values_share_one_label_set() -> None:
    metrics = Metrics(Role.SHARD)
    for number in range(MAX_LABEL_SETS + 5):
        metrics.counter(shard.ROLLUPS_REJECTED, f"cluster-{number}").inc()
    shown = {
        dict(key)["cluster"]: count
        for (name, key), count in scrape(metrics).items()
        if name == "bigfleet_shard_rollups_rejected_total"
    }
    assert len(shown) == MAX_LABEL_SETS + 1
    assert shown["other"] == 5


def test_overflow_keeps_labels_with_fixed_values() -> None:
    metrics = Metrics(Role.SHARD)
    for number in range(MAX_LABEL_SETS):
        metrics.histogram(shard.PROVIDER_RPC, f"provider-{number}", "List", "OK")
    late = metrics.histogram(shard.PROVIDER_RPC, "late", "Get", "UNAVAILABLE")
    assert late is metrics.histogram(shard.PROVIDER_RPC, "later", "Get", "UNAVAILABLE")
    assert late is metrics.histogram(shard.PROVIDER_RPC, "other", "Get", "UNAVAILABLE")
    assert late is not metrics.histogram(shard.PROVIDER_RPC, "later", "Get", "OK")


def test_exact_quantiles_are_not_a_number_until_something_was_measured() -> None:
    clock = Clock()
    metrics = Metrics(Role.SHARD, now=clock)
    name = "bigfleet_shard_cycle_duration_seconds_exact"
    assert math.isnan(value(metrics, name, quantile="0.99"))
    cycle = metrics.histogram(shard.CYCLE_DURATION)
    for milliseconds in range(1, 101):
        cycle.observe(milliseconds / 1000)
    assert value(metrics, name, quantile="0.5") == pytest.approx(0.050, rel=0.01)
    assert value(metrics, name, quantile="0.9") == pytest.approx(0.090, rel=0.01)
    assert value(metrics, name, quantile="0.99") == pytest.approx(0.099, rel=0.01)
    assert value(metrics, name, quantile="1.0") == 0.1
    assert value(metrics, "bigfleet_shard_cycle_duration_seconds_count") == 100
    clock.now += 6 * MINUTE
    assert math.isnan(value(metrics, name, quantile="0.99"))


def test_exact_quantiles_of_a_phase_count_only_that_phase() -> None:
    metrics = Metrics(Role.SHARD)
    metrics.histogram(shard.CYCLE_PHASE_DURATION, "phase1").observe(2)
    metrics.histogram(shard.CYCLE_PHASE_DURATION, "phase2").observe(50)
    name = "bigfleet_shard_cycle_phase_duration_seconds_exact"
    assert value(metrics, name, phase="phase1", quantile="1.0") == 2
    assert {dict(key)["phase"] for found, key in scrape(metrics) if found == name} == {"phase1"}


def test_exact_quantiles_over_all_label_values_count_them_together() -> None:
    metrics = Metrics(Role.OPERATOR)
    metrics.histogram(operator.NODE_STATE_UPDATE_DURATION, "Ready").observe(1)
    metrics.histogram(operator.NODE_STATE_UPDATE_DURATION, "Failed").observe(3)
    name = "bigfleet_operator_node_state_update_duration_seconds_exact"
    assert value(metrics, name, quantile="1.0") == 3
    assert value(metrics, name, quantile="0.5") == pytest.approx(1, rel=0.01)


def test_what_is_no_duration_is_refused_before_anything_counts_it() -> None:
    metrics = Metrics(Role.SHARD)
    with pytest.raises(ValueError, match="nan is not a duration"):
        metrics.histogram(shard.CYCLE_DURATION).observe(math.nan)
    assert value(metrics, "bigfleet_shard_cycle_duration_seconds_sum") == 0


def test_sketches_are_served_for_the_window_and_since_the_start() -> None:
    clock = Clock()
    metrics = Metrics(Role.SHARD, now=clock)
    metrics.histogram(shard.CYCLE_PHASE_DURATION, "phase1").observe(1)
    clock.now += 10 * MINUTE
    metrics.histogram(shard.CYCLE_PHASE_DURATION, "phase1").observe(2)
    sketches = unpack_sketches(metrics.sketches())
    name = 'bigfleet_shard_cycle_phase_duration_seconds{phase="phase1"}'
    assert sketches[f"{name} 5m"].count == 1
    assert sketches[f"{name} start"].count == 2
    assert len(sketches) == 2 * 5
    assert sketches["bigfleet_shard_drain_phase_seconds start"].count == 0


def test_rendering_agrees_with_the_library() -> None:
    metrics = Metrics(Role.SHARD)
    metrics.gauge(shard.ROLLUP_QUARANTINED, 'odd "name"\\with\nnewline ü').set(math.inf)
    metrics.gauge(shard.RECONCILE_AGE, "default").set(-math.inf)
    metrics.gauge(shard.INVENTORY_HOURLY_COST, "Idle", "Spot").set(1.25e-9)
    ours = metrics.render().decode()
    # Reaches inside for the oracle: the registry is not part of the public surface on purpose.
    theirs = prometheus_client.generate_latest(metrics._registry).decode()

    def stable(text: str) -> list[object]:
        return [
            (
                family.name,
                family.type,
                family.documentation,
                sample.name,
                sorted(sample.labels.items()),
                number,
            )
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not family.name.startswith(("process_", "python_gc"))
            for number in [str(float(sample.value))]
        ]

    assert stable(ours) == stable(theirs)
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


def test_label_value_that_is_not_unicode_does_not_cost_the_scrape() -> None:
    metrics = Metrics(Role.SHARD)
    metrics.gauge(shard.ROLLUP_QUARANTINED, "bad\udcff").set(1)
    assert rb"bad\udcff" in metrics.render()


def test_metrics_may_be_updated_from_any_thread_while_they_are_scraped() -> None:
    metrics = Metrics(Role.SHARD)
    cycle = metrics.histogram(shard.CYCLE_DURATION)

    def observe() -> None:
        for number in range(2_000):
            cycle.observe(number / 100)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        metrics.render()
    for thread in threads:
        thread.join()
    assert value(metrics, "bigfleet_shard_cycle_duration_seconds_count") == 8_000
    assert unpack_sketches(metrics.sketches())["bigfleet_shard_cycle_duration_seconds start"].count == 8_000


def busy_shard() -> Metrics:
    """A shard with 500 clusters that all misbehave, and one provider."""
    metrics = Metrics(Role.SHARD)
    for number in range(500):
        metrics.gauge(shard.ROLLUP_QUARANTINED, f"cluster-{number}").set(1)
        metrics.counter(shard.ROLLUPS_REJECTED, f"cluster-{number}").inc()
    [_, rpc, _] = shard.PROVIDER_RPC.labels
    for verb in rpc.values:
        metrics.histogram(shard.PROVIDER_RPC, "default", verb, "OK").observe(0.01)
    for outcome in ("ok", "not_leader", "unavailable"):
        metrics.counter(shard.COORDINATOR_REPORTS, outcome)
    return metrics


def test_a_shard_with_500_clusters_has_at_most_3000_series() -> None:
    assert len(scrape(busy_shard())) <= 3_000


def test_a_scrape_of_a_shard_with_500_clusters_is_quick() -> None:
    metrics = busy_shard()
    taken = []
    for _ in range(10):
        start = time.process_time()
        metrics.render()
        taken.append(time.process_time() - start)
    # The limit is 20 ms, of which a quiet core needs half; others may be using the same machine.
    assert min(taken) < 0.040
