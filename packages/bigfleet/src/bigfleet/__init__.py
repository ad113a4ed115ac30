"""The control plane and the cluster side of BigFleet."""

import bigfleet_base  # noqa: F401  # before anything here can load grpc: it pins TLS 1.3
