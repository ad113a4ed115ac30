"""The options of ``bigfleet shard``: names, defaults, and where they may be given."""

import argparse
from fractions import Fraction
from pathlib import Path

import pytest

from bigfleet.cli import shard
from bigfleet.cli.fake import _split, clusters, read_archetypes
from bigfleet.cli.options import UsageError, duration, fraction, size
from bigfleet.engine.options import SECOND
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.provider.endpoints import Endpoint
from bigfleet_base.model import CapacityType
from tests.support.rules import rule


def read(*argv: str, **environment: str) -> shard.Command:
    return shard.read(argv, environment)


def test_defaults_are_those_of_the_specification() -> None:
    command = read()
    given, settings = command.shard, command.shard.settings
    assert (given.listen, given.metrics_address, given.data_dir) == (":7780", ":8780", Path("data"))
    assert (settings.shard_id, settings.providers) == ("shard-0", ("default",))
    assert settings.concurrency == 32 and settings.queue_capacity == 256
    assert settings.options.cycle_interval_ns == 10 * SECOND
    assert settings.min_cycle_spacing_ns == SECOND
    assert settings.bootstrap_timeout_ns == settings.execute_timeout_ns == 30 * SECOND
    assert settings.available_interval_ns == 5 * SECOND
    assert settings.options.idle_hold_ns == {
        CapacityType.ON_DEMAND: 600 * SECOND,
        CapacityType.SPOT: 60 * SECOND,
    }
    assert given.full_interval_ns == 600 * SECOND and not given.incremental
    assert given.record_dir == Path("data/record") and given.record_max_bytes == 256 << 20
    assert not given.audit_log and given.epoch_floor == 0 and not given.debug_endpoints
    assert (command.log_level, command.log_format) == ("info", "json")
    assert command.seeds is not None and command.seeds.idle == 0


@rule("shard.R7", "ruling.R17")
def test_rails_are_on_at_the_command_line_and_off_in_the_library() -> None:
    options = read().shard.settings.options
    assert options.reclaim_cap == Fraction(5, 100) and options.guard
    library = Settings("s", 1, b"", ("p",)).options
    assert library.reclaim_cap == 0 and not library.guard


def test_every_option_reaches_its_setting() -> None:
    command = read(
        *("--listen", "127.0.0.1:1", "--metrics-addr", "0", "--id", "shard-7", "--data-dir", "/d"),
        *("--provider-addr", "a=127.0.0.1:2,b=unix:/tmp/b", "--max-actions-per-cycle", "9"),
        *("--execute-concurrency", "64", "--incremental-reconcile", "--available-capacity-interval", "7s"),
        *("--metrics-warmup-cycles", "5", "--actuation-paused", "--dry-run=true"),
        *("--reclaim-cap-fraction", "0.29", "--empty-rollup-guard=false", "--audit-log", "/a"),
        *("--phase-attribution-log", "--cycle-interval", "3s", "--min-cycle-spacing", "250ms"),
        *("--bootstrap-timeout", "4s", "--execute-timeout", "5s", "--full-reconcile-interval", "1m"),
        *("--epoch-floor", "12", "--record-dir", "/r", "--record-max", "1GiB", "--log-format", "text"),
        *("--log-level", "debug", "--debug-endpoints", "--insecure"),
        *("--idle-hold-on-demand", "1m", "--idle-hold-spot", "0"),
    )
    given, settings, options = command.shard, command.shard.settings, command.shard.settings.options
    assert given.providers == (Endpoint("a", "127.0.0.1:2"), Endpoint("b", "unix:/tmp/b"))
    assert settings.providers == ("a", "b") and command.seeds is None
    assert given.metrics_address == "" and given.insecure and given.debug_endpoints and given.incremental
    assert (settings.shard_id, settings.concurrency, settings.warmup_cycles) == ("shard-7", 64, 5)
    assert options.paused and options.dry_run and not options.guard and options.max_actions == 9
    assert options.reclaim_cap == Fraction(29, 100)
    assert options.cycle_interval_ns == 3 * SECOND and settings.min_cycle_spacing_ns == SECOND // 4
    assert (settings.bootstrap_timeout_ns, settings.execute_timeout_ns) == (4 * SECOND, 5 * SECOND)
    assert settings.available_interval_ns == 7 * SECOND and settings.phase_attribution
    assert options.idle_hold_ns == {CapacityType.ON_DEMAND: 60 * SECOND, CapacityType.SPOT: 0}
    assert (given.epoch_floor, given.full_interval_ns, given.audit_log) == (12, 60 * SECOND, "/a")
    assert (given.record_dir, given.record_max_bytes) == (Path("/r"), 1 << 30)
    assert (command.log_level, command.log_format) == ("debug", "text")


def test_a_flag_beats_the_environment_and_that_the_file(tmp_path: Path) -> None:
    file = tmp_path / "shard.toml"
    file.write_text(
        'id = "file"\nlisten = "127.0.0.1:1"\naudit-log = "file"\ndry-run = true\n'
        "empty-rollup-guard = false\nexecute-concurrency = 5\nreclaim-cap-fraction = 0.1\n"
    )
    command = read(
        "--id=flag",
        BIGFLEET_CONFIG=str(file),
        BIGFLEET_ID="env",
        BIGFLEET_AUDIT_LOG="env",
        BIGFLEET_EXECUTE_CONCURRENCY="6",
        BIGFLEET_UNKNOWN="1",
    )
    given, settings = command.shard, command.shard.settings
    assert (settings.shard_id, given.audit_log, given.listen) == ("flag", "env", "127.0.0.1:1")
    assert settings.concurrency == 6 and settings.options.dry_run and not settings.options.guard
    assert settings.options.reclaim_cap == Fraction(1, 10)
    assert not read("--config", str(file), "--dry-run=false").shard.settings.options.dry_run


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nonsense = 1\n", "'nonsense', which is no option"),
        ("= \n", "not TOML"),
        ("listen = ['a']\n", "listen must be a single value"),
        ("[shard]\nlisten = 'a'\n", "'shard', which is no option"),
        (f"listen = {'[' * 100_000}", "not TOML"),
        (f"record-max = {'9' * 5_000}", "not TOML"),
        ('data-dir = "a\\u0000b"\n', r"data-dir in .*shard.toml \(--config\) is 'a\\x00b': no path"),
        ('record-dir = "a\\u0000b"\n', "record-dir in .*NUL"),
        ('audit-log = "a\\u0000b"\n', "audit-log in .*NUL"),
        ('archetypes = "a\\u0000b"\n', "archetypes in .*NUL"),
        ('tls-cert = "a\\u0000b"\n', "tls-cert in .*NUL"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "shard.toml"
    file.write_text(content)
    with pytest.raises(UsageError, match=said):
        read("--config", str(file))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--cycle-interval", "10"),
        ("--reclaim-cap-fraction", "1.5"),
        ("--reclaim-cap-fraction", "nan"),
        ("--reclaim-cap-fraction", "1e-99999999"),
        ("--reclaim-cap-fraction", "1E-9_9_9999999"),
        ("--reclaim-cap-fraction", "1e999999999"),
        ("--max-actions-per-cycle", "-1"),
        ("--record-max", "lots"),
        ("--dry-run", "perhaps"),
        ("--log-level", "loud"),
        ("--failure-rate-per-sec", "inf"),
        ("--failure-rate-per-sec", "nan"),
        ("--failure-rate-per-sec", "-1"),
        ("--failure-rate-per-sec", "often"),
        ("--speculative-shed-at-seconds", "nan"),
        ("--speculative-shed-at-seconds", "-5"),
    ],
)
def test_a_value_that_cannot_be_read_is_explained(
    capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(f"{flag}={value}")
    assert ended.value.code == 2 and flag in capsys.readouterr().err


def test_a_share_is_exact_however_it_is_written() -> None:
    for text in ("0.05", "5e-2", "5E-02", ".05", "1/20", "0.5e-1", "50000e-6"):
        assert fraction(text) == Fraction(1, 20)
    assert fraction("1e-99") == Fraction(1, 10**99)
    with pytest.raises(argparse.ArgumentTypeError, match="an exponent of more than 2 digits"):
        fraction("1e-100")


def test_a_mistake_is_told_to_whoever_made_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shard.toml"
    file.write_text('cycle-interval = "often"\n')
    with pytest.raises(SystemExit):
        read("--config", str(file))
    assert f"cycle-interval in {file} (--config): 'often' is not a duration" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        read(BIGFLEET_CYCLE_INTERVAL="often")
    assert "BIGFLEET_CYCLE_INTERVAL in the environment: 'often' is" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        read("--cycle-interval=never", BIGFLEET_CYCLE_INTERVAL="often")
    assert "argument --cycle-interval: 'never' is" in capsys.readouterr().err
    with pytest.raises(UsageError, match="BIGFLEET_LISTEN in the environment: address 'nowhere' is not"):
        read(BIGFLEET_LISTEN="nowhere")
    with pytest.raises(UsageError, match="BIGFLEET_SEED_SPOT in the environment: only for"):
        read("--provider-addr=127.0.0.1:1", BIGFLEET_SEED_SPOT="4")


def test_numbers_may_be_as_large_as_an_epoch() -> None:
    assert read("--epoch-floor", str(2**63 - 1)).shard.epoch_floor == 2**63 - 1


@pytest.mark.parametrize(
    ("text", "nanos"), [("2s", 2e9), ("1h30m", 5400e9), ("250ms", 25e7), ("1.5s", 15e8), ("0", 0)]
)
def test_durations_are_written_as_in_go(text: str, nanos: float) -> None:
    assert duration(text) == nanos


def test_sizes_are_written_with_binary_suffixes() -> None:
    assert (size("256MiB"), size("0"), size("3KiB"), size("17")) == (256 << 20, 0, 3072, 17)
    with pytest.raises(argparse.ArgumentTypeError):
        size("1MB")


def test_a_phase_dump_can_be_asked_for_by_the_environment() -> None:
    assert read(BIGFLEET_PHASEDUMP="1").shard.settings.phase_attribution
    assert not read(BIGFLEET_PHASEDUMP="0").shard.settings.phase_attribution


def test_seeded_clusters_are_dealt_out_by_the_number_in_the_id() -> None:
    flags = ("--seed-configured-per-cluster", "2", "--seed-cluster-total", "7", "--seed-cluster-stride", "3")
    dealt = []
    for number in range(3):
        seeds = read("--id", f"shard-{number}", *flags).seeds
        assert seeds is not None
        dealt.append(list(clusters(seeds)))
    assert dealt == [
        ["kwok-cluster-0", "kwok-cluster-3", "kwok-cluster-6"],
        ["kwok-cluster-1", "kwok-cluster-4"],
        ["kwok-cluster-2", "kwok-cluster-5"],
    ]


def test_machines_are_seeded_for_the_archetypes_by_weight(tmp_path: Path) -> None:
    file = tmp_path / "archetypes.json"
    file.write_text(
        '[{"weight": 3, "instanceTypes": ["a"], "zones": ["z1"], "resources": {"cpu": "1"}},'
        ' {"weight": 1, "instanceTypes": ["b"], "zones": ["z1"],'
        '  "sizeBuckets": [{"weight": 1, "resources": {"cpu": "2"}}]}]'
    )
    kinds = read_archetypes(file)
    assert [(kind.instance_type, dict(kind.size)) for kind in kinds] == [
        ("a", {"cpu": "1"}),
        ("b", {"cpu": "2"}),
    ]
    assert _split(8, kinds) == [6, 2]
    assert sum(_split(7, kinds)) == 7
    file.write_text("{}")
    with pytest.raises(UsageError, match="names no kind"):
        read_archetypes(file)
    file.write_text('[{"weight": 1}]')
    with pytest.raises(UsageError, match="instanceTypes"):
        read_archetypes(file)


@pytest.mark.parametrize("weight", ["0", "-3", "0.5", "Infinity", "NaN", '"heavy"', "null", "[" * 100_000])
def test_archetypes_without_a_weight_to_go_by_are_refused(tmp_path: Path, weight: str) -> None:
    file = tmp_path / "archetypes.json"
    file.write_text(f'[{{"weight": {weight}, "instanceTypes": ["a"], "resources": {{"cpu": "1"}}}}]')
    with pytest.raises(UsageError, match="--archetypes"):
        read_archetypes(file)
