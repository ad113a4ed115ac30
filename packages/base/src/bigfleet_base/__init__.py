"""What every BigFleet process speaks: contract, values, transport, metrics and logs."""

from bigfleet_base import _grpc_env as _grpc_env  # first: gRPC reads its environment when it is imported
