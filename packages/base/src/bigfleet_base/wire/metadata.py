"""``shard_metadata``: the shard's notes on a machine, kept for it by the provider (wire.md §8.5).

The provider stores and echoes the map without looking into it; it is the only durable copy of what a
machine is assigned to. Each key is read by itself: an absent one leaves the field alone, an unknown one is
ignored, a malformed one is skipped and reported, so that one bad value never costs the others.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bigfleet_base.model import Preemptor

PREFIX: Final = "bigfleet.lucy.sh/"


@dataclass(frozen=True, slots=True)
class Notes:
    """What a metadata map says; None where it says nothing usable."""

    assigned_priority: int | None = None
    assigned_interruption_penalty: float | None = None
    assigned_reclamation_penalty: float | None = None
    assigned_need_fingerprint: str | None = None
    assigned_group: str | None = None
    target_cluster: str | None = None
    instruction_id: str | None = None
    preemptor: Preemptor | None = None
    malformed: tuple[str, ...] = ()
    """Keys whose values were skipped."""


def encode_assignment(
    priority: int, interruption_penalty: float, reclamation_penalty: float, need_fingerprint: str, group: str
) -> dict[str, str]:
    """The five keys of a binding, as sent with Configure; all of them, always."""
    return {
        _PRIORITY: str(priority),
        _INTERRUPTION: _format_dollars(interruption_penalty),
        _RECLAMATION: _format_dollars(reclamation_penalty),
        _FINGERPRINT: need_fingerprint,
        _GROUP: group,
    }


def encode_target(cluster: str) -> dict[str, str]:
    """What a Create carries besides the five keys: the cluster it is made for (ruling R15)."""
    return {_TARGET: cluster}


def encode_drain(instruction_id: str, preemptor: Preemptor | None) -> dict[str, str]:
    """What a Drain carries: its instruction and, in a preemption, who the machine goes to."""
    notes = {_INSTRUCTION: instruction_id}
    if preemptor is not None:
        notes[_PREEMPTOR_CLUSTER] = preemptor.cluster
        notes[_PREEMPTOR_PRIORITY] = str(preemptor.priority)
        notes[_PREEMPTOR_FINGERPRINT] = preemptor.need_fingerprint
        notes[_PREEMPTOR_GROUP] = preemptor.group
    return notes


def decode_notes(metadata: Mapping[str, str]) -> Notes:
    """Read a map that a provider echoed."""
    values: dict[str, Any] = {}
    malformed = []
    for key, (name, read) in _FIELDS.items():
        text = metadata.get(key)
        if text is None:
            continue
        try:
            values[name] = read(text)
        except ValueError:
            malformed.append(key)
    preemptor = None
    # Without its cluster and fingerprint a preemptor names nobody.
    if _PREEMPTOR_CLUSTER in metadata and _PREEMPTOR_FINGERPRINT in metadata:
        preemptor = Preemptor(
            metadata[_PREEMPTOR_CLUSTER],
            values.get("preemptor_priority", 0),
            metadata[_PREEMPTOR_FINGERPRINT],
            metadata.get(_PREEMPTOR_GROUP, ""),
        )
    values.pop("preemptor_priority", None)
    return Notes(**values, preemptor=preemptor, malformed=tuple(malformed))


def _read_int32(text: str) -> int:
    if not _INTEGER.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
        raise ValueError(text)
    return int(text)


def _read_dollars(text: str) -> float:
    # Narrower than float(): no underscores, blanks or NaN, which would poison every comparison. And nobody
    # earns by an interruption.
    if not _FLOAT.fullmatch(text) or (dollars := float(text)) < 0:
        raise ValueError(text)
    return dollars


def _format_dollars(value: float) -> str:
    assert not math.isnan(value)
    return f"{value:.17g}"


_PRIORITY: Final = PREFIX + "assigned-priority"
_INTERRUPTION: Final = PREFIX + "assigned-interruption-penalty-dollars"
_RECLAMATION: Final = PREFIX + "assigned-reclamation-penalty-dollars"
_FINGERPRINT: Final = PREFIX + "assigned-need-fingerprint"
_GROUP: Final = PREFIX + "assigned-group"
_TARGET: Final = PREFIX + "target-cluster"
_INSTRUCTION: Final = PREFIX + "instruction-id"
_PREEMPTOR_CLUSTER: Final = PREFIX + "preemptor-cluster"
_PREEMPTOR_PRIORITY: Final = PREFIX + "preemptor-priority"
_PREEMPTOR_FINGERPRINT: Final = PREFIX + "preemptor-need-fingerprint"
_PREEMPTOR_GROUP: Final = PREFIX + "preemptor-group"

_FIELDS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    _PRIORITY: ("assigned_priority", _read_int32),
    _INTERRUPTION: ("assigned_interruption_penalty", _read_dollars),
    _RECLAMATION: ("assigned_reclamation_penalty", _read_dollars),
    _FINGERPRINT: ("assigned_need_fingerprint", str),
    _GROUP: ("assigned_group", str),
    _TARGET: ("target_cluster", str),
    _INSTRUCTION: ("instruction_id", str),
    _PREEMPTOR_PRIORITY: ("preemptor_priority", _read_int32),
}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_FLOAT: Final = re.compile(r"[+-]?(inf|infinity|([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?)", re.IGNORECASE)
