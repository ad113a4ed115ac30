"""What a provider can do, as far as it has said so or shown it (P-142)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bigfleet_base.model import CapacityType


@dataclass(slots=True)
class Capabilities:
    """None where a provider says nothing; it is then asked the way the base contract allows."""

    name: str = ""
    version: str = ""
    delete: bool | None = None
    cursor: bool | None = None
    tombstones: bool | None = None
    epoch_floor: bool | None = None
    max_metadata_keys: int | None = None
    max_metadata_bytes: int | None = None
    max_blob_bytes: int | None = None
    undeletable: set[CapacityType] = field(default_factory=set)
    """Capacity types for which a Delete was answered UNIMPLEMENTED."""

    def can_delete(self, capacity_type: CapacityType) -> bool:
        return self.delete is not False and capacity_type not in self.undeletable

    def excess(self, metadata: Mapping[str, str], blob: bytes = b"") -> str:
        """What of a request is above the provider's caps, or an empty text.

        A request above the transport's limit would be answered RESOURCE_EXHAUSTED, which reads as a reason
        to send it again.
        """
        size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
        for what, amount, cap in (
            ("keys of metadata", len(metadata), self.max_metadata_keys),
            ("bytes of metadata", size, self.max_metadata_bytes),
            ("bytes of bootstrap blob", len(blob), self.max_blob_bytes),
        ):
            if cap is not None and amount > cap:
                return f"{amount} {what} are more than the {cap} that the provider takes"
        return ""
