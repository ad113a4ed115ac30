"""``run_provider``: a backend as a process."""

import argparse
import asyncio
import gc
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bigfleet_base.telemetry import Logs
from bigfleet_base.wire import TlsCredentials, TlsFiles, TransportError, parse_address
from bigfleet_base.wire.address import Address, parse_http_address
from bigfleet_base.wire.transport_errors import AddressError
from bigfleet_providerkit.backend import Backend
from bigfleet_providerkit.faults import with_fault_hooks
from bigfleet_providerkit.offerings import OfferingsError, read_offerings, seed_offerings
from bigfleet_providerkit.options import UsageError, parse
from bigfleet_providerkit.process import Provider, Serving, StartError
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import DEFAULT_TIMEOUTS, METHODS, Settings
from bigfleet_providerkit.store import StoreError
from bigfleet_providerkit.work import NANOS

_DEFAULT_SEEDS = 32
_TIMES = (120 * NANOS, 60 * NANOS)
"""Between two looks at the hosts, and of Failed before the first repair."""
_FAULT_TIMES = (1 * NANOS, 10 * NANOS)
# Almost nothing here dies old: by default the collector would walk live machines again and again.
_GC_THRESHOLD = (20_000, 20, 100)
_USER_ERRORS = (UsageError, StartError, StoreError, OfferingsError, TransportError, ValueError)


def main(
    backend: type[Backend], argv: Sequence[str] | None = None, provider: type[Provider] = Provider
) -> int:
    """Run until SIGTERM or SIGINT; the exit status says whether that was the end."""
    try:
        options = parse(backend, sys.argv[1:] if argv is None else argv, os.environ)
        made = _fake(backend) if options.use_fake_backend else _backend(backend, options)
        settings, serving = _settings(made, options), _serving(options)
        _give_offerings(made, options)
        logs = Logs(level=options.log_level, form=options.log_format)
        gc.set_threshold(*_GC_THRESHOLD)
        with logs.capture("provider"):
            try:
                asyncio.run(_serve(provider, made, settings, serving, logs))
            finally:
                logs.flush()
    except _USER_ERRORS as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(
    make: type[Provider], backend: Backend, settings: Settings, serving: Serving, logs: Logs
) -> None:
    provider = make(backend, settings, serving, logs.logger("provider", provider=settings.provider))
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    starting = loop.create_task(provider.start())
    stopped = loop.create_task(ended.wait())
    try:
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            # Ended is better than deaf: the store has everything, and a restart goes on from it.
            crashed = loop.create_task(provider.crashed())
            await asyncio.wait((crashed, stopped), return_when=asyncio.FIRST_COMPLETED)
            if crashed.done():
                crashed.result()
            crashed.cancel()
    finally:
        starting.cancel()
        await provider.stop()


def _backend(backend: type[Backend], options: argparse.Namespace) -> Backend:
    try:
        return backend.from_options(options)
    except OSError as error:
        raise UsageError(f"{backend.name or backend.__name__} cannot be started: {error}") from error


def _fake(backend: type[Backend]) -> Backend:
    """A simulated substrate under the provider's own name, for certification without credentials."""
    from bigfleet_providerkit.fake import FakeBackend

    fake = FakeBackend()
    fake.name, fake.version = backend.name, backend.version
    return fake


def _settings(backend: Backend, options: argparse.Namespace) -> Settings:
    name = options.provider or backend.name
    if not name:
        raise UsageError("--provider is missing; name this deployment, for example aws-eu-west-1")
    if options.max_concurrent < 1:
        raise UsageError(f"--max-concurrent is {options.max_concurrent}; it must be at least 1")
    if not 0 <= options.rate < math.inf:
        raise UsageError(f"--rate is {options.rate}; it must be a number that is not negative")
    # Faults must show within a test's patience.
    standard = dict.fromkeys(Kind, 2 * NANOS) if options.fault_hooks else DEFAULT_TIMEOUTS
    interval, quarantine = _FAULT_TIMES if options.fault_hooks else _TIMES
    given = {kind: getattr(options, f"timeout_{kind.value}") for kind in Kind}
    for kind, timeout in given.items():
        if timeout == 0:
            raise UsageError(f"--timeout-{kind.value} is 0, in which no {kind.value} ends; give it longer")
    return Settings(
        provider=name,
        version=backend.version,
        timeouts={kind: standard[kind] if given[kind] is None else given[kind] for kind in Kind},
        concurrency=dict.fromkeys(METHODS, options.max_concurrent),
        rates=dict.fromkeys(METHODS, options.rate) if options.rate else {},
        reconcile_interval=interval if options.reconcile_interval is None else options.reconcile_interval,
        quarantine=quarantine if options.quarantine is None else options.quarantine,
        allow_shards=frozenset(options.allow_shard),
        compat=options.compat,
        fault_hooks=options.fault_hooks,
    )


def _serving(options: argparse.Namespace) -> Serving:
    if options.require_state and not options.state:
        raise UsageError("--require-state is given and --state is not: give the store a path on a volume")
    if options.restored and not options.state:
        raise UsageError("--restored speaks of a store and --state names none")
    files = TlsFiles.from_flags(options.tls_cert, options.tls_key, options.tls_ca)
    metrics_address = "" if options.metrics_addr == "0" else options.metrics_addr
    _check_address("--addr", parse_address, options.addr)
    if metrics_address:
        _check_address("--metrics-addr", parse_http_address, metrics_address)
    return Serving(
        address=options.addr,
        state=Path(options.state) if options.state else None,
        restored=options.restored,
        tls=TlsCredentials(files, None) if files else None,
        insecure=options.insecure,
        metrics_address=metrics_address,
        reflection=options.reflection,
        shutdown_window=options.shutdown_window / NANOS,
    )


def _check_address(flag: str, parse: Callable[[str], Address], text: str) -> None:
    try:
        parse(text)
    except AddressError as error:
        raise UsageError(f"{flag}: {error}") from error


def _give_offerings(backend: Backend, options: argparse.Namespace) -> None:
    if options.offerings and options.seed_count is not None:
        raise UsageError("--offerings and --seed-count exclude each other: the file is the whole quota")
    if (options.seed_count or 0) < 0:
        raise UsageError(f"--seed-count is {options.seed_count}; it must not be negative")
    if options.offerings:
        backend.standard_offerings = read_offerings(Path(options.offerings))
    else:
        count = _DEFAULT_SEEDS if options.seed_count is None else options.seed_count
        backend.standard_offerings = seed_offerings(count)
    if options.fault_hooks:
        with_fault_hooks(backend)
