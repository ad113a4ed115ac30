"""A world whose core is recorded, as a function for tests and as a process to be killed."""

import io
import sys
from pathlib import Path

from bigfleet.shard.core.effects import Effect
from bigfleet.shard.core.events import Event
from bigfleet.shard.recording.segments import digest
from bigfleet.shard.shell import recorder as recorder_module
from bigfleet.shard.shell.recorder import start_recording
from bigfleet_base.telemetry import Logs, Metrics, Role
from tests.unit.shard.recording.world import World

SMALL_SEGMENT = 20_000


class RecordedWorld(World):
    """As a shard process does it: every batch is recorded before its effects are performed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.performed: list[str] = []
        """The digest of every batch whose effects were performed."""
        self._folder = folder
        super().__init__(seed, self._record)

    def start(self) -> None:
        log = Logs(io.BytesIO()).logger("shard")
        self.recorder = start_recording(self.core, self._folder, 1 << 30, Metrics(Role.SHARD), log, self.now)
        super().start()

    def _record(self, now: int, events: list[Event], effects: list[Effect]) -> None:
        self.recorder.record(now, events, effects)
        self.performed.append(digest(effects).hex())


def main() -> None:
    recorder_module.SEGMENT_EVENTS = SMALL_SEGMENT  # type: ignore[misc]  # many segments in a short run
    world = RecordedWorld(int(sys.argv[1]), Path(sys.argv[2]))
    while True:
        world.step()
        while world.performed:
            print(world.performed.pop(0), flush=True)


if __name__ == "__main__":
    main()
