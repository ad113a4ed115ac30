"""The ``bigfleet`` command: what it takes, what it refuses, and how it says so."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bigfleet.cli import shard
from bigfleet.cli.bigfleet import main
from bigfleet.shard.recording import replay
from tests.support.ca import CertificateAuthority
from tests.support.rules import rule


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """A shard sets the collector to its own needs."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [([], 2), (["nonsense"], 2), (["help"], 0), (["-h"], 0), (["--help"], 0)],
)
def test_calls_that_cannot_be_understood_print_the_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int
) -> None:
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert "usage: bigfleet COMMAND" in (out if status == 0 else err)


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.strip()[0].isdigit()


def test_a_command_explains_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["shard", "--help"])
    assert ended.value.code == 0
    assert "--provider-addr" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shard", "--nonsense"], "--nonsense"),
        (["shard", "stray"], "stray"),
        (["shard", "--listen"], "--listen"),
        (["shard", "--cycle-interval", "10"], "argument --cycle-interval: '10' is not a duration"),
        (["shard", "--cycle-interval", "9999999h"], "'9999999h' is too long: give less than 292 years"),
        (["shard", "--cycle-interval", f"{'9' * 5_000}s"], "is not a duration"),
        (["shard", "--epoch-floor=9223372036854775808"], "is more than 9223372036854775807"),
        (["shard", "replay"], "FILE"),
        (["shard", "replay", "--until=-1", "x"], "--until"),
        (["shard", "replay", f"--until={'9' * 30}", "x"], "is not a number of batches"),
    ],
)
def test_what_argparse_refuses_is_one_line_with_a_hint_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    command = "bigfleet shard replay" if "replay" in arguments else "bigfleet shard"
    assert said in line and line.startswith(f"{command}: ") and line.endswith(f"; see {command} --help")


@pytest.mark.parametrize("arguments", [["shard"], ["shard", "replay", "x"], ["check-config", "shard"]])
def test_ctrl_c_ends_a_command_that_has_not_got_far_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shard, "run", interrupted)
    monkeypatch.setattr(shard, "check", interrupted)
    monkeypatch.setattr(replay, "run_replay", interrupted)
    assert main(arguments) == 130


@rule("shard.G1", "shard.B6", "deploy.D-20")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tls-cert", "x"), "--tls-key and --tls-ca is missing"),
        (("--listen", ""), "--listen is empty"),
        (("--listen", "nowhere"), "--listen: address 'nowhere' is not usable"),
        (("--listen", "unix:"), "--listen: address 'unix:' is not usable"),
        (("--metrics-addr", "nowhere"), "--metrics-addr: address 'nowhere' is not usable"),
        (("--provider-addr", "nowhere"), "--provider-addr: address 'nowhere' is not usable"),
        (("--provider-addr", "a=127.0.0.1:0"), "--provider-addr: address '127.0.0.1:0' is not usable"),
        (("--data-dir", ""), "--data-dir is empty"),
        (("--metrics-addr", "unix:/tmp/x"), "plain HTTP is served on host:port"),
        (("--listen", ":0"), "--insecure"),
        (("--provider-addr", "127.0.0.1:1", "--seed-machines", "3"), "--seed-machines: only for"),
        (("--provider-addr", "127.0.0.1:1", "--failure-rate-per-sec", "1"), "--failure-rate-per-sec: only"),
        (("--provider-addr", "127.0.0.1:1", "--speculative-shed-at-seconds", "1"), "shed-at-seconds: only"),
        (("--provider-addr", "127.0.0.1:1", "--local-bootstrap"), "--local-bootstrap: only for"),
        (("--provider-addr", "a=127.0.0.1:1,a=127.0.0.1:2"), "two providers are called 'a'"),
        (("--provider-addr", "10.0.0.1:1"), "plaintext on 10.0.0.1:1 is refused"),
        (("--audit-log", "/nowhere/audit"), "cannot open --audit-log"),
        (("--data-dir", "/dev/null/data"), "cannot use --data-dir"),
        (("--config", "/nowhere.toml"), "cannot read /nowhere.toml"),
        (("--id", "a/b"), "--id is 'a/b'"),
        (("--execute-concurrency", "0"), "--execute-concurrency must be at least 1"),
        (("--cycle-interval", "0"), "--cycle-interval must be longer"),
        (("--seed-configured-per-cluster", "2"), "--seed-cluster-total"),
        (("--archetypes", "/nowhere.json"), "cannot read /nowhere.json (--archetypes)"),
        (("--seed-density-multiplier", "0"), "--seed-density-multiplier must be at least 1"),
        (("--archetypes", "/dev/null"), "/dev/null (--archetypes) is not a JSON array"),
        (("--seed-machines", "1000001"), "one provider holds at most 1000000"),
        (("--audit-log", "/"), "cannot open --audit-log /: Is a directory"),
    ],
)
def test_a_users_mistake_is_one_line_and_status_1_whether_started_or_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    base = ("--listen", "127.0.0.1:0", "--metrics-addr", "0", "--data-dir", str(tmp_path / "data"))
    for command in (["shard"], ["check-config", "shard"]):
        assert main([*command, *base, *arguments]) == 1
        err = capsys.readouterr().err
        assert said in err and len(err.splitlines()) == 1 and err.startswith("bigfleet: ")
    assert not (tmp_path / "data").exists(), "a refused start takes no epoch"


def test_without_a_provider_and_without_the_fake_it_says_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bigfleet_providerkit", None)
    base = ["--listen", "127.0.0.1:0", "--metrics-addr", "0", "--data-dir", str(tmp_path / "data")]
    for command in (["shard"], ["check-config", "shard"]):
        assert main([*command, *base]) == 1
        err = capsys.readouterr().err
        assert "--provider-addr is empty" in err and "bigfleet[fake]" in err and len(err.splitlines()) == 1


def test_a_folder_that_would_be_refused_is_refused_when_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--listen", "127.0.0.1:0", "--metrics-addr", "0", "--data-dir", str(tmp_path)]
    (tmp_path / "domains").write_text("{}")
    for command in (["shard"], ["check-config", "shard"]):
        assert main([*command, *base]) == 1
        assert "domains is not a JSON array" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["domains"]


def test_an_audit_log_in_a_folder_that_the_shard_will_make_is_no_mistake(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    base = ["--listen", "127.0.0.1:0", f"--data-dir={data}"]
    for log in (data / "audit", data.parent / "audit", tmp_path / "audit"):
        assert main(["check-config", "shard", *base, f"--audit-log={log}"]) == 0
    assert main(["check-config", "shard", *base, f"--audit-log={data / 'logs' / 'audit'}"]) == 1
    assert not list(tmp_path.iterdir())


@rule("shard.F1")
@pytest.mark.parametrize("content", ["x", "", "-1", "1.5", "1 2"])
def test_an_epoch_that_is_no_number_refuses_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "epoch").write_text(content)
    arguments = ["--listen", "127.0.0.1:0", "--metrics-addr", "0", "--data-dir", str(tmp_path)]
    assert main(["shard", *arguments]) == 1
    assert "and no number" in capsys.readouterr().err
    assert (tmp_path / "epoch").read_text() == content


def test_a_configuration_is_checked_with_the_files_it_names_and_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = CertificateAuthority().issue("bigfleet://shard/shard-1").write(tmp_path / "tls")
    flags = [f"--tls-cert={files.cert}", f"--tls-key={files.key}", f"--tls-ca={files.ca}"]
    data = f"--data-dir={tmp_path / 'data'}"
    assert main(["check-config", "shard", data, *flags]) == 1
    assert "bigfleet://shard/shard-1" in capsys.readouterr().err
    assert main(["check-config", "shard", data, "--id", "shard-1", *flags]) == 0
    assert capsys.readouterr().out.startswith("shard shard-1: listens on :7780")
    assert main(["check-config"]) == 2
    assert main(["check-config", "nonsense"]) == 2
    assert not (tmp_path / "data").exists()
    assert main(["shard", data, *flags]) == 1
    assert "bigfleet://shard/shard-1" in capsys.readouterr().err
