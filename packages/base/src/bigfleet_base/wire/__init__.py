"""Between processes: stubs ⇄ model with the contract's refusals, channels, identities, TLS.

The only place that knows protobuf field names.
"""

from bigfleet_base.wire.address import bound_address, parse_address, require_local_or_insecure
from bigfleet_base.wire.channel import LastingChannel, channel_options, dial, listen, server_options
from bigfleet_base.wire.demand import (
    RollupRefusedError,
    decode_requirements,
    encode_need,
    encode_requirements,
    encode_rollup,
)
from bigfleet_base.wire.identity import (
    ADMIN,
    READONLY,
    Identity,
    IdentityRefusedError,
    Role,
    authorise,
    authorise_claim,
    peer_identity,
)
from bigfleet_base.wire.lists import ListFrames, ListFramesError, scan_list
from bigfleet_base.wire.machines import ObservedMachine, decode_machine, encode_machine
from bigfleet_base.wire.records import RecordDecoder, Rejected, canonical_record, peek_id
from bigfleet_base.wire.tls import TlsCredentials, TlsFiles
from bigfleet_base.wire.transport_errors import TransportError

__all__ = [
    "ADMIN",
    "READONLY",
    "Identity",
    "IdentityRefusedError",
    "LastingChannel",
    "ListFrames",
    "ListFramesError",
    "ObservedMachine",
    "RecordDecoder",
    "Rejected",
    "Role",
    "RollupRefusedError",
    "TlsCredentials",
    "TlsFiles",
    "TransportError",
    "authorise",
    "authorise_claim",
    "bound_address",
    "canonical_record",
    "channel_options",
    "decode_machine",
    "decode_requirements",
    "dial",
    "encode_machine",
    "encode_need",
    "encode_requirements",
    "encode_rollup",
    "listen",
    "parse_address",
    "peek_id",
    "peer_identity",
    "require_local_or_insecure",
    "scan_list",
    "server_options",
]
