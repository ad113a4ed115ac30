"""The command line of the suite: every mistake is named before anything is dialled."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bigfleet_base.options import UsageError
from bigfleet_providerkit.conformance import cli
from bigfleet_providerkit.conformance.options import Options, parse
from tests.support.ca import CertificateAuthority

TARGET = ("--target", "127.0.0.1:9000")


def test_defaults_are_those_of_the_specification() -> None:
    options, output = parse(TARGET, {})
    assert options == Options(target="127.0.0.1:9000")
    assert (options.profiles, options.poll, options.fast_poll, options.seed) == (("core",), 0.02, 0.001, 1)
    assert options.settle == dict.fromkeys(("create", "configure", "drain", "delete"), 15.0)
    assert (options.scale_seed, options.soak, options.timeout, options.transition_timeout) == (
        *(8_000, 10.0, 1_800.0),
        2.0,
    )
    assert options.reclaim and not options.compat and options.fault_mode == "auto"
    assert output.folder is None and output.formats == ("text",)


def test_a_kind_of_transition_can_have_its_own_limit() -> None:
    options, _ = parse([*TARGET, "--settle-timeout", "30s,create=2m"], {})
    assert options.settle == {"create": 120.0, "configure": 30.0, "drain": 30.0, "delete": 30.0}


def test_the_environment_sets_options_and_flags_win() -> None:
    environment = {"BIGFLEET_CONFORMANCE_TARGET": "127.0.0.1:1", "BIGFLEET_CONFORMANCE_SEED": "7"}
    assert parse([], environment)[0].target == "127.0.0.1:1"
    options, _ = parse(TARGET, environment)
    assert (options.target, options.seed) == ("127.0.0.1:9000", 7)


def test_certificates_keys_and_shards_are_given_in_order() -> None:
    words = "--tls-ca ca --cert c1 --key k1 --shard-id s1 --cert c2 --key k2 --shard-id s2"
    options, _ = parse([*TARGET, *words.split()], {})
    assert (options.certs, options.keys, options.shard_ids) == (("c1", "c2"), ("k1", "k2"), ("s1", "s2"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "either --target HOST:PORT of a running one, or --provider-cmd"),
        ("--target a:1 --provider-cmd 'x {addr}'", "either --target"),
        ("--provider-cmd 'provider --addr :9000'", "write {addr} in it"),
        ("--provider-cmd '\"provider --addr {addr}'", "cannot be split into words: No closing quotation"),
        ("--target a:1 --profile ''", "--profile is empty: name some of core, cloud"),
        ("--target a:1 --profile auto,core", "auto finds the profiles itself"),
        ("--target a:1 --select B101 --exclude B1*", "has no id that --select and --exclude leave in"),
        ("--target a:1 --select B701", "--profile core has no id that"),
        ("--target a:1 --profile core,moon", "'moon' is none of core, cloud"),
        ("--target a:1 --select Q*", "no id matches 'Q*'"),
        ("--target a:1 --exclude B1O1", "no id matches 'B1O1'"),
        ("--target a:1 --cert c --tls-ca ca", "1 --cert and 0 --key do not make pairs"),
        ("--target a:1 --cert c --key k", "need --tls-ca"),
        ("--target a:1 --tls-ca a --cert c --key k --shard-id s --shard-id t", "its own --cert and --key"),
        ("--target a:1 --tls-ca a --cert c --key k --cert c --key k", "several --cert are for several"),
        ("--target a:1 --shard-id s --shard-id s", "every --shard-id must be another one"),
        ("--target a:1 --shard-id ''", "none of them empty"),
        ("--target a:1 --shard-id 'a b'", "--shard-id 'a b' does not match"),
        ("--target a:1 --parallel 0", "--parallel is 0; it must be at least 1"),
        ("--target a:1 --min-slots=-1", "--min-slots is -1; it must be at least 1"),
        ("--target a:1 --scale-seed 0", "--scale-seed is 0; it must be at least 1"),
        ("--target a:1 --settle-timeout create=0", "--settle-timeout is 0 s; it must be more than 0"),
        ("--target a:1 --poll 0", "--poll is 0 s"),
        ("--target a:1 --fast-poll 0", "--fast-poll is 0 s"),
        ("--target a:1 --transition-timeout 0", "--transition-timeout is 0 s"),
        ("--target a:1 --recovery-timeout 0", "--recovery-timeout is 0 s"),
        ("--target a:1 --soak 0", "--soak is 0 s"),
        ("--target a:1 --timeout 0", "--timeout is 0 s"),
        ("--target a:1 --timeout 99999999999999999999h", "at most 1000000000 s"),
        ("--target a:1 --workloads no/such/folder", "no/such/folder (--workloads) is no folder"),
        ("--target a:1 --readiness-oracle no/file", "neither a URL nor the file of a kubeconfig"),
        ("--target a:1 --config no/file", "cannot read no/file (--config): No such file"),
        ("--target a:1 --format pdf", "'pdf' is none of text, json, junit, badge, md"),
        ("--target a:1 --format json,md", "several --format need --out"),
        ("--target a:1 --out d --format text", "'text' is none of json"),
    ],
)
def test_a_mistake_is_named(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(shlex.split(words)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--settle-timeout launch=3s", "'launch' is none of create, configure"),
        ("--timeout soon", "'soon' is not a duration"),
        ("--timeout=-5s", "'-5s' is not a duration"),
        ("--seed many", "argument --seed: invalid int value: 'many'"),
        ("--min-slots 1.5", "argument --min-slots: invalid int value"),
        ("--parallel two", "argument --parallel: invalid int value"),
        ("--scale-seed x", "argument --scale-seed: invalid int value"),
        ("--reclaim maybe", "argument --reclaim: invalid choice"),
        ("--fault-mode mine", "argument --fault-mode: invalid choice"),
        ("--strict --compat", "not allowed with argument"),
        ("another", "unrecognized arguments: another"),
    ],
)
def test_what_is_not_of_its_kind_is_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([*TARGET, *words.split()])
    assert end.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_reports_that_cannot_be_written_are_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert cli.main([*TARGET, "--out", str(tmp_path / "file" / "reports")]) == 2
    assert capsys.readouterr().err == (
        f"bigfleet-conformance: cannot write into {tmp_path}/file/reports (--out): Not a directory\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--tls-ca missing", "cannot read missing (--tls-ca): No such file or directory"),
        ("--tls-ca text", "text (--tls-ca) holds no PEM certificate"),
        ("--tls-ca text --cert text --key text", "text (--tls-ca) holds no PEM certificate"),
        ("--tls-ca ca --cert missing --key missing", "cannot read TLS file missing: No such file"),
        ("--tls-ca ca --cert text --key text", "text"),
    ],
)
def test_certificates_that_cannot_be_used_are_named(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("no certificate\n")
    Path("ca").write_bytes(
        CertificateAuthority().issue("bigfleet://admin").write(tmp_path / "made").ca.read_bytes()
    )
    assert cli.main([*TARGET, *words.split()]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_command_that_runs_an_id_again_is_understood() -> None:
    options = Options(
        target="127.0.0.1:9000",
        profiles=("core", "cloud"),
        seed=5,
        compat=True,
        tls_ca="my ca",
        min_slots=3,
        settle={"create": 3_600_000.0, "configure": 15.0, "drain": 0.5, "delete": 15.0},
        poll=0.5,
        fast_poll=0.005,
        reclaim=False,
        transition_timeout=30.0,
        recovery=1_800.0,
        soak=1.5,
        certs=("c1", "c2"),
        keys=("k1", "k2"),
        shard_ids=("s1", "s2"),
    )
    again, _ = parse(shlex.split(options.reproduction("B101"))[1:], {})
    assert again.select == ("B101",)
    assert Options(**{**again.as_dict(), "select": ("*",)}) == options


def test_ids_are_selected_by_globs_and_left_out_by_others() -> None:
    options = Options(target="a:1", select=("B3*", "X1201"), exclude=("B303",))
    assert [options.selects(one) for one in ("B301", "B303", "X1201", "B101")] == [True, False, True, False]


def test_a_second_select_or_exclude_adds_to_the_first(tmp_path: Path) -> None:
    words = "--select B3*,B2* --select B1* --exclude B303 --exclude B101"
    options, _ = parse([*TARGET, *words.split()], {})
    assert (options.select, options.exclude) == (("B3*", "B2*", "B1*"), ("B303", "B101"))
    (tmp_path / "options.toml").write_text('select = ["B3*,B2*", "B1*"]')
    from_file, _ = parse([*TARGET, "--config", str(tmp_path / "options.toml")], {})
    assert from_file.select == options.select
    from_environment, _ = parse(TARGET, {"BIGFLEET_CONFORMANCE_SELECT": "B3*,B2*"})
    assert from_environment.select == ("B3*", "B2*")


def test_library_users_get_the_same_refusals() -> None:
    with pytest.raises(UsageError, match="either --target"):
        Options()


def test_help_comes_at_once_and_loads_no_grpc() -> None:
    code = (
        "import sys; from bigfleet_providerkit.conformance.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\nsys.exit('grpc' in sys.modules)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=False)
    assert done.returncode == 0 and b"--provider-cmd" in done.stdout
    assert time.monotonic() - started < 5
