"""What may appear in a log line: short plain values, and nothing secret.

Never the contents of pod specs, bootstrap blobs, tokens, certificates, provider metadata or user labels
(observability.md §7). Fields are judged by their names, texts by what they look like; bytes are never shown,
nor objects of types that are not known to be harmless.
"""

import math
import re
import traceback
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from enum import Enum
from functools import lru_cache
from itertools import islice, pairwise
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, Final

REDACTED: Final = "[redacted]"

MAX_TEXT: Final = 4096
MAX_STACK: Final = 16_384
MAX_ITEMS: Final = 100
MAX_DEPTH: Final = 4

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]

_SECRET_WORDS: Final = frozenset(
    {
        *("annotations", "authorization", "blob", "blobs", "cert", "certificate", "certificates", "certs"),
        *("cookie", "credential", "credentials", "kubeconfig", "labels", "metadata", "passphrase", "passwd"),
        *("password", "passwords", "pem", "podspec", "secret", "secrets", "spec", "template", "token"),
        *("tokens", "userdata"),
    }
)
_SECRET_PAIRS: Final = frozenset({("user", "data"), ("private", "key"), ("api", "key"), ("access", "key")})
# `secret_name`, `cert_path` and `user_data_bytes` say where and how much, not what.
_HARMLESS_ENDS: Final = frozenset({"bytes", "count", "file", "name", "path"})
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")

# What secrets look like inside a text, each with something that the lower-cased text must contain for the
# expression to be worth trying.
_SECRET_TEXTS: Final = tuple(
    (hint, re.compile(expression, re.IGNORECASE | re.DOTALL))
    for hint, expression in (
        ("-----begin ", r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)"),  # PEM, also cut off
        ("eyj", r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),  # JSON web token
        (".", r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b"),  # Kubernetes bootstrap token
        ("@", r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"),  # user:password@host
        ("bearer ", r"\bbearer +[\w.~+/=-]+"),
        *((word, rf"{word}\w*[\"']? *[=:] *[\"']?[^\s\"',;]+") for word in ("token", "passw", "secret")),
    )
)
# All of them have one of these, and most values of fields do not.
_SUSPICIOUS: Final = re.compile(r"[.:=@ ]")


def plain(value: object, depth: int = 0) -> Plain:
    """The value as JSON can hold it, bounded in size."""
    if type(value) is str:  # nearly always, and a match takes its time
        return text(value)
    match value:
        case None | bool():
            return value
        case Enum():
            return plain(value.value if isinstance(value, str) else value.name)
        case str():
            return text(value)
        case Integral():
            number = int(value)
            # The encoder refuses more than 64 bits, and decimal text can be endless.
            return number if -(2**63) <= number < 2**64 else f"<int of {number.bit_length()} bits>"
        case Real():
            real = float(value)
            return real if math.isfinite(real) else str(real)
        case bytes() | bytearray() | memoryview():
            return f"<{memoryview(value).nbytes} bytes>"
        case BaseException():
            return error_text(value)
        case PurePath() | date() | timedelta():
            return text(str(value))
    if depth == MAX_DEPTH:
        return "<nested too deeply>"
    match value:
        case Mapping():
            return fields(value, depth + 1)
        case list() | tuple() | set() | frozenset():
            return _items(value, len(value), depth + 1)
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def fields(mapping: Mapping[Any, object], depth: int = 0) -> dict[str, Plain]:
    """A mapping with the values of secret fields left out. One bad value does not cost the others."""
    shown: dict[str, Plain] = {}
    for key, value in islice(mapping.items(), MAX_ITEMS):
        name = key if isinstance(key, str) and key.isidentifier() else str(plain(key))
        # A number under the name of a secret is its size or its place.
        hidden = is_secret(name) and not (value is None or isinstance(value, Real))
        try:
            shown[name] = REDACTED if hidden else plain(value, depth)
        except Exception as error:
            shown[name] = f"<not to be had: {type(error).__name__}>"
    if len(mapping) > MAX_ITEMS:
        shown["…"] = f"{len(mapping) - MAX_ITEMS} more"
    return shown


@lru_cache(maxsize=1024)
def is_secret(name: str) -> bool:
    """Whether a field of this name holds something that must not be logged."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _HARMLESS_ENDS:
        return False
    return not _SECRET_WORDS.isdisjoint(words) or not _SECRET_PAIRS.isdisjoint(pairwise(words))


def text(value: str, limit: int = MAX_TEXT) -> str:
    """A text cut to its limit, without what looks like a secret and without characters UTF-8 cannot hold."""
    if len(value) > limit:
        value = f"{value[:limit]}… {len(value) - limit} characters more"
    if not value.isascii():
        value = value.encode(errors="backslashreplace").decode()
    if _SUSPICIOUS.search(value):
        lower = value.lower()
        for hint, expression in _SECRET_TEXTS:
            if hint in lower:
                value = expression.sub(REDACTED, value)
    return value


def error_text(error: BaseException) -> str:
    """``ValueError: what was wrong``."""
    try:
        message = str(error)
    except Exception:
        message = "<not to be had>"
    name = type(error).__name__
    return text(f"{name}: {message}" if message else name)


def stack(error: BaseException) -> list[str]:
    """The lines of a traceback that are nearest to the error."""
    # Cleaned as a whole: a secret may run over several lines.
    return text("".join(traceback.format_exception(error)), 2**20)[-MAX_STACK:].splitlines()[-MAX_ITEMS:]


def _items(values: Iterable[object], count: int, depth: int) -> list[Plain]:
    shown = [plain(value, depth) for value in islice(values, MAX_ITEMS)]
    return [*shown, f"… {count - MAX_ITEMS} more"] if count > MAX_ITEMS else shown
