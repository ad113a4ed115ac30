"""The catalogue as data: what it contains, how it is named, and whether its buckets can carry their gates."""

import re

import pytest

from bigfleet_base.telemetry import Role, buckets
from bigfleet_base.telemetry.catalogue import TABLES, process, shard
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries, Series
from tests.support.rules import rule
from tests.unit.base.telemetry import golden

GOLDEN = {
    "shard": (TABLES[Role.SHARD], golden.SHARD),
    "coordinator": (TABLES[Role.COORDINATOR], golden.COORDINATOR),
    "operator": (TABLES[Role.OPERATOR], golden.OPERATOR),
    "pod controller": (TABLES[Role.POD_CONTROLLER], golden.POD_CONTROLLER),
    "provider": (TABLES[Role.PROVIDER], golden.PROVIDER),
    "harness": (TABLES[Role.HARNESS], golden.HARNESS),
    "process": (process.SERIES, golden.PROCESS),
}

OURS = {"bigfleet_shard_full_pass_mismatches_total"}
"""Beyond the table of the specification: what an engine that decides by changes must be watched by."""
EVERYTHING = {series.name: series for table, _ in GOLDEN.values() for series in table}


def bucket_set(text: str) -> tuple[float, ...]:
    name, *gates = text.split("+")
    edges = {float(edge) for edge in golden.BUCKETS[name].split()}
    return tuple(sorted(edges.union(*(golden.GATE_EDGES[int(gate)] for gate in gates))))


Row = tuple[
    str, str, tuple[tuple[str, tuple[str, ...]], ...], tuple[float, ...] | None, tuple[str, ...] | None
]


def parse(row: str) -> Row:
    name, kind, label_text, *rest = row.split()
    labels = []
    for part in label_text.split(";") if label_text != "-" else []:
        label, _, values = part.partition("=")
        labels.append((label, tuple(values.split(",")) if values else ()))
    edges = bucket_set(rest.pop(0)) if kind == "histogram" else None
    exact = None
    if rest:
        _, _, value = rest.pop().partition(":")
        exact = (value,) if value else ()
    return name, kind, tuple(labels), edges, exact


def described(series: Series) -> Row:
    labels = tuple((label.name, label.values) for label in series.labels)
    if isinstance(series, HistogramSeries):
        return series.name, series.kind, labels, series.buckets, series.exact
    return series.name, series.kind, labels, None, None


@rule("observability.12.1")
@pytest.mark.parametrize("table", list(GOLDEN))
def test_catalogue_is_that_of_the_specification(table: str) -> None:
    series, text = GOLDEN[table]
    wanted = {row[0]: row for row in map(parse, filter(None, text.splitlines()))}
    have = {each.name: described(each) for each in series if each.name not in OURS}
    assert have.keys() == wanted.keys()
    for name, row in wanted.items():
        assert have[name] == row


@rule("observability.12.1")
@pytest.mark.parametrize("name", list(golden.BUCKETS))
def test_bucket_set_has_the_edges_of_the_specification(name: str) -> None:
    assert getattr(buckets, name) == bucket_set(name)


@rule("observability.12.1")
def test_every_series_has_help_of_one_plain_sentence() -> None:
    assert all(
        re.fullmatch(r'[A-Z0-9a-z][^\n"\\]{8,}[^.\n"\\]', series.help) for series in EVERYTHING.values()
    )


def test_names_are_unique_across_all_roles() -> None:
    names = [series.name for table, _ in GOLDEN.values() for series in table]
    names += [series.exact_gauge().name for series in exact_series()]
    names += [series.name for series in process.RUNTIME]
    assert len(names) == len(set(names))


def test_names_say_kind_and_unit() -> None:
    for series in EVERYTHING.values():
        assert re.fullmatch(r"(bigfleet|scaletest)_[a-z0-9]+(_[a-z0-9]+)*", series.name)
        assert series.name.endswith("_total") == isinstance(series, CounterSeries)
        assert not re.search(r"_(ms|millis|milliseconds|minutes|hours|kb|mb|percent)$", series.name)
        # Prometheus makes names with these ends itself.
        assert not re.search(r"_(bucket|count|sum|created|info)$", series.name)
        if isinstance(series, HistogramSeries):
            counts = ("_records", "_batch_size")
            assert series.name.endswith(counts if series.buckets == buckets.COUNT else "_seconds")


@pytest.mark.parametrize("role", Role)
def test_names_begin_with_their_role(role: Role) -> None:
    prefixes = {
        Role.POD_CONTROLLER: ("bigfleet_unschedulable_pod_controller_",),
        Role.HARNESS: ("bigfleet_scaletest_", "scaletest_loadgen_"),
    }.get(role, (f"bigfleet_{role}_",))
    assert all(series.name.startswith(prefixes) for series in TABLES[role])


def test_only_two_series_have_a_cluster_label() -> None:
    assert {series.name for series in EVERYTHING.values() if "cluster" in series.label_names} == {
        "bigfleet_shard_rollup_quarantined",
        "bigfleet_shard_rollups_rejected_total",
    }


def test_no_label_can_name_a_machine_a_pod_or_an_object() -> None:
    open_labels = {label.name for each in EVERYTHING.values() for label in each.labels if not label.values}
    # Everything else has its values in the catalogue. These are names of processes and configured parts, or
    # short words that code chooses.
    assert open_labels == {
        *("cluster", "provider", "shard", "role"),
        *("kind", "op", "outcome", "phase", "result", "rpc", "source", "state"),
    }


def test_labels_are_well_formed() -> None:
    for series in EVERYTHING.values():
        assert len(series.label_names) == len(set(series.label_names))
        for label in series.labels:
            assert re.fullmatch(r"[a-z]+(_[a-z]+)*", label.name)
            assert label.name not in {"le", "quantile", "instance", "job"}
            assert len(label.values) == len(set(label.values))
            assert all(value.strip() == value != "" for value in label.values)


def carries(edges: tuple[float, ...], threshold: float) -> bool:
    near = [edge for edge in edges if 0.7 * threshold <= edge <= 1.3 * threshold]
    return edges[-1] >= 2 * threshold and len(near) >= 2


@rule("observability.12.3")
@pytest.mark.parametrize(
    ("name", "threshold"),
    [(name, threshold) for name, thresholds in golden.THRESHOLDS.items() for threshold in thresholds],
)
def test_buckets_can_show_that_a_gate_is_missed(name: str, threshold: float) -> None:
    series = EVERYTHING[name]
    assert isinstance(series, HistogramSeries)
    assert carries(series.buckets, threshold)


def test_the_bucket_rule_refuses_the_sets_of_the_reference() -> None:
    reference_cycle = tuple(0.001 * 2**k for k in range(14))
    assert not carries(reference_cycle, 25)
    assert not carries(buckets.MACHINE, 15)


def test_edges_rise_and_print_as_short_decimals() -> None:
    for series in EVERYTHING.values():
        if isinstance(series, HistogramSeries):
            assert list(series.buckets) == sorted(set(series.buckets))
            assert all(len(repr(edge)) <= 9 for edge in series.buckets)


def exact_series() -> list[HistogramSeries]:
    return [
        series
        for series in EVERYTHING.values()
        if isinstance(series, HistogramSeries) and series.exact is not None
    ]


def test_every_gated_latency_has_exact_quantiles() -> None:
    assert golden.THRESHOLDS.keys() <= {series.name for series in exact_series()}


def test_exact_gauge_has_the_four_quantiles_and_the_label_it_is_limited_to() -> None:
    cycle = shard.CYCLE_DURATION.exact_gauge()
    assert cycle.name == "bigfleet_shard_cycle_duration_seconds_exact"
    assert [(label.name, label.values) for label in cycle.labels] == [
        ("quantile", ("0.5", "0.9", "0.99", "1.0"))
    ]
    assert shard.CYCLE_PHASE_DURATION.exact_gauge().label_names == ("phase", "quantile")
    assert isinstance(cycle, GaugeSeries)


@rule("ruling.R18")
def test_series_of_the_reference_that_stay_at_zero_say_so() -> None:
    occ = [series for series in TABLES[Role.SHARD] if "_phase1_occ_" in series.name]
    assert len(occ) == 3
    assert all(series.help.startswith("Always 0") for series in occ)


@rule("ruling.R18")
def test_dead_series_of_the_reference_do_not_exist() -> None:
    dead = ("phase1_pool_build", "phase1_take", "phase1_calls")
    assert not [name for name in EVERYTHING if any(part in name for part in dead)]
