"""``bigfleet shard``: flags and the rules between them (shard.md §17.1), and the process they ask for."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from bigfleet.cli.options import Parser, UsageError, amount, duration, fraction, size, whole_number
from bigfleet.engine.options import Options
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.provider.endpoints import DEFAULT_NAME, Endpoint, parse_endpoints
from bigfleet.shard.shell.auditlog import check_audit_log
from bigfleet.shard.shell.datadir import check_data_dir
from bigfleet.shard.shell.process import START_ERRORS, ShardOptions, run_shard
from bigfleet_base.model import CapacityType, is_valid_id
from bigfleet_base.telemetry import LEVELS, Form, Level, Logs
from bigfleet_base.wire import Identity, TlsCredentials, TlsFiles, parse_address, require_local_or_insecure
from bigfleet_base.wire.address import parse_http_address, parse_peer_address
from bigfleet_base.wire.identity import Role
from bigfleet_base.wire.transport_errors import AddressError

Parsed = TypeVar("Parsed")
Named: TypeAlias = Callable[[str], str]
"""An option as whoever has given it knows it."""
STDERR: Final = 2
USER_ERRORS: Final = (UsageError, *START_ERRORS)
"""What a command line says in one line instead of a traceback."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """What the fake provider begins with, and what befalls it."""

    idle: int
    speculative: int
    spot: int
    configured_per_cluster: int
    cluster_total: int
    cluster_stride: int
    ordinal: int
    """Of this shard among the shards: the number at the end of its id."""
    archetypes: str
    density: int
    failures_per_s: float
    shed_at_s: float
    shed_to: float


@dataclass(frozen=True, slots=True)
class Command:
    """All that ``bigfleet shard`` was asked for."""

    shard: ShardOptions
    seeds: Seeds | None
    """None when there is a real provider."""
    log_level: Level
    log_format: Form


def read(argv: Sequence[str], environment: Mapping[str, str]) -> Command:
    """What the options ask for; UsageError or another of ``USER_ERRORS`` for a mistake in them."""
    parser = _parser()
    given, named = parser.parse(argv, environment), parser.named
    for name, value in vars(given).items():
        if isinstance(value, str) and "\0" in value:
            flag = named(name.replace("_", "-"))
            raise UsageError(f"{flag} is {value!r}: no path or name has a NUL character")
    if not given.listen:
        raise UsageError(f"{named('listen')} is empty: give the address that operators dial, such as :7780")
    if not given.data_dir:
        raise UsageError(f"{named('data-dir')} is empty: give a folder, such as ./data")
    if not is_valid_id(given.id):
        raise UsageError(f"{named('id')} is {given.id!r}: give 1 to 253 of the characters A-Z a-z 0-9 . _ -")
    for flag in ("cycle_interval", "min_cycle_spacing", "bootstrap_timeout", "execute_timeout"):
        if getattr(given, flag) <= 0:
            raise UsageError(f"{named(flag.replace('_', '-'))} must be longer than nothing")
    for flag in ("execute_concurrency", "seed_density_multiplier"):
        if getattr(given, flag) < 1:
            raise UsageError(f"{named(flag.replace('_', '-'))} must be at least 1")
    _address(named("listen"), parse_address, given.listen)
    if given.metrics_addr != "0":
        _address(named("metrics-addr"), parse_http_address, given.metrics_addr)
    endpoints = _address(named("provider-addr"), parse_endpoints, given.provider_addr)
    for endpoint in endpoints:
        _address(named("provider-addr"), parse_peer_address, endpoint.address)
    if endpoints:
        _refuse_fake_flags(given, named)
    files = TlsFiles.from_flags(given.tls_cert, given.tls_key, given.tls_ca)
    data_dir = Path(given.data_dir)
    return Command(
        shard=ShardOptions(
            settings=_settings(given, endpoints, environment),
            listen=given.listen,
            data_dir=data_dir,
            providers=endpoints,
            metrics_address="" if given.metrics_addr == "0" else given.metrics_addr,
            epoch_floor=given.epoch_floor,
            incremental=given.incremental_reconcile,
            full_interval_ns=given.full_reconcile_interval,
            audit_log=given.audit_log,
            record_dir=Path(given.record_dir) if given.record_dir else data_dir / "record",
            record_max_bytes=given.record_max,
            tls=files,
            insecure=given.insecure,
            debug_endpoints=given.debug_endpoints,
        ),
        seeds=None if endpoints else _seeds(given, named),
        log_level=given.log_level,
        log_format=given.log_format,
    )


def run(argv: Sequence[str]) -> int:
    """Run a shard until a signal; the exit status says whether that was the end."""
    command = read(argv, os.environ)
    if sys.stdout is None:
        raise UsageError("standard output is closed, and the log goes there; send it to /dev/null instead")
    if sys.stderr is None:
        _hold_standard_error()
    refuse_unusable(command)
    logs = Logs(level=command.log_level, form=command.log_format)
    with logs.capture("shard"):
        try:
            asyncio.run(_run(command, logs))
        finally:
            logs.flush()
    return 0


def check(argv: Sequence[str]) -> str:
    """Read the options and the files they name as ``run`` would; returns what to tell the user."""
    command = read(argv, os.environ)
    refuse_unusable(command)
    shard = command.shard
    providers = ", ".join(f"{each.name}={each.address}" for each in shard.providers) or "in-process fake"
    return f"shard {shard.settings.shard_id}: listens on {shard.listen}, providers: {providers}"


def refuse_unusable(command: Command) -> None:
    """Refuse what would keep the shard from starting, before it has taken an epoch; changes nothing."""
    shard = command.shard
    if shard.tls is not None:
        TlsCredentials(shard.tls, Identity(Role.SHARD, shard.settings.shard_id))
    else:
        for address in (shard.listen, *(endpoint.address for endpoint in shard.providers)):
            require_local_or_insecure(parse_address(address), insecure=shard.insecure)
    if command.seeds is not None:
        if find_spec("bigfleet_providerkit") is None:
            raise UsageError(
                "--provider-addr is empty, and the fake provider is not installed: give the address of a"
                " provider, or install bigfleet[fake]"
            )
        from bigfleet.cli.fake import check_seeds

        check_seeds(command.seeds)
    check_data_dir(shard.data_dir, shard.epoch_floor)
    if shard.audit_log:
        check_audit_log(shard.audit_log, shard.data_dir)


def _hold_standard_error() -> None:
    """What gRPC and a dump of the stacks write there must not go into the file or socket opened next."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != STDERR:
        os.dup2(nowhere, STDERR)
        os.close(nowhere)


async def _run(command: Command, logs: Logs) -> None:
    async with AsyncExitStack() as stack:
        shard = command.shard
        if command.seeds is not None:
            from bigfleet.cli.fake import fake_provider

            address = await stack.enter_async_context(fake_provider(command.seeds, logs, os.environ))
            shard = replace(shard, providers=(Endpoint(DEFAULT_NAME, address),), plain_providers=True)
        await run_shard(shard, logs)


def _address(flag: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
    try:
        return parse(text)
    except AddressError as error:
        raise UsageError(f"{flag}: {error}") from error


def _settings(
    given: argparse.Namespace, endpoints: Sequence[Endpoint], environment: Mapping[str, str]
) -> Settings:
    return Settings(
        shard_id=given.id,
        epoch=0,
        seed=b"",
        providers=tuple(endpoint.name for endpoint in endpoints) or (DEFAULT_NAME,),
        options=Options(
            cycle_interval_ns=given.cycle_interval,
            reclaim_cap=given.reclaim_cap_fraction,
            guard=given.empty_rollup_guard,
            paused=given.actuation_paused,
            dry_run=given.dry_run,
            max_actions=given.max_actions_per_cycle,
            idle_hold_ns={
                CapacityType.ON_DEMAND: given.idle_hold_on_demand,
                CapacityType.SPOT: given.idle_hold_spot,
            },
        ),
        min_cycle_spacing_ns=given.min_cycle_spacing,
        concurrency=given.execute_concurrency,
        bootstrap_timeout_ns=given.bootstrap_timeout,
        execute_timeout_ns=given.execute_timeout,
        available_interval_ns=given.available_capacity_interval or duration("5s"),
        warmup_cycles=given.metrics_warmup_cycles,
        local_bootstrap=given.local_bootstrap,
        phase_attribution=given.phase_attribution_log or environment.get("BIGFLEET_PHASEDUMP") == "1",
    )


def _seeds(given: argparse.Namespace, named: Named) -> Seeds:
    if given.seed_configured_per_cluster and not given.seed_cluster_total:
        flag = named("seed-configured-per-cluster")
        raise UsageError(f"{flag} needs --seed-cluster-total: the number of clusters")
    if not 0 <= given.speculative_shed_multiplier <= 1:
        flag = named("speculative-shed-multiplier")
        raise UsageError(f"{flag} is the share that is kept: give a number from 0 to 1")
    ordinal = given.id.rpartition("-")[2]
    return Seeds(
        idle=given.seed_machines,
        speculative=given.seed_speculative,
        spot=given.seed_spot,
        configured_per_cluster=given.seed_configured_per_cluster,
        cluster_total=given.seed_cluster_total,
        cluster_stride=given.seed_cluster_stride or 1,
        ordinal=int(ordinal) if ordinal.isdecimal() and len(ordinal) < 10 else 0,
        archetypes=given.archetypes,
        density=given.seed_density_multiplier,
        failures_per_s=given.failure_rate_per_sec,
        shed_at_s=given.speculative_shed_at_seconds,
        shed_to=given.speculative_shed_multiplier,
    )


def _refuse_fake_flags(given: argparse.Namespace, named: Named) -> None:
    """A real provider cannot be seeded, and must not be handed blobs that nobody made (B6)."""
    defaults = {**_FAKE_ONLY, "local-bootstrap": False}
    wrong = [name for name, value in defaults.items() if getattr(given, name.replace("-", "_")) != value]
    if wrong:
        flags = ", ".join(map(named, wrong))
        raise UsageError(
            f"{flags}: only for the in-process fake, but {named('provider-addr')} names a provider;"
            " leave one or the other out"
        )


def _parser() -> Parser:
    parser = Parser("shard", "Decide for a slice of machines and drive their providers.")
    add, switch = parser.add, parser.switch
    add("listen", ":7780", "gRPC address for operators and tools; without a host on all interfaces")
    add("metrics-addr", ":8780", "plain HTTP for metrics and probes; 0 is none")
    add("id", "shard-0", "stable id of this shard; a certificate must carry it")
    add("data-dir", "./data", "folder for epoch, lock, domains, PAUSE and recording", metavar="DIR")
    add("provider-addr", "", "[name=]host:port,...; empty: a fake provider in this process")
    add("max-actions-per-cycle", 0, "actions that one cycle may start; 0: no limit", **_NUMBER)
    add("execute-concurrency", 32, "provider mutations in flight", **_NUMBER)
    switch("incremental-reconcile", False, "ask providers for changes since the last List")
    add("full-reconcile-interval", "10m", "with it: how often everything is listed", **_TIME)
    add("available-capacity-interval", "5s", "least time between two hints on one profile; 0: 5s", **_TIME)
    add("metrics-warmup-cycles", 0, "first cycles left out of the cycle histograms", **_NUMBER)
    switch("actuation-paused", False, "decide and execute nothing")
    switch("dry-run", False, "decide, log each action and execute nothing")
    add(
        "reclaim-cap-fraction",
        "0.05",
        "share of a cluster's machines reclaimed in a cycle; 0: no cap",
        **_SHARE,
    )
    switch("empty-rollup-guard", True, "hold a roll-up that shrinks to almost nothing until it is confirmed")
    add("audit-log", "", "file for one JSON line per action, or stdout; empty: none", metavar="PATH")
    switch("local-bootstrap", False, "fake only: configure without asking an operator for a blob")
    switch("phase-attribution-log", False, "every 20th cycle log where demand and machines went")
    for name in ("cert", "key", "ca"):
        add(f"tls-{name}", "", "all three for mutual TLS, none for plaintext", metavar="FILE")
    switch("insecure", False, "allow plaintext beyond this machine")
    add("cycle-interval", "10s", "a cycle runs at least this often", **_TIME)
    add("min-cycle-spacing", "1s", "least time between the starts of two cycles", **_TIME)
    add("bootstrap-timeout", "30s", "for an operator's answer to one bootstrap request", **_TIME)
    add("execute-timeout", "30s", "for a provider's answer, attempts and all", **_TIME)
    add("idle-hold-on-demand", "600s", "how long an Idle on-demand machine is kept", **_TIME)
    add("idle-hold-spot", "60s", "how long an Idle spot machine is kept", **_TIME)
    add("epoch-floor", 0, "least epoch; give one above the last after losing the data dir", **_NUMBER)
    add("record-dir", "", "folder of the recording; empty: record in the data dir", metavar="DIR")
    add("record-max", "256MiB", "size of the recording; 0: none", type=size, metavar="SIZE")
    add("log-format", "json", "form of the log", choices=("json", "text"))
    add("log-level", "info", "least level that is written", choices=tuple(LEVELS))
    switch("debug-endpoints", False, "show /debug pages to other machines too")
    add("seed-machines", 0, "fake only: Idle machines", **_NUMBER)
    add("seed-speculative", 0, "fake only: on-demand slots that can be created", **_NUMBER)
    add("seed-spot", 0, "fake only: cheaper spot slots", **_NUMBER)
    add("seed-configured-per-cluster", 0, "fake only: machines that serve each cluster already", **_NUMBER)
    add("seed-cluster-total", 0, "fake only: number of clusters, kwok-cluster-0 and on", **_NUMBER)
    add("seed-cluster-stride", 0, "fake only: take every n-th cluster, from the number in --id", **_NUMBER)
    add(
        "archetypes",
        "",
        "fake only: JSON array of workload archetypes that machines are made for",
        metavar="FILE",
    )
    add("seed-density-multiplier", 1, "fake only: allocatable = n times the base shape", **_NUMBER)
    add(
        "failure-rate-per-sec",
        0.0,
        "fake only: Configured machines that break, a second",
        type=amount,
        metavar="RATE",
    )
    add(
        "speculative-shed-at-seconds", 0.0, "fake only: when slots vanish; 0: never", type=amount, metavar="S"
    )
    add(
        "speculative-shed-multiplier",
        1.0,
        "fake only: share of the slots that is kept",
        type=float,
        metavar="F",
    )
    return parser


_NUMBER: Final[dict[str, Any]] = {"type": whole_number, "metavar": "N"}
_TIME: Final[dict[str, Any]] = {"type": duration, "metavar": "TIME"}
_SHARE: Final[dict[str, Any]] = {"type": fraction, "metavar": "SHARE"}
_FAKE_ONLY: Final = {
    "seed-machines": 0,
    "seed-speculative": 0,
    "seed-spot": 0,
    "seed-configured-per-cluster": 0,
    "seed-cluster-total": 0,
    "seed-cluster-stride": 0,
    "archetypes": "",
    "seed-density-multiplier": 1,
    "failure-rate-per-sec": 0.0,
    "speculative-shed-at-seconds": 0.0,
    "speculative-shed-multiplier": 1.0,
}
"""Options of the in-process fake, and what they are when nobody gives them."""
