"""A provider without machines (provider.md §13): asynchronous, failing and slow like the real ones.

Two doors lead to one substrate and one core: ``FakeProvider`` under virtual time, in which a simulation can
crash it anywhere; and ``FakeBackend`` for the kit's gRPC server (``python -m bigfleet_providerkit.fake``).
"""

from bigfleet_providerkit.fake.backend import FakeBackend
from bigfleet_providerkit.fake.hosts import FakeHost
from bigfleet_providerkit.fake.knobs import INSTANT, Knobs, Latency, Preseed
from bigfleet_providerkit.fake.provider import CrashPoint, FakeProvider, Unavailable
from bigfleet_providerkit.fake.substrate import Substrate

__all__ = [
    "INSTANT",
    "CrashPoint",
    "FakeBackend",
    "FakeHost",
    "FakeProvider",
    "Knobs",
    "Latency",
    "Preseed",
    "Substrate",
    "Unavailable",
]
