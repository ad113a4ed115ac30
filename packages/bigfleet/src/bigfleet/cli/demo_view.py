"""What the demo shows: read from the endpoints of its processes, drawn in the terminal."""

import json
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

import grpc
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bigfleet_base.model import MachineState, format_quantity
from bigfleet_base.model.quantity import prints_binary
from bigfleet_base.wire import channel_options
from bigfleet_base.wire.views import SeenNeed, decode_view

if TYPE_CHECKING:
    from bigfleet.cli.demo import Demo

INSPECT: Final = "/bigfleet.v1alpha1.ShardRead/InspectNeeds"
DEADLINE_S: Final = 2.0
LAST_ACTIONS: Final = 8
_UNPAID: Final = frozenset({"Speculative", "Failed"})
_LOCAL: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Reads pages of this machine, whatever proxy the environment names for others."""
_STATES: Final = [state.title for state in MachineState if state is not MachineState.UNSPECIFIED]


class Observer:
    """Asks the processes how they are. One that does not answer is shown as it is: absent."""

    def __init__(self, demo: "Demo") -> None:
        self._demo = demo
        self._began = time.monotonic()
        self._channel = grpc.insecure_channel(demo.shard_address, options=channel_options(local=True))
        self._inspect: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(INSPECT)
        self._audit_read = 0
        self._recent: deque[dict[str, Any]] = deque(maxlen=LAST_ACTIONS)

    def close(self) -> None:
        self._channel.close()

    def look(self) -> dict[str, Any]:
        """All there is to see now."""
        shard, provider = _metrics(self._demo.shard_http), _metrics(self._demo.provider_http)
        needs = self._needs()
        self._read_audit()
        machines: dict[str, Counter[str]] = {}
        for labels, value in shard.get("bigfleet_shard_inventory_machines", []):
            if value:
                kinds = machines.setdefault(labels["state"], Counter())
                kinds[labels["capacity_type"]] += int(value)
        reasons = Counter(need["reason"] for need in needs if not need["met"])
        return {
            "seconds": round(time.monotonic() - self._began, 1),
            "processes": {part.name: part.state for part in self._demo.parts},
            "machines": {state: dict(kinds) for state, kinds in sorted(machines.items())},
            "dollars_per_hour": round(
                sum(
                    value
                    for labels, value in shard.get("bigfleet_shard_inventory_hourly_cost", [])
                    if labels["state"] not in _UNPAID
                ),
                4,
            ),
            "needs": {
                "met": sum(need["met"] for need in needs),
                "unmet": sum(not need["met"] for need in needs),
                "reasons": dict(reasons),
                "rows": needs,
            },
            "actions": {
                labels["kind"]: int(value)
                for labels, value in shard.get("bigfleet_shard_actions_total", [])
                if value
            },
            "sessions": int(sum(v for _, v in shard.get("bigfleet_shard_active_sessions", []))),
            "provider": {
                "answers": bool(provider),
                "machines": int(sum(v for _, v in provider.get("bigfleet_provider_machines", []))),
            },
            "last_actions": list(self._recent),
        }

    def _needs(self) -> list[dict[str, Any]]:
        rows = []
        try:
            for data in self._inspect(b"", timeout=DEADLINE_S):
                need = decode_view(data)
                if need is not None:
                    rows.append(_row(need))
        except grpc.RpcError:
            return []
        return rows

    def _read_audit(self) -> None:
        try:
            with self._demo.audit.open(encoding="utf-8") as file:
                file.seek(self._audit_read)
                # A line may be half written; it is read whole the next time.
                while (line := file.readline()).endswith("\n"):
                    self._audit_read = file.tell()
                    entry = json.loads(line)
                    if entry["type"] in ("action.emitted", "action.result"):
                        self._recent.append(entry)
        except FileNotFoundError:
            return


def can_draw() -> bool:
    """Whether standard output is a terminal that more than lines can be written to."""
    console = Console()
    return console.is_terminal and not console.is_dumb_terminal


class View:
    """The terminal."""

    def __init__(self, *, headless: bool) -> None:
        self._live = None if headless else Live(console=Console(), screen=True, auto_refresh=False)

    def __enter__(self) -> "View":
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def show(self, seen: dict[str, Any]) -> None:
        if self._live is not None:
            self._live.update(draw(seen), refresh=True)


def draw(seen: dict[str, Any]) -> Group:
    """The screen for what was seen."""
    return Group(_headline(seen), _machines(seen), _needs(seen), _actions(seen))


def _headline(seen: dict[str, Any]) -> Panel:
    parts = "  ".join(
        f"[green]{name}[/]" if state == "running" else f"[red]{name} {state}[/]"
        for name, state in seen["processes"].items()
    )
    needs = seen["needs"]
    return Panel(
        Text.from_markup(
            f"{seen['seconds']:.0f} s   [bold]{seen['dollars_per_hour']:.2f} $/hour[/]"
            f"   needs met {needs['met']}, unmet {needs['unmet']}   sessions {seen['sessions']}\n{parts}"
        ),
        title="BigFleet demo: Ctrl-C ends it",
    )


def _machines(seen: dict[str, Any]) -> Table:
    table = Table("machines", title_justify="left", expand=True)
    kinds = sorted({kind for counts in seen["machines"].values() for kind in counts})
    for kind in kinds:
        table.add_column(kind, justify="right")
    for state in _STATES:
        counts = seen["machines"].get(state)
        if counts:
            table.add_row(state, *(str(counts.get(kind, "")) for kind in kinds))
    return table


def _needs(seen: dict[str, Any]) -> Table:
    table = Table("cluster", "wants", "priority", "machines", "outcome", expand=True)
    for need in seen["needs"]["rows"]:
        outcome = "[green]met[/]" if need["met"] else f"[yellow]{need['reason']}[/]"
        table.add_row(need["cluster"], need["wants"], str(need["priority"]), str(need["machines"]), outcome)
    return table


def _actions(seen: dict[str, Any]) -> Table:
    table = Table("cycle", "action", "machine", "cluster", "why", "outcome", expand=True)
    for line in reversed(seen["last_actions"]):
        table.add_row(
            str(line["cycle"]),
            str(line.get("kind", "")),
            str(line.get("machine_id", "")),
            str(line.get("cluster", "")),
            str(line.get("reason", "")),
            str(line.get("outcome", "started")),
        )
    return table


def _row(need: SeenNeed) -> dict[str, Any]:
    kinds = ",".join(value for term in need.requirements for value in term.values)
    amounts = " ".join(
        f"{name} {format_quantity(amount * 10**6, binary=prints_binary(name))}"
        for name, amount in need.aggregate.items()
    )
    return {
        "cluster": need.cluster,
        "wants": f"{kinds}: {amounts}",
        "priority": need.priority,
        "machines": need.claimed,
        "met": need.satisfied,
        "reason": need.reason,
    }


def _metrics(address: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    try:
        with _LOCAL.open(f"http://{address}/metrics", timeout=DEADLINE_S) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return {}
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found
