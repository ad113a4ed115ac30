"""Texts that strangers write: operators and providers."""

from typing import Final

from bigfleet_base.telemetry import redact

MAX_TEXT: Final = 1_024


def foreign(text: str) -> str:
    """What is kept of a stranger's text. Events are recorded and audited, and those files hold no secret
    (shard.md R8)."""
    # Cut last: half a secret is no longer known for one.
    return redact.text(text)[:MAX_TEXT]
