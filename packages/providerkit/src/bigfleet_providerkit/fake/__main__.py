"""``python -m bigfleet_providerkit.fake``: the fake as a process, with the kit's options and its knobs."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence

from bigfleet_base.telemetry import Logs
from bigfleet_providerkit import cli
from bigfleet_providerkit.fake.backend import FakeBackend
from bigfleet_providerkit.fake.server import FakeServer
from bigfleet_providerkit.options import parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status."""
    try:
        options = parse(FakeBackend, sys.argv[1:] if argv is None else argv, os.environ)
        backend = FakeBackend.from_options(options)
        cli._give_offerings(backend, options)
        logs = Logs(level=options.log_level, form=options.log_format)
        settings = cli._settings(backend, options)
        log = logs.logger("provider", provider=settings.provider)
        with logs.capture("provider"):
            try:
                asyncio.run(_serve(lambda: FakeServer(backend, settings, cli._serving(options), log)))
            finally:
                logs.flush()
    except cli._USER_ERRORS as error:
        print(f"bigfleet-fake-provider: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(make: Callable[[], FakeServer]) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = make()
    try:
        await server.start()
        await ended.wait()
    finally:
        await server.stop()


if __name__ == "__main__":
    sys.exit(main())
