"""User data: what an instance is given, and what it does with it."""

import email
import gzip
import os
import random
import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bigfleet_providerkit.backend import UNBOUND, Binding
from bigfleet_providerkit.examples.ec2 import tags
from bigfleet_providerkit.examples.ec2.userdata import (
    MAX_BLOB_BYTES,
    MAX_BYTES,
    bootstrap_script,
    user_data,
)
from tests.support.rules import rule

VALUES = {
    "cluster": "c1",
    "operation": "op-7",
    "machine": "m-1",
    "provider": "it's",
    "region": "eu-west-1",
    "hook": "./hook",
}


def test_the_largest_blob_fits_into_user_data_even_if_it_does_not_compress() -> None:
    blob = random.Random(1).randbytes(MAX_BLOB_BYTES)
    data = user_data(blob, **{**VALUES, "cluster": "c" * 253, "provider": "p" * 100, "hook": "/" + "h" * 200})
    assert len(data) <= MAX_BYTES


def test_cloud_init_is_told_to_run_the_script_at_every_boot() -> None:
    whole = email.message_from_bytes(gzip.decompress(user_data(b"x", **VALUES)))
    _, config, script = [str(part.get_payload()) for part in whole.walk()]
    assert "[scripts-user, always]" in config
    assert script.startswith("#!/bin/sh\n")


def test_the_hook_gets_cluster_and_blob_and_its_end_becomes_the_tag(tmp_path: Path) -> None:
    hook = 'echo "$1 $NODE_NAME $PROVIDER_ID" >>hooked; stat -c %a blob >>hooked; cp blob copy'
    blob = bytes(range(256))
    assert boot(tmp_path, blob, hook) == 0
    assert (tmp_path / "hooked").read_text() == "c1 m-1 bigfleet://it's/m-1\n600\n"
    assert (tmp_path / "copy").read_bytes() == blob
    tagged = (
        "ec2 create-tags --region eu-west-1 --resources i-42 --tags Key=bigfleet.lucy.sh/ready,Value=op-7\n"
    )
    assert (tmp_path / "aws").read_text() == tagged
    # A reboot of a node that has joined says so again, and joins nothing.
    assert boot(tmp_path, blob, hook) == 0
    assert (tmp_path / "aws").read_text() == tagged * 2
    assert (tmp_path / "hooked").read_text().count("c1") == 1


def test_a_hook_that_fails_is_never_reported_ready(tmp_path: Path) -> None:
    assert boot(tmp_path, b"", "exit 3") == 3
    assert not (tmp_path / "aws").exists()


def boot(folder: Path, blob: bytes, hook: str) -> int:
    """Run the script as a guest would, below a folder and with what it calls faked; returns its status."""
    tools = {
        "hook": hook,
        "bin/curl": 'case "$*" in *token) echo secret;; *"secret"*instance-id) echo i-42;; *) exit 22;; esac',
        "bin/aws": f'echo "$*" >>{folder}/aws',
    }
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in tools.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    script = bootstrap_script(blob, **VALUES).replace("home=/var/lib/bigfleet", f"home={folder}")
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", script], env=environment, timeout=20, check=False).returncode


texts = st.text(max_size=40)


@rule("provider.P-124")
@given(st.dictionaries(texts, texts, max_size=8))
def test_a_binding_comes_back_from_its_tags(metadata: dict[str, str]) -> None:
    written = tags.binding_tags("c1", "op", metadata)
    assert all(len(key) <= 128 and len(value) <= 256 for key, value in written.items()) and len(written) <= 40
    assert tags.read_binding(written) is None, "the node has not said that it is Ready"
    assert tags.read_binding({**written, tags.READY: "op"}) == Binding("c1", metadata)
    assert tags.read_binding({**written, tags.READY: "an earlier one"}) is None


@rule("provider.P-124")
def test_tags_that_are_missing_are_no_binding() -> None:
    written = {
        **tags.binding_tags("c1", "op", {"k": random.Random(1).randbytes(400).hex()}),
        tags.READY: "op",
    }
    chunks = [key for key in written if "metadata" in key]
    assert len(chunks) > 1
    for key in (tags.CLUSTER, tags.BINDING, *chunks):
        assert tags.read_binding({name: value for name, value in written.items() if name != key}) is None
    assert tags.read_binding({tags.CLUSTER: ""}) == UNBOUND
    left = {name: value for name, value in written.items() if name not in tags.passing_tags(written)}
    assert left == {tags.CLUSTER: "c1"}
