"""``last_error``: one line that says which step failed and how, and never a secret (P-86)."""

import base64
import re
from typing import Final

from bigfleet_base.telemetry import redact

MAX_BYTES: Final = 1_024
CLASSES: Final = (
    *("timeout", "substrate", "capacity", "readiness", "interrupted", "host-lost", "binding-unknown"),
)
# Errors quote what they were given as Python or JSON writes it: a line break is then two characters, and the
# second of them is no part of the word that follows.
_ESCAPE: Final = r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|.)"
_INNER: Final = r"\s\"'`\\=,;()\[\]{}<>"
_STRETCH: Final = re.compile(rf"{_ESCAPE}|[^{_INNER}]{{5,}}[^{_INNER}.:!?]")
_RUN: Final = re.compile(r"[A-Za-z0-9+/_.~-]{6,}")


def last_error(kind: str, reason: str, text: str, secret: bytes = b"") -> str:
    """``kind:reason: text``, cut to size, without anything that the secret contains."""
    assert reason in CLASSES, reason
    line = " ".join(redact.text(text, 4_096).split())
    if secret:
        line = _without(line, f"{secret.decode(errors='replace')}\n{base64.b64encode(secret).decode()}")
    return f"{kind}:{reason}: {line}".encode()[:MAX_BYTES].decode(errors="ignore")


def _without(line: str, hidden: str) -> str:
    """The line without what the hidden text contains: passwords with their punctuation, else word by word."""

    def shown(found: re.Match[str]) -> str:
        text = found[0]
        if text.startswith("\\"):
            return text
        return redact.REDACTED if text in hidden else _RUN.sub(word, text)

    def word(found: re.Match[str]) -> str:
        return redact.REDACTED if found[0] in hidden else found[0]

    return _STRETCH.sub(shown, line)


def failed_kind(error: str) -> str:
    """The step that a ``last_error`` names."""
    return error.partition(":")[0]


def reason(error: str) -> str:
    """The class that a ``last_error`` names."""
    return error.split(":", 2)[1]
