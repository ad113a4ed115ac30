"""What the kit holds of a machine, and the bytes it is published as.

Protobuf lets a message be written in pieces, so a record is two of them: the machine's own part, written when
it changes, and the part it shares with every machine of its shape, written once. A List of 100,000 machines
is then one join of bytes that already exist, and a machine costs the memory of its own few fields.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, cast
from weakref import WeakValueDictionary

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import CapacityType, HostRef, MachineState, QuantityError
from bigfleet_base.model.lifecycle import Rpc
from bigfleet_base.model.quantity import NANO, format_quantity, parse_quantity, prints_binary
from bigfleet_providerkit.backend import MachineView

DEFAULT_SPOT_PROBABILITY: Final = 0.05
"""An hour's risk of a spot machine whose provider does not know better (P-92)."""

_HIDDEN_LABELS: Final = frozenset(
    {
        *("instance-type", "instance_type", "instanceType", "zone", "availability-zone"),
        *("availability_zone", "capacity-type", "capacity_type", "capacityType"),
    }
)
_OWNED: Final = (CapacityType.BARE_METAL,)


class Kind(StrEnum):
    """The four transitions, as metrics and ``last_error`` name them."""

    CREATE = "create"
    CONFIGURE = "configure"
    DRAIN = "drain"
    DELETE = "delete"

    @property
    def place(self) -> int:
        """Where ``Slot.operations`` has it."""
        return _PLACES[self]

    @property
    def rpc(self) -> Rpc:
        """The call that starts it."""
        return Rpc(self.value.capitalize())


_PLACES: Final = {kind: place for place, kind in enumerate(Kind)}


class ShapeError(ValueError):
    """An offering or a host that must not be published; the message names it and says why."""


@dataclass(frozen=True, eq=False)
class Shape:
    """What a machine is, apart from its life: shared by all machines alike."""

    instance_type: str
    zone: str
    capacity_type: CapacityType
    price_per_hour: float
    interruption_probability: float
    allocatable: Mapping[str, str]
    resources: Mapping[str, str]
    labels: Mapping[str, str]
    wire: bytes = field(repr=False)

    def vary(
        self,
        *,
        price_per_hour: float | None = None,
        interruption_probability: float | None = None,
        allocatable: Mapping[str, str] | None = None,
        resources: Mapping[str, str] | None = None,
    ) -> "Shape":
        """This shape with other values for what is given."""
        return make_shape(
            self.instance_type,
            self.zone,
            self.capacity_type,
            self.price_per_hour if price_per_hour is None else price_per_hour,
            self.interruption_probability if interruption_probability is None else interruption_probability,
            self.allocatable if allocatable is None else allocatable,
            self.resources if resources is None else resources,
            self.labels,
            owned=True,
        )


# One object for equal shapes; those that no machine has any more go by themselves.
_SHAPES: Final[WeakValueDictionary[bytes, Shape]] = WeakValueDictionary()


def make_shape(
    instance_type: str,
    zone: str,
    capacity_type: CapacityType,
    price_per_hour: float | None,
    interruption_probability: float | None,
    allocatable: Mapping[str, str],
    resources: Mapping[str, str],
    labels: Mapping[str, str],
    *,
    owned: bool = False,
) -> Shape:
    """Check what is to be published (provider.md §7) and write its bytes; ShapeError says what is wrong."""
    for name, text in (("instance_type", instance_type), ("zone", zone)):
        if not _is_text(text):
            raise ShapeError(f"{name} is {text!r}, not a text")
    if not instance_type:
        raise ShapeError("instance_type is empty")
    if not zone:
        raise ShapeError("zone is empty; where there is one zone only, name it, for example local")
    if not _is_capacity_type(capacity_type):
        raise ShapeError(
            f"capacity_type is {capacity_type!r}, not one of bare_metal, reserved, on_demand, spot"
        )
    if price_per_hour is None:
        raise ShapeError(
            "price_per_hour is unknown; give it, or leave the offering out (0 would win every choice)"
        )
    if not 0 <= _number(price_per_hour) < math.inf:
        raise ShapeError(
            f"price_per_hour is {price_per_hour!r}; it must be a finite number of USD, at least 0"
        )
    if price_per_hour == 0 and not owned and capacity_type not in _OWNED:
        raise ShapeError("price_per_hour is 0, which only bare metal or prepaid reserved capacity may be")
    if interruption_probability is None:
        interruption_probability = DEFAULT_SPOT_PROBABILITY if capacity_type is CapacityType.SPOT else 0.0
    if not 0.0 <= _number(interruption_probability) <= 1.0:
        raise ShapeError(
            f"interruption_probability is {interruption_probability!r}; it must be between 0 and 1"
        )
    if capacity_type is CapacityType.SPOT and interruption_probability == 0:
        raise ShapeError("interruption_probability of a spot machine must be above 0")
    check_texts("labels", labels)
    if hidden := _HIDDEN_LABELS & labels.keys():
        raise ShapeError(f"label {min(hidden)} repeats a field of the machine; remove it")
    message = pb.Machine(
        instance_type=instance_type,
        zone=zone,
        capacity_type=cast("pb.CapacityType.ValueType", int(capacity_type)),
        price_per_hour=price_per_hour,
        interruption_probability=interruption_probability,
        labels=labels,
    )
    published_resources = publish_quantities("resources", resources)
    published_allocatable = publish_quantities("allocatable", allocatable)
    if published_resources:
        message.resources.resources.update(published_resources)
    if published_allocatable:
        message.allocatable.resources.update(published_allocatable)
    wire = message.SerializeToString(deterministic=True)
    shape = _SHAPES.get(wire)
    if shape is None:
        shape = Shape(
            instance_type,
            zone,
            capacity_type,
            price_per_hour,
            interruption_probability,
            MappingProxyType(published_allocatable),
            MappingProxyType(published_resources),
            MappingProxyType(dict(labels)),
            wire,
        )
        _SHAPES[wire] = shape
    return shape


def read_shape(wire: bytes) -> Shape:
    """A shape from the bytes it was kept as."""
    known = _SHAPES.get(wire)
    if known is not None:
        return known
    message = pb.Machine.FromString(wire)
    return make_shape(
        message.instance_type,
        message.zone,
        CapacityType(message.capacity_type),
        message.price_per_hour,
        message.interruption_probability,
        message.allocatable.resources,
        message.resources.resources,
        message.labels,
        owned=True,
    )


def check_texts(name: str, texts: object) -> None:
    """ShapeError for what cannot be published as a map of texts."""
    if not isinstance(texts, Mapping):
        raise ShapeError(f"{name} is {texts!r}, not a mapping of texts to texts")
    for key, value in texts.items():
        if not (_is_text(key) and _is_text(value)):
            raise ShapeError(f"{name}[{key!r}] is {value!r}; both must be texts")


def is_host_ref(ref: object) -> bool:
    """Whether a backend has named a host with something that can be published."""
    return bool(ref) and _is_text(ref)


def publish_quantities(name: str, texts: object) -> dict[str, str]:
    """Rewrite quantities for readers that know only ``m k M G Ki Mi Gi``, without changing a value."""
    if not isinstance(texts, Mapping):
        raise ShapeError(f"{name} is {texts!r}, not a mapping of names to quantities")
    published = {}
    for resource, text in texts.items():
        if not _is_text(resource) or not isinstance(text, str):
            raise ShapeError(f"{name}[{resource!r}] is {text!r}; both must be texts")
        try:
            nano = parse_quantity(text)
        except QuantityError as error:
            raise ShapeError(f"{name}[{resource}]: {error}") from None
        if nano < 0 or (nano == 0 and name == "resources"):
            raise ShapeError(f"{name}[{resource}] is {text}; it must be above 0")
        if nano % 1_000_000:
            whole, fraction = divmod(nano, NANO)
            published[resource] = f"{whole}.{fraction:09d}".rstrip("0")
        else:
            published[resource] = format_quantity(nano, binary=prints_binary(resource), largest="G")
    return published


NO_HOST: Final = HostRef()
NO_MARKS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType({})
NO_OPERATIONS: Final = ("", "", "", "")


@dataclass(slots=True)
class Slot:
    """One machine: a value, replaced whole when it changes.

    Not frozen only because that doubles the time to make one, and every call makes three; nothing may change
    a slot that a table holds.
    """

    id: str
    offer: str
    """The offering it belongs to; empty for a discovered host that has none."""
    shape: Shape
    state: MachineState
    revision: int = 0
    """When its published record last changed."""
    host: HostRef = NO_HOST
    cluster: str = ""
    binding: bytes = b""
    """The map that Configure sent, as it stands in a record."""
    note: bytes = b""
    """What Create or Drain sent, without the keys of the binding (ruling R15)."""
    last_error: str = ""
    operations: tuple[str, str, str, str] = NO_OPERATIONS
    """The operation recorded for each Kind, empty where there is none."""
    marks: Mapping[str, tuple[int, int]] = field(default_factory=lambda: NO_MARKS)
    """By shard, the newest (epoch, sequence) accepted; never changed in place."""
    grace: int = 0
    """Of the drain under way."""
    risk: float = 0.0
    """Interruption probability that the substrate's notice asks for at least."""
    refined: bytes = b""
    """A Machine record with the resources and allocatable that Create found, if it found other ones."""
    withheld: bool = False
    """The substrate has no capacity for it: it is in no List and answers NOT_FOUND."""
    retiring: bool = False
    """Its offering has shrunk: it leaves when it is next a free slot."""
    wire: bytes = field(default=b"", repr=False)
    """Tag, length and own part of its entry in a MachineList; the shape's bytes follow."""

    @property
    def record(self) -> bytes:
        """The whole Machine record."""
        return self.wire[_header_size(self.wire) :] + self.shape.wire

    def but(self, **values: Any) -> "Slot":
        """This machine with other values for what is given; ``dataclasses.replace`` takes thrice as long."""
        changed = Slot(*_values(self))
        for name, value in values.items():
            setattr(changed, name, value)
        return changed

    def view(self) -> MachineView:
        """What a backend is shown of it."""
        return MachineView(
            id=self.id,
            instance_type=self.shape.instance_type,
            zone=self.shape.zone,
            capacity_type=self.shape.capacity_type,
            labels=self.shape.labels,
            allocatable=self.shape.allocatable or self.shape.resources,
            host_ref=self.host.ref,
            cluster=self.cluster,
            metadata=MappingProxyType(read_metadata(self.binding)),
        )


_values: Final = attrgetter(*(known.name for known in fields(Slot)))


def entry(slot: Slot) -> bytes:
    """``Slot.wire`` for this slot."""
    own = pb.Machine(
        id=slot.id,
        state=cast("pb.MachineState.ValueType", int(slot.state)),
        cluster=slot.cluster,
        last_error=slot.last_error,
    )
    if slot.host:
        own.host.provider = slot.host.provider
        own.host.ref = slot.host.ref
    part = own.SerializeToString() + slot.note + slot.binding
    return _LIST_ENTRY + _varint(len(part) + len(slot.shape.wire)) + part


def ack(operation_id: str, slot: Slot) -> bytes:
    """A TransitionAck with the slot's record as it is now."""
    record = slot.record
    return b"".join(
        (
            pb.TransitionAck(operation_id=operation_id).SerializeToString(),
            _ACK_MACHINE,
            _varint(len(record)),
            record,
        )
    )


def write_metadata(metadata: Mapping[str, str]) -> bytes:
    """A metadata map as it stands in a record; equal maps give equal bytes."""
    if not metadata:
        return b""
    return pb.Machine(shard_metadata=metadata).SerializeToString(deterministic=True)


def read_metadata(wire: bytes) -> dict[str, str]:
    """The map that ``write_metadata`` was given."""
    return dict(pb.Machine.FromString(wire).shard_metadata) if wire else {}


def write_refinement(allocatable: Mapping[str, str] | None, resources: Mapping[str, str] | None) -> bytes:
    """What a created host says of its size, checked; empty when it says nothing."""
    message = pb.Machine()
    if allocatable:
        message.allocatable.resources.update(publish_quantities("allocatable", allocatable))
    if resources:
        message.resources.resources.update(publish_quantities("resources", resources))
    return message.SerializeToString(deterministic=True)


def refine(base: Shape, refined: bytes, risk: float) -> Shape:
    """The shape a machine is published with: its offering's, as the host and its notices change it."""
    if not refined and risk <= base.interruption_probability:
        return base
    message = pb.Machine.FromString(refined)
    return base.vary(
        allocatable=dict(message.allocatable.resources) or None,
        resources=dict(message.resources.resources) or None,
        interruption_probability=max(risk, base.interruption_probability),
    )


def _number(value: object) -> float:
    """As a float; not a number for what is none."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.inf


def _is_capacity_type(value: object) -> bool:
    return isinstance(value, CapacityType) and value is not CapacityType.UNSPECIFIED


def _is_text(text: object) -> bool:
    """Whether protobuf takes it: not half of a surrogate pair, as a file name that is no UTF-8 has."""
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_LIST_ENTRY: Final = b"\x0a"
"""Tag of MachineList.machines."""
_ACK_MACHINE: Final = b"\x12"
"""Tag of TransitionAck.machine."""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _header_size(wire: bytes) -> int:
    size = 2
    while wire[size - 1] & 0x80:
        size += 1
    return size
