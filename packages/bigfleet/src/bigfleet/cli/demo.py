"""``make demo``: a shard, a provider and three clusters on this machine, to look at.

Every part is a process of its own, as in production; what is shown is what their endpoints say.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from bigfleet.cli.demo_view import Observer, View, can_draw
from bigfleet.cli.options import duration

OFFERINGS: Final = [
    {
        "instance_type": "metal-16",
        "zone": "zone-a",
        "capacity_type": "bare-metal",
        "count": 4,
        "price_per_hour": 0.0,
        "resources": {"cpu": "16", "memory": "64Gi"},
        "labels": {"topology.bigfleet/rack": "rack-1"},
    },
    {
        "instance_type": "standard-4",
        "zone": "zone-a",
        "capacity_type": "on-demand",
        "count": 16,
        "price_per_hour": 0.2,
        "resources": {"cpu": "4", "memory": "16Gi"},
        "labels": {"topology.bigfleet/rack": "rack-2"},
    },
    {
        "instance_type": "standard-4",
        "zone": "zone-b",
        "capacity_type": "spot",
        "count": 12,
        "price_per_hour": 0.06,
        "interruption_probability": 0.05,
        "resources": {"cpu": "4", "memory": "16Gi"},
        "labels": {"topology.bigfleet/rack": "rack-3"},
    },
]

_METAL: Final = {"instance_type": ["metal-16"], "unit": {"cpu": "16"}}
_STANDARD: Final = {"instance_type": ["standard-4"], "unit": {"cpu": "4"}}

CLUSTERS: Final[dict[str, list[dict[str, Any]]]] = {
    # A shop: steady services that would hate to be interrupted, and more of them in the evening.
    "shop": [
        {"for_s": 12, "needs": [{**_STANDARD, "count": 5, "priority": 1000, "interruption_penalty": 64}]},
        {"for_s": 12, "needs": [{**_STANDARD, "count": 9, "priority": 1000, "interruption_penalty": 64}]},
    ],
    # Reports: as much as is going, wherever it is cheap.
    "reports": [
        {
            "for_s": 20,
            "needs": [
                {**_STANDARD, "count": 10, "priority": 100},
                {**_METAL, "count": 3, "priority": 100},
            ],
        },
        {"for_s": 8, "needs": [{**_STANDARD, "count": 2, "priority": 100}]},
    ],
    # Training: nothing for a while, then four machines in one rack, and before everybody else.
    "training": [
        {"for_s": 8, "needs": []},
        {
            "for_s": 24,
            "needs": [
                {
                    **_METAL,
                    "count": 4,
                    "priority": 1_000_000,
                    "same": "topology.bigfleet/rack",
                    "interruption_penalty": 8192,
                }
            ],
        },
    ],
}

START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 15.0


class DemoError(Exception):
    """The demo cannot run; the message says why."""


@dataclass(slots=True)
class Part:
    """One process of the demo."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def state(self) -> str:
        code = self.process.poll()
        return "running" if code is None else f"exited {code}"


@dataclass(slots=True)
class Demo:
    """The processes, in a folder that lives as long as they do."""

    folder: Path
    parts: list[Part] = field(default_factory=list)
    shard_address: str = ""
    shard_http: str = ""
    provider_http: str = ""

    @property
    def audit(self) -> Path:
        return self.folder / "audit.jsonl"

    def start(self, say: TextIO) -> None:
        """Start provider, shard and operators, each when the one before it serves."""
        provider_address = f"127.0.0.1:{_free_port()}"
        self.provider_http = f"127.0.0.1:{_free_port()}"
        self.shard_address = f"127.0.0.1:{_free_port()}"
        self.shard_http = f"127.0.0.1:{_free_port()}"
        offerings = self._write("offerings.json", OFFERINGS)
        preseed = self._write("preseed.json", [{"offering": "metal-16", "idle": 4}])
        self._spawn(
            say, "provider", "-m", "bigfleet_providerkit.fake",
            "--addr", provider_address, "--metrics-addr", self.provider_http,
            "--state", str(self.folder / "provider.db"),
            "--offerings", str(offerings), "--preseed", str(preseed),
            "--knob", "latency.create=uniform(1s,3s)", "--knob", "latency.configure=uniform(500ms,2s)",
            "--knob", "latency.drain=uniform(500ms,2s)",
        )  # fmt: skip
        self._until_serving(self.provider_http)
        self._spawn(
            say, "shard", "-m", "bigfleet.cli", "shard",
            "--listen", self.shard_address, "--metrics-addr", self.shard_http,
            "--provider-addr", provider_address, "--data-dir", str(self.folder / "shard"),
            "--audit-log", str(self.audit), "--cycle-interval", "2s",
            # A reclaim cap of 5 % would give back one machine a cycle: too slow to watch.
            "--reclaim-cap-fraction", "0.5", "--idle-hold-on-demand", "15s", "--idle-hold-spot", "5s",
        )  # fmt: skip
        self._until_serving(self.shard_http)
        for cluster, steps in CLUSTERS.items():
            script = self._write(f"{cluster}.json", steps)
            self._spawn(
                say, cluster, "-m", "bigfleet.scale.operators",
                "--shard", self.shard_address, "--cluster", cluster, "--script", str(script),
                "--interval", "2",
            )  # fmt: skip

    def stop(self) -> None:
        """End every process, the ones that others talk to last."""
        for part in reversed(self.parts):
            if part.process.poll() is None:
                part.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_LIMIT_S
        for part in reversed(self.parts):
            try:
                part.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                part.process.kill()
                part.process.wait()

    def _write(self, name: str, value: object) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(value), encoding="utf-8")
        return path

    def _spawn(self, say: TextIO, name: str, *arguments: str) -> None:
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603  # our own modules with our own arguments
                [sys.executable, *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the demo alone, which then ends its parts in order.
                start_new_session=True,
            )
        self.parts.append(Part(name, process, log))
        print(f"started {name} (process {process.pid})", file=say, flush=True)

    def _until_serving(self, address: str) -> None:
        part = self.parts[-1]
        host, _, port = address.partition(":")
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return
            if part.process.poll() is not None or time.monotonic() > deadline:
                tail = part.log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise DemoError(f"{part.name} did not start ({part.state}):\n{tail}")
            time.sleep(0.1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    arguments = _arguments(argv)
    say = sys.stderr
    _on_signals(_interrupt)
    with tempfile.TemporaryDirectory(prefix="bigfleet-demo-") as folder, _demo(Path(folder)) as demo:
        try:
            demo.start(say)
            with contextlib.closing(Observer(demo)) as observer:
                _watch(demo, observer, arguments)
                if arguments.headless:
                    _print(observer.look(), arguments.output)
        except DemoError as error:
            print(f"demo: {error}", file=say)
            return 1
        except KeyboardInterrupt:
            print("stopping", file=say)
    return 0


def _watch(demo: Demo, observer: Observer, arguments: argparse.Namespace) -> None:
    end = None if arguments.duration is None else time.monotonic() + arguments.duration / 1e9
    with View(headless=arguments.headless) as view:
        while end is None or time.monotonic() < end:
            seen = observer.look()
            view.show(seen)
            if all(part.process.poll() is not None for part in demo.parts):
                raise DemoError("every process has ended")
            time.sleep(0.5 if end is None else max(0.0, min(0.5, end - time.monotonic())))


def _print(seen: dict[str, Any], form: str) -> None:
    if form == "json":
        print(json.dumps(seen, sort_keys=True), flush=True)
        return
    needs = seen["needs"]
    print(
        f"{seen['dollars_per_hour']:.2f} $/hour, {needs['met']} needs met, {needs['unmet']} unmet,"
        f" actions {seen['actions']}"
    )


@contextlib.contextmanager
def _demo(folder: Path) -> Iterator[Demo]:
    demo = Demo(folder)
    try:
        yield demo
    finally:
        _on_signals(signal.SIG_IGN)
        demo.stop()


def _interrupt(_signal: int, _frame: object) -> None:
    # Who presses Ctrl-C again must not be left with what is about to end.
    _on_signals(signal.SIG_IGN)
    raise KeyboardInterrupt


def _on_signals(handler: Callable[[int, object], None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make demo", description="A shard, a provider and three clusters, to look at. Ctrl-C ends it."
    )
    parser.add_argument("--headless", action="store_true", help="draw nothing; print a summary at the end")
    parser.add_argument(
        "--for", dest="duration", type=duration, metavar="TIME", help="end after so long (20s, 2m)"
    )
    parser.add_argument("--output", choices=("text", "json"), default="text", help="form of the summary")
    arguments = parser.parse_args(argv)
    if arguments.headless and arguments.duration is None:
        parser.error("--headless needs --for TIME: it has nothing to show before its end")
    if not arguments.headless and not can_draw():
        parser.error("there is no terminal to draw in: give --headless --for TIME")
    return arguments


if __name__ == "__main__":
    # A pipe that is closed early (| head) is no error worth a traceback.
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
    os._exit(0)
