"""What a running shard exports, against the catalogue (observability.md §2)."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import bigfleet.shard
from bigfleet_base.model.frames import BootstrapRequest, NodeState
from bigfleet_base.telemetry.catalogue import process
from bigfleet_base.telemetry.catalogue import shard as series
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries
from bigfleet_base.wire.session import BootstrapAnswer, encode_operator_message
from tests.component.shard.world import need, running
from tests.support.eventually import eventually
from tests.support.rules import rule

KINDS = {CounterSeries: "counter", GaugeSeries: "gauge", HistogramSeries: "histogram"}
LIBRARY = ("process_", "python_")
"""What the Prometheus library adds of itself."""


async def test_the_scrape_has_every_series_of_the_catalogue_and_no_other(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need())
        await operator.received(NodeState)
        text = world.shard.scrape().decode()

    exported = {
        family.name: family.type
        for family in text_string_to_metric_families(text)
        if not family.name.startswith(LIBRARY)
    }
    expected = {}
    for each in (*series.SERIES, *process.SERIES):
        expected[each.name.removesuffix("_total")] = KINDS[type(each)]
        if isinstance(each, HistogramSeries) and each.exact is not None:
            expected[f"{each.name}_exact"] = "gauge"
    assert exported == expected


async def test_a_bound_machine_moves_the_figures_that_tell_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need())
        request = await operator.received(BootstrapRequest)
        await operator.send(encode_operator_message(BootstrapAnswer(request.request_id, b"blob")))

        seen: dict[str, float] = {}
        """The greatest of each figure: what tells of the last cycle is 0 when that had nothing to do."""

        def is_bound() -> bool:
            for family in text_string_to_metric_families(world.shard.scrape().decode()):
                for sample in family.samples:
                    name = f"{sample.name}{sorted(sample.labels.values())}"
                    seen[name] = max(sample.value, seen.get(name, sample.value))
            return seen["bigfleet_shard_configure_phase_seconds_count[]"] >= 1

        await eventually(is_bound, seconds=60)

    assert seen["bigfleet_shard_active_sessions[]"] == 1
    assert seen["bigfleet_shard_action_execute_outcomes_total['Provision', 'success']"] == 1
    assert seen["bigfleet_shard_provisioning_latency_seconds_count[]"] == 1
    assert seen["bigfleet_shard_cycle_trigger_total['rollup']"] >= 1
    assert seen["bigfleet_shard_last_cycle_timestamp_seconds[]"] > 1.7e9
    assert seen["bigfleet_shard_cycle_phase_duration_seconds_sum['phase1']"] > 0


@rule("ruling.R18", "shard.X6")
def test_every_series_has_somebody_who_moves_it() -> None:
    folder = Path(next(iter(bigfleet.shard.__path__)))
    code = "\n".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    still = {
        name
        for name, value in vars(series).items()
        if isinstance(value, CounterSeries | GaugeSeries | HistogramSeries)
        and not re.search(rf"\bseries\.{name}\b", code)
    }

    # At 0 for the reference's dashboards; and what only the coordinator's link will move.
    at_rest = {"PHASE1_OCC_PROPOSALS", "PHASE1_OCC_DISPLACEMENTS", "PHASE1_OCC_RETRIES_EXHAUSTED"}
    assert still == at_rest | {"COORDINATOR_REPORTS", "COORDINATOR_TERM_SEEN"}
