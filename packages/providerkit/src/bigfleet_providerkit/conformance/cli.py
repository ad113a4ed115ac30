"""``bigfleet-conformance``: the suite as a command.

Exit status: 0 certified, 1 failed, 2 usage, 3 incomplete, 4 endpoint unreachable.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from bigfleet_base.options import UsageError
from bigfleet_providerkit.conformance.catalogue import Lane
from bigfleet_providerkit.conformance.options import Output, parse
from bigfleet_providerkit.conformance.outcome import Result, Status, printable

if TYPE_CHECKING:
    from bigfleet_providerkit.conformance.report import Report

_NAME: Final = "bigfleet-conformance"
_USAGE, _UNREACHABLE, _INTERRUPTED = 2, 4, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Check a provider; the exit status is the verdict."""
    try:
        options, output = parse(sys.argv[1:] if argv is None else argv, os.environ)
    except UsageError as error:
        print(f"{_NAME}: {error}", file=sys.stderr)
        return _USAGE
    if output.folder is not None and (trouble := _unwritable(output.folder)):
        print(f"{_NAME}: cannot write into {output.folder} (--out): {trouble}", file=sys.stderr)
        return _USAGE
    # gRPC reports on its own standard error what the suite says in a sentence.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Here and not above: help and mistakes need no gRPC.
    from bigfleet_base.wire import TransportError
    from bigfleet_providerkit.conformance import certify
    from bigfleet_providerkit.conformance.connection import UnreachableError

    # Told to end, the suite ends its providers first, as it does for Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report = certify(options, Lines(sys.stderr))
    except (TransportError, UsageError) as error:
        print(f"{_NAME}: {error}", file=sys.stderr)
        return _USAGE
    except UnreachableError as error:
        print(printable(f"{_NAME}: {error}"), file=sys.stderr)
        return _UNREACHABLE
    except KeyboardInterrupt:
        print(f"{_NAME}: interrupted; machines that were in use are left as they are", file=sys.stderr)
        return _INTERRUPTED
    return _show(report, output)


class Lines:
    """Progress as lines: one for each id, coloured where somebody looks at them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colours = stream.isatty() and "NO_COLOR" not in os.environ

    def lane(self, lane: Lane, ids: int, about: str) -> None:
        self.say(f"{lane} lane, {ids} ids: {about}")

    def done(self, result: Result) -> None:
        status = f"{result.status:18}"
        if self._colours:
            status = f"\x1b[{_COLOURS.get(result.status, 33)}m{status}\x1b[0m"
        about = result.reason if result.status not in (Status.PASSED,) else result.behaviour.title
        about = printable(" ".join(about.split())[:300])
        self.say(f"{result.behaviour.id:6} {status} {result.seconds:6.2f} s  {about}")

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def _unwritable(folder: Path) -> str:
    """Why reports cannot be put there; better known now than when there are some."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _show(report: "Report", output: Output) -> int:
    if report.problem:
        print(f"{_NAME}: {report.problem}", file=sys.stderr)
    elif output.folder is not None or output.formats == ("text",):
        print(report.text(), end="")
    if output.folder is None and output.formats != ("text",):
        print(getattr(report, output.formats[0])(), end="")
    if output.folder is not None:
        try:
            written = report.write(output.folder, output.formats)
        except OSError as error:
            print(f"{_NAME}: cannot write {error.filename} (--out): {error.strerror}", file=sys.stderr)
            return _USAGE
        print("wrote " + ", ".join(map(str, written)), file=sys.stderr)
    return report.exit_status


_COLOURS: Final = {Status.PASSED: 32, Status.FAILED: 31, Status.ERROR: 31, Status.VACUOUS: 36}
