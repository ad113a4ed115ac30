"""A provider's options (provider.md §12.5)."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Final

from bigfleet_base import options
from bigfleet_base.options import UsageError, duration, new_parser
from bigfleet_base.telemetry import LEVELS
from bigfleet_providerkit.backend import Backend

PREFIX: Final = "BIGFLEET_PROVIDER_"

__all__ = ["PREFIX", "UsageError", "duration", "parse"]


def parse(backend: type[Backend], argv: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """The options in force; UsageError or SystemExit for a mistake."""
    return options.parse(_parser(backend), argv, environment, PREFIX)


def _parser(backend: type[Backend]) -> argparse.ArgumentParser:
    doc = (backend.__doc__ or "A BigFleet capacity provider.").strip()
    parser = new_parser(doc.splitlines()[0], PREFIX)
    add = parser.add_argument
    add("--addr", default=":9000", help="where to serve gRPC; without a host on all interfaces")
    add("--provider", metavar="NAME", default="", help="this deployment; constant for the life of its hosts")
    add("--state", metavar="PATH", default="", help="the store; without one all is lost with the process")
    add("--require-state", action="store_true", help="refuse to start without --state")
    add("--restored", action="store_true", help="the store is a backup brought back; give it once")
    add("--offerings", metavar="FILE", default="", help="JSON array of what may be created")
    add("--seed-count", type=int, metavar="N", help="without --offerings: slots of built-in ones, else 32")
    for kind in ("create", "configure", "drain", "delete"):
        default = "10m" if kind == "drain" else "5m"
        add(f"--timeout-{kind}", type=duration, metavar="TIME", help=f"for a {kind}, else {default}")
    add("--reconcile-interval", type=duration, metavar="TIME", help="look at hosts, else 2m; 0 is never")
    add("--quarantine", type=duration, metavar="TIME", help="how long Failed stays unrepaired, else 60s")
    add("--max-concurrent", type=int, metavar="N", default=32, help="backend calls at once, each method")
    add("--rate", type=float, metavar="N", default=0.0, help="backend calls a second, each method; 0 is any")
    add("--shutdown-window", type=duration, metavar="TIME", default="10s", help="for backend calls under way")
    add("--metrics-addr", default=":9090", help="plain HTTP for probes and metrics; 0 is none")
    add("--reflection", action="store_true", help="serve gRPC reflection")
    for name in ("cert", "key", "ca"):
        add(f"--tls-{name}", metavar="FILE", default="", help="all three for mutual TLS")
    add("--insecure", action="store_true", help="allow plaintext beyond this machine")
    add("--allow-shard", action="append", metavar="ID", default=[], help="only these may mutate; repeatable")
    add("--use-fake-backend", action="store_true", help="simulated machines instead of the substrate's")
    add("--fault-hooks", action="store_true", help="for conformance tests: faults on request")
    add("--compat", action="store_true", help="no epoch floor; negative token numbers are ordinary")
    add("--log-level", choices=tuple(LEVELS), default="info", help="least level that is written")
    add("--log-format", choices=("json", "text"), default="json", help="form of the log")
    backend.add_options(parser)
    return parser
