"""User data: what an instance runs when it boots."""

import base64
import gzip
import shlex
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from importlib.resources import files
from typing import Final

MAX_BYTES: Final = 16 << 10
"""EC2's limit, before its own base64."""
MAX_BLOB_BYTES: Final = 14 << 10
"""What of it is left for a blob that does not compress."""
IDLE: Final = b"#cloud-config\n{}\n"
"""Of an instance that serves nobody."""
# cloud-init runs scripts at an instance's first boot only, and that one is over before anyone knows for which
# cluster the instance is.
_EVERY_BOOT: Final = "#cloud-config\ncloud_final_modules:\n- [scripts-user, always]\n"
_SCRIPT: Final = files(__package__).joinpath("bootstrap.sh").read_text()


def user_data(blob: bytes, **values: str) -> bytes:
    """The script ``bootstrap.sh`` with these values and the blob, for cloud-init."""
    script = bootstrap_script(blob, **values)
    # A boundary of our own: the same Configure makes the same bytes.
    whole = MIMEMultipart(boundary="=bigfleet=")
    for kind, text in (("cloud-config", _EVERY_BOOT), ("x-shellscript", script)):
        whole.attach(MIMEText(text, kind, "us-ascii"))
    packed = gzip.compress(whole.as_bytes(), mtime=0)
    assert len(packed) <= MAX_BYTES, "the blob was checked against MAX_BLOB_BYTES"
    return packed


def bootstrap_script(blob: bytes, **values: str) -> str:
    """The script alone."""
    values["blob"] = base64.b64encode(blob).decode()
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return f"#!/bin/sh\n{assignments}{_SCRIPT}"
