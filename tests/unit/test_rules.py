"""``make rules`` on small checkouts made for the purpose."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import rules_report

ENGINE = """\
engine.S1 Demand equal to supply is quiet.
engine.S2 The dearest machine goes first.
engine.S10 A failed Create re-opens the deficit.
"""


class Checkout:
    """A folder with the lists and tests that ``make rules`` looks at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("tests/rules/engine.txt", ENGINE)
        self.write("tests/rules/built.txt", "")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def rules(self, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        # The temporary tests need no plugins, and loading them is most of the time of a run.
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
        return subprocess.run(
            [sys.executable, rules_report.__file__, *args],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def marked(name: str, *ids: str, above: str = "", params: str = "") -> str:
    return f"import pytest\n{above}\n@pytest.mark.rule(*{ids!r})\ndef {name}({params}): ...\n"


def test_tested_rules_are_counted_and_the_others_named(checkout: Checkout) -> None:
    checkout.write("tests/test_engine.py", marked("test_order", "engine.S2"))
    checkout.write("tests/rules/built.txt", "engine.S2  # built\n")
    checkout.write("tests/rules/wire.txt", "".join(f"wire.10.{n} Frame {n} parses.\n" for n in range(1, 12)))

    run = checkout.rules()

    assert (run.returncode, run.stderr) == (0, "")
    assert [line.split() for line in run.stdout.splitlines()] == [
        ["file", "tested", "without", "a", "test"],
        ["engine", "1/3", "S1", "S10"],
        ["wire", "0/11", "10.1…11"],
        ["all", "1/14"],
    ]


def test_a_built_rule_without_a_test_fails_and_shows_its_sentence(checkout: Checkout) -> None:
    checkout.write("tests/test_engine.py", marked("test_quiet", "engine.S1"))
    checkout.write("tests/rules/built.txt", "# why\n\nengine.S[12]  # the order of reclaims\n")

    run = checkout.rules()

    assert run.returncode == 1
    assert run.stderr == (
        "error: engine.S2 has no test; tests/rules/built.txt declares engine.S[12] built. "
        "The dearest machine goes first.\n"
    )


def test_an_unknown_id_names_the_test_that_carries_it(checkout: Checkout) -> None:
    parametrised = marked("test_typo", "engine.S3", above="@pytest.mark.parametrize('x', [1, 2])", params="x")
    checkout.write("tests/unit/test_engine.py", parametrised)
    checkout.write("tests/test_bare.py", marked("test_bare"))
    checkout.write(
        "tests/test_forms.py",
        "import pytest\npytestmark = pytest.mark.rule(['engine.S1'])\ndef test_list(): ...\n",
    )

    run = checkout.rules()

    assert run.returncode == 1
    end = "no list in tests/rules has this <file>.<id>"
    assert sorted(run.stderr.splitlines()) == [
        f"error: tests/test_bare.py::test_bare: unknown rule None: {end}",
        f"error: tests/test_forms.py::test_list: unknown rule ['engine.S1']: {end}",
        f"error: tests/unit/test_engine.py::test_typo: unknown rule 'engine.S3': {end}",
    ]


def test_a_test_that_is_skipped_or_expected_to_fail_states_nothing(checkout: Checkout) -> None:
    skipped = marked("test_skip", "engine.S1", above="@pytest.mark.skip(reason='later')")
    sometimes = marked("test_skipif", "engine.S2", above="@pytest.mark.skipif(False, reason='later')")
    failing = marked("test_xfail", "engine.S10", above="@pytest.mark.xfail")
    checkout.write("tests/test_engine.py", skipped + sometimes + failing)
    checkout.write(
        "tests/test_module.py", marked("test_all", "engine.S1", above="pytestmark = pytest.mark.skip")
    )
    checkout.write("tests/rules/built.txt", "engine.*  # built\n")

    run = checkout.rules()

    assert run.returncode == 1
    idle = "only tests that are skipped or expected to fail"
    first, second, third = run.stderr.splitlines()
    assert f"engine.S1 has {idle}: tests/test_engine.py::test_skip, tests/test_module.py::test_all;" in first
    assert f"engine.S2 has {idle}: tests/test_engine.py::test_skipif;" in second
    assert f"engine.S10 has {idle}: tests/test_engine.py::test_xfail;" in third


def test_one_running_case_of_a_parametrised_test_states_the_rule(checkout: Checkout) -> None:
    cases = "@pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.skip)])"
    checkout.write("tests/test_engine.py", marked("test_quiet", "engine.S1", above=cases, params="x"))
    checkout.write("tests/rules/built.txt", "engine.S1  # built\n")

    assert checkout.rules().returncode == 0


def test_tests_left_out_of_everyday_runs_count(checkout: Checkout) -> None:
    checkout.write("tests/kube/test_kube.py", marked("test_kube", "engine.S1"))
    checkout.write("tests/slow/test_slow.py", marked("test_slow", "engine.S2"))
    checkout.write("tests/test_late.py", marked("test_late", "engine.S10"))
    checkout.write("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '--ignore=tests/kube'\n")
    checkout.write("tests/conftest.py", "def pytest_collection_modifyitems(items): items.clear()\n")

    run = checkout.rules(PYTEST_ADDOPTS="--ignore=tests/slow")

    assert run.returncode == 0
    assert run.stdout.splitlines()[-1].split() == ["all", "3/3"]


def test_a_file_that_cannot_be_imported_is_named_and_the_others_still_count(checkout: Checkout) -> None:
    checkout.write("tests/test_broken.py", "import a_module_nobody_has_written\n")
    checkout.write("tests/test_half.py", "def test_half(:\n")
    checkout.write("tests/test_whole.py", marked("test_quiet", "engine.S1"))

    run = checkout.rules()

    assert run.returncode == 1
    assert run.stdout.splitlines()[-1].split() == ["all", "1/3"]
    broken, half = run.stderr.splitlines()
    assert broken.startswith("error: tests/test_broken.py: cannot be collected, its marks are unknown: ")
    assert "No module named 'a_module_nobody_has_written'" in broken
    assert "tests/test_half.py: cannot be collected" in half and "SyntaxError" in half


def test_a_broken_conftest_is_reported_with_what_pytest_said(checkout: Checkout) -> None:
    checkout.write("tests/conftest.py", "import a_module_nobody_has_written\n")

    run = checkout.rules()

    assert run.returncode == 1
    assert "error: pytest could not collect the tests (exit code 4):" in run.stderr
    assert "No module named 'a_module_nobody_has_written'" in run.stderr


def test_every_fault_of_a_list_is_named_with_its_line(checkout: Checkout) -> None:
    checkout.write("tests/rules/engine.txt", ENGINE + "engine.S9 Late.\nengine.S1 Again.\n\nengine.S11\n")
    checkout.write("tests/rules/wire.txt", f"engine.S12 Misplaced.\nwire.1 {'x' * 161}\n")
    checkout.write("tests/rules/built.txt", "engine.X*  # nothing\nengine.S1\n")

    run = checkout.rules()

    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "error: tests/rules/engine.txt:4: engine.S9 belongs before engine.S10 (numbers by value)",
        "error: tests/rules/engine.txt:5: engine.S1 is listed twice",
        "error: tests/rules/engine.txt:6: expected 'engine.<id> <sentence>', found ''",
        "error: tests/rules/engine.txt:7: expected 'engine.<id> <sentence>', found 'engine.S11'",
        "error: tests/rules/wire.txt:1: expected 'wire.<id> <sentence>', found 'engine.S12 Misplaced.'",
        "error: tests/rules/wire.txt:2: the sentence of wire.1 has 161 characters, at most 160 fit",
        "error: tests/rules/built.txt:1: engine.X* matches no rule of the lists",
        "error: tests/rules/built.txt:2: expected '<glob of ids>  # <reason>', found 'engine.S1'",
    ]


def test_a_checkout_without_lists_is_an_error(checkout: Checkout) -> None:
    (checkout.root / "tests/rules/engine.txt").unlink()
    (checkout.root / "tests/rules/built.txt").unlink()

    run = checkout.rules()

    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "error: tests/rules has no list of rules",
        "error: tests/rules/built.txt is missing; it may be empty",
    ]


def test_json_has_the_tests_of_every_rule(checkout: Checkout) -> None:
    checkout.write("tests/test_engine.py", marked("test_quiet", "engine.S1"))
    checkout.write("tests/rules/built.txt", "engine.S2  # built\n")

    run = checkout.rules("--output", "json")

    assert (run.returncode, run.stderr) == (1, "")
    report = json.loads(run.stdout)
    assert report["ok"] is False
    assert [text.split()[0] for text in report["problems"]] == ["engine.S2"]
    assert report["files"] == {"engine": {"rules": 3, "tested": 1}}
    assert report["rules"][:2] == [
        {
            "id": "engine.S1",
            "sentence": "Demand equal to supply is quiet.",
            "built": False,
            "tests": ["tests/test_engine.py::test_quiet"],
        },
        {"id": "engine.S2", "sentence": "The dearest machine goes first.", "built": True, "tests": []},
    ]


@pytest.mark.parametrize("text", ["engine", "engine.S[12]"])
def test_a_filter_shows_the_sentences_of_rules_without_a_test(checkout: Checkout, text: str) -> None:
    checkout.write("tests/test_engine.py", marked("test_quiet", "engine.S1"))
    checkout.write("tests/rules/wire.txt", "wire.10.1 A frame parses.\n")

    run = checkout.rules(text)

    assert run.returncode == 0
    assert "The dearest machine goes first." in run.stdout
    assert "A frame parses." not in run.stdout and "Demand equal" not in run.stdout


def test_a_filter_that_matches_nothing_is_a_usage_error(checkout: Checkout) -> None:
    run = checkout.rules("enigne")

    assert run.returncode == 2
    assert "no rule matches 'enigne'; the files are: engine" in run.stderr
