"""The conformance suite: whether a provider is what BigFleet needs, asked over the wire alone.

``bigfleet-conformance`` is the command, ``run`` the same from Python, ``pytest_plugin`` one test per id.
Checks are in ``areas``, what they check in ``catalogue``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bigfleet_providerkit.conformance.options import Options
    from bigfleet_providerkit.conformance.report import Report
    from bigfleet_providerkit.conformance.runner import Progress

__all__ = ["certify", "run"]


def run(target: str = "", profiles: tuple[str, ...] = ("core",), **options: Any) -> "Report":
    """Check the provider at an address (or ``provider_cmd=…``); further names are those of ``Options``."""
    from bigfleet_providerkit.conformance.options import Options

    return certify(Options(target=target, profiles=tuple(profiles), **options))


def certify(options: "Options", progress: "Progress | None" = None) -> "Report":
    """Run the suite; UnreachableError when nobody answers."""
    # Here and not above: importing the package loads no gRPC.
    import asyncio

    from bigfleet_providerkit.conformance.runner import Run, Unwatched

    return asyncio.run(Run(options, progress or Unwatched()).certify())
