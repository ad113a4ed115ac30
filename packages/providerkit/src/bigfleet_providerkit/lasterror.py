"""``last_error``: one line that says which step failed and how, and never a secret (P-86)."""

import re
from typing import Final

from bigfleet_base.telemetry import redact

MAX_BYTES: Final = 1_024
CLASSES: Final = (
    *("timeout", "substrate", "capacity", "readiness", "interrupted", "host-lost", "binding-unknown"),
)
_RUN: Final = re.compile(r"[A-Za-z0-9+/_.~-]{6,}")


def last_error(kind: str, reason: str, text: str, secret: bytes = b"") -> str:
    """``kind:reason: text``, cut to size, without anything that the secret contains."""
    assert reason in CLASSES, reason
    line = " ".join(redact.text(text, 4_096).split())
    if secret:
        hidden = secret.decode(errors="replace")
        line = _RUN.sub(lambda run: redact.REDACTED if run[0] in hidden else run[0], line)
    return f"{kind}:{reason}: {line}".encode()[:MAX_BYTES].decode(errors="ignore")


def failed_kind(error: str) -> str:
    """The step that a ``last_error`` names."""
    return error.partition(":")[0]


def reason(error: str) -> str:
    """The class that a ``last_error`` names."""
    return error.split(":", 2)[1]
