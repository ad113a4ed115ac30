"""Scripts of demand, and the command that plays one."""

import json
from pathlib import Path
from typing import Any

import pytest

from bigfleet.scale.operators import main
from bigfleet.scale.script import ScriptError, read_script
from bigfleet_base.model import ResourceVector

ROOT = Path(__file__).parents[3]
UNIT = {"cpu": "2"}


def script(**row: Any) -> bytes:
    return json.dumps([{"for_s": 1, "needs": [{"count": 1, "unit": UNIT, **row}]}]).encode()


def test_the_steps_follow_one_another_and_start_again() -> None:
    demand = read_script((ROOT / "docs" / "examples" / "demand.json").read_bytes(), "red")
    cpus = [demand(second)[0].aggregate["cpu"] for second in (0, 59.9, 60, 119, 120)]
    assert cpus == [6_000, 6_000, 12_000, 12_000, 6_000]


def test_a_row_says_all_that_a_need_is() -> None:
    row = {"instance_type": ["a", "b"], "zone": ["z"], "same": "rack", "priority": 7, "count": 3}
    [need] = read_script(script(**row, interruption_penalty=64, reclamation_penalty=1e300), "red")(0)
    assert need.cluster_id == "red" and need.profile.priority == 7 and need.group == "rack/0"
    assert need.min_unit == ResourceVector({"cpu": 2_000}) and need.aggregate["cpu"] == 6_000
    assert [(r.key, r.operator, r.values) for r in need.profile.requirements] == [
        ("node.kubernetes.io/instance-type", "In", ("a", "b")),
        ("rack", "Same", ()),
        ("topology.kubernetes.io/zone", "In", ("z",)),
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[", "is not a script"),
        (b"\xff\xfe", "is not a script"),
        (b"[" * 100_000, "is not a script"),
        (b"{}", "Expected `array`"),
        (b"[]", "has no step"),
        (b'[{"for_s": 0}]', "for_s"),
        (b'[{"for_s": NaN}]', "is not a script"),
        (b'[{"for_s": 1, "need": []}]', "`need`"),
        (b'[{"for_s": 1, "needs": 5}]', "needs"),
        (b'[{"for_s": 1, "needs": [{"count": 1}]}]', "`unit`"),
        (script(count=1.5), "count"),
        (script(count=-1), "count"),
        (script(count=2**63), r"\$\[0\].*aggregate_resources"),
        (script(unit=["cpu"]), "unit"),
        (script(unit={"cpu": 2}), "unit"),
        (script(unit={"cpu": "two"}), r"\$\[0\].needs\[0\].unit.*'two'"),
        (script(instance_type="standard-4"), "instance_type"),
        (script(instance_type=[4]), "instance_type"),
        (script(priority=2**31), "priority"),
        (script(prioritiy=1), "`prioritiy`"),
        (script(interruption_penalty=-1), "interruption_penalty"),
    ],
)
def test_a_script_that_cannot_be_played_says_where_it_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(ScriptError, match=said):
        read_script(data, "red")


@pytest.mark.parametrize(
    ("wrong", "said", "status"),
    [
        (("--shard", "nonsense"), "--shard: address 'nonsense' is not usable", 2),
        (("--shard", "127.0.0.1:0"), "--shard: address '127.0.0.1:0' is not usable", 2),
        (("--shard", "192.0.2.1:7780"), "is not on this machine", 2),
        (("--cluster", "a b"), "--cluster is 'a b'", 2),
        (("--interval", "0"), "--interval", 2),
        (("--interval", "nan"), "--interval", 2),
        (("--script", "nowhere.json"), "cannot read nowhere.json (--script): No such file", 1),
        (("--script", str(ROOT / "README.md")), "is not a script of demand", 1),
    ],
)
def test_a_users_mistake_is_told_in_one_line(
    wrong: tuple[str, str], said: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    good = ("--shard", "127.0.0.1:1", "--cluster", "c", "--script", str(ROOT / "docs/examples/demand.json"))
    try:
        ended = main([*good, *wrong])
    except SystemExit as exited:
        ended = int(exited.code or 0)
    err = capsys.readouterr().err
    assert ended == status and said in err and len(err.splitlines()) == 1
