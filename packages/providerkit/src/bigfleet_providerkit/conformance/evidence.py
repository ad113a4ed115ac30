"""What was asked and answered: codes, states and ids, never blobs or metadata."""

import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_base.wire.provider_calls import Token

_KEPT: Final = 200
"""Entries at either end of a check; a soak makes thousands."""
BOUNDS_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_000, 5_000, 10_000)


@dataclass
class Latencies:
    """How long calls of one method took."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    longest_ms: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_MS, seconds * 1_000)] += 1
        self.longest_ms = max(self.longest_ms, seconds * 1_000)

    def as_dict(self) -> dict[str, Any]:
        named = {f"le_{bound}ms": n for bound, n in zip(BOUNDS_MS, self.counts, strict=False)}
        return {
            "calls": sum(self.counts),
            "longest_ms": round(self.longest_ms, 1),
            "buckets": {**named, "more": self.counts[-1]},
        }


class Evidence:
    """The calls of one check."""

    def __init__(self, latencies: dict[str, Latencies]) -> None:
        self._started = time.perf_counter()
        self._latencies = latencies
        self._entries: list[dict[str, Any]] = []
        self._dropped = 0

    def call(
        self,
        method: str,
        machine_id: str,
        token: Token,
        code: str,
        message: str,
        answer: pb.TransitionAck | pb.Machine | pb.MachineList | None,
        seconds: float,
    ) -> None:
        """Note a call."""
        self._latencies.setdefault(method, Latencies()).observe(seconds)
        entry: dict[str, Any] = {"call": method, "code": code}
        if machine_id:
            entry["machine"] = machine_id
        if token.shard_id or token.epoch or token.sequence:
            entry["token"] = [token.shard_id, token.epoch, token.sequence]
        if message:
            entry["message"] = message
        match answer:
            case pb.MachineList():
                entry["machines"] = len(answer.machines)
            case pb.Machine():
                entry["state"] = _state(answer)
            case pb.TransitionAck():
                entry["operation"] = answer.operation_id
                entry["state"] = _state(answer.machine)
        self._add(entry)

    def entries(self) -> list[Mapping[str, Any]]:
        """The calls in order; the middle of a long check is left out and counted."""
        if not self._dropped:
            return list(self._entries)
        left_out = {"call": "…", "left_out": self._dropped}
        return [*self._entries[:_KEPT], left_out, *self._entries[_KEPT:]]

    def _add(self, entry: dict[str, Any]) -> None:
        last = self._entries[-1] if self._entries else {}
        # Polling: the same answer again is counted.
        if entry["call"] == "Get" and all(last.get(key) == entry.get(key) for key in _SAME):
            last["times"] = last.get("times", 1) + 1
            return
        self._entries.append({"at": round(time.perf_counter() - self._started, 4), **entry})
        if len(self._entries) > 2 * _KEPT:
            del self._entries[_KEPT]
            self._dropped += 1


def _state(machine: pb.Machine) -> str:
    number = machine.state
    return MachineState(number).name if number in _STATES else str(number)


_SAME: Final = ("call", "code", "machine", "state", "message")
_STATES: Final = frozenset(int(state) for state in MachineState)
