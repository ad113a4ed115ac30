"""The workspace keeps its promises: what is committed, what is locked, what each wheel needs."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PACKAGES = ("base", "bigfleet", "providerkit")


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


# Written in two halves so that this file does not hold what it looks for.
REGISTRY_HOSTS = [
    first + second
    for first, second in [
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("proxy.go", "lang.org"),
        ("sum.go", "lang.org"),
        ("registry.npm", "js.org"),
        ("deb.deb", "ian.org"),
        ("repo.maven", ".apache.org"),
        ("static.crates", ".io"),
        ("index.crates", ".io"),
    ]
]


def test_no_tracked_file_names_a_package_registry() -> None:
    pattern = re.compile("|".join(map(re.escape, REGISTRY_HOSTS)))
    named = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in tracked_files()
        if (found := pattern.search(path.read_text(encoding="utf-8", errors="replace")))
    ]
    assert not named


def test_no_tracked_file_holds_a_path_of_one_machine() -> None:
    homes = re.compile(
        r"(?<![\w.~$})>/])/(?:" + "|".join(["ro" + "ot", "ho" + "me/[a-z]", "wo" + "rk/"]) + r")\b"
    )
    named = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in tracked_files()
        if (found := homes.search(path.read_text(encoding="utf-8", errors="replace")))
    ]
    assert not named


def test_every_silenced_type_error_names_its_code_and_its_reason() -> None:
    marker = "type: " + "ignore"
    reasoned = re.compile(marker + r"\[[a-z-]+(?:, ?[a-z-]+)*\] +# \S")
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked_files()
        if path.suffix in {".py", ".pyi"} and "_pb2" not in path.name
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if f"# {marker}" in line and not reasoned.search(line)
    ]
    assert not bare


def test_every_dependency_is_locked_with_hashes() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    blocks = re.findall(
        r"^([a-z0-9][a-z0-9._-]*)==[^\n]*((?:\n    --hash=sha256:[0-9a-f]{64}[ \\]*)+)", lock, re.M
    )
    locked = {name for name, _ in blocks}
    assert len(re.findall(r"^[a-z0-9]", lock, re.M)) == len(blocks), "an entry without hashes"
    wanted = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"])
    for name in PACKAGES:
        project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
        wanted |= set(project["dependencies"])
    names = {re.split(r"[<>=!~ \[]", requirement)[0] for requirement in wanted} - {"bigfleet-base"}
    assert names <= locked, "run `make lock`"


@pytest.mark.parametrize(
    ("python_says", "made_in", "is_remade"),
    [
        (0, "here", False),
        (0, "elsewhere", True),  # the checkout was copied or moved
        (1, "here", True),  # what it is to run is not there: its Python was replaced
        (None, "here", True),  # its Python is gone
        (0, "", True),  # it was never finished
    ],
)
def test_an_environment_that_does_not_work_here_is_made_anew(
    tmp_path: Path, python_says: int | None, made_in: str, *, is_remade: bool
) -> None:
    checkout = tmp_path / "a checkout"
    for name in (
        "requirements.lock",
        "requirements-uv.lock",
        *(f"packages/{one}/pyproject.toml" for one in PACKAGES),
    ):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    (checkout / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    if python_says is None:
        python.symlink_to(tmp_path / "nowhere")
    else:
        python.write_text(f"#!/bin/sh\nexit {python_says}\n")
        python.chmod(0o755)
    if made_in:
        place = {"here": checkout.resolve(), "elsewhere": tmp_path / "before"}[made_in]
        (checkout / ".venv" / ".ready").write_text(f"{place}\n")

    planned = subprocess.run(
        ["make", "--dry-run", "-C", checkout, "venv"], capture_output=True, text=True, timeout=30, check=True
    )

    assert ("-m venv --clear .venv" in planned.stdout) == is_remade, planned.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for name in ("base", "providerkit"):
        uv(
            "build",
            "--wheel",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "-o",
            folder,
            ROOT / "packages" / name,
        )
    return folder


def uv(*arguments: str | Path) -> None:
    subprocess.run([BIN / "uv", "--system-certs", "--quiet", *arguments], cwd=ROOT, check=True, timeout=100)


def test_a_provider_author_installs_neither_numpy_nor_the_control_plane(wheels: Path, tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    lock = (ROOT / "requirements.lock").read_text()
    pins.write_text(
        "\n".join(line.rstrip(" \\") for line in lock.splitlines() if re.match(r"[a-z0-9]", line))
    )
    uv("venv", "--python", sys.executable, tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    uv(
        "pip",
        "install",
        "--python",
        python,
        "--find-links",
        wheels,
        "--constraint",
        pins,
        "bigfleet-providerkit",
    )
    # What has an extra of its own, or is for pytest, is not for everybody.
    script = """
import importlib.resources, importlib.util, pkgutil
import bigfleet_base, bigfleet_providerkit
apart = ("examples.ec2", "examples.kwoknodes", "conformance.pytest_plugin")
for root in (bigfleet_base, bigfleet_providerkit):
    for module in pkgutil.walk_packages(root.__path__, root.__name__ + ".", onerror=lambda name: None):
        if not module.name.removeprefix(root.__name__ + ".").startswith(apart):
            importlib.import_module(module.name)
for absent in ("numpy", "bigfleet"):
    assert importlib.util.find_spec(absent) is None, absent
for root in (bigfleet_base, bigfleet_providerkit):
    assert importlib.resources.files(root).joinpath("py.typed").is_file()
api = importlib.resources.files("bigfleet_base.api")
assert api.joinpath("crds", "capacityrequests.yaml").is_file()
assert api.joinpath("proto", "bigfleet", "v1alpha1", "shard.proto").is_file()
"""
    done = subprocess.run(
        [python, "-I", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
