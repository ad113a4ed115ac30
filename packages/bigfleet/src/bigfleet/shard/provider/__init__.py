"""The shard's side of the provider contract (provider.md §16).

One ``client.ProviderClient`` for each provider; two of them share nothing but the fencing counter, so that a
provider that is down or sick costs its own slice only. Rules and I/O are apart: how often to try
again (``retry``), when to stop mutating (``breaker``), what to ask a List for (``cursor``), which records are
news (``ledger``, ``listing``) and which capabilities are known (``capabilities``) take time and jitter as
arguments and do no I/O; ``client`` does the calls. Messages are ``bigfleet_base.wire``'s business.

Importing this package loads no gRPC: what is exported here is what the shard's core sees of a provider.
"""

from bigfleet.shard.provider.capabilities import Capabilities
from bigfleet.shard.provider.failures import CallFailedError, FailureKind
from bigfleet.shard.provider.fence import Fence

__all__ = ["CallFailedError", "Capabilities", "FailureKind", "Fence"]
