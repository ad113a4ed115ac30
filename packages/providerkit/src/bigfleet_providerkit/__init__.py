"""Everything a BigFleet capacity provider needs but the machines."""

import bigfleet_base  # noqa: F401  # before anything here can load grpc: it pins TLS 1.3
