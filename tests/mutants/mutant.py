"""A planted bug as data, and the copy of the engine it is planted in."""

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ENGINE: Final = Path("packages/bigfleet/src/bigfleet/engine")
MODEL: Final = Path("packages/base/src/bigfleet_base/model")
CATALOGUE: Final = Path(__file__).with_name("engine.toml")

DIFFERENTIAL: Final = "differential"
"""In place of a test: engine and oracle disagree about a random fleet (``agreement``)."""


class StaleMutantError(ValueError):
    """The engine has changed where a mutant wants to change it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong rule."""

    name: str
    wrong: str
    """The rule as the planted bug has it, in a sentence."""
    file: str
    """The file of the engine it is planted in, or ``model/`` and that of the model."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    breaks: tuple[str, ...]
    """The rules of the specification it breaks, as file.id."""
    caught_by: str
    """The test that goes red, or ``differential``."""

    @property
    def path(self) -> Path:
        """The file, seen from the root."""
        in_model = self.file.removeprefix("model/")
        return ENGINE / self.file if in_model == self.file else MODEL / in_model

    def planted(self, text: str) -> str:
        """The text of the file with the bug in it."""
        found = text.count(self.old)
        if found != 1:
            raise StaleMutantError(
                f"{self.name}: its old text occurs {found} times in {self.path}, not once; "
                f"write it anew in {CATALOGUE.relative_to(ROOT)}"
            )
        return text.replace(self.old, self.new)


def load() -> list[Mutant]:
    """All mutants, in the order of the file."""
    entries = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "breaks": tuple(entry["breaks"])}) for entry in entries]


def source(mutant: Mutant) -> str:
    """The file it changes, as the checkout has it."""
    return (ROOT / mutant.path).read_text(encoding="utf-8")


def copy_engine(folder: Path, mutant: Mutant | None = None) -> Path:
    """A copy of the sources, with the bug if there is one; put it in front of PYTHONPATH."""
    copy = folder / "src"
    path = ENGINE if mutant is None else mutant.path
    # Of the packages only the one that is changed: what is not copied need not be compiled again.
    sources = Path(*path.parts[:3])
    shutil.copytree(ROOT / sources, copy, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        changed = copy / path.relative_to(sources)
        changed.write_text(mutant.planted(source(mutant)), encoding="utf-8")
    return copy
