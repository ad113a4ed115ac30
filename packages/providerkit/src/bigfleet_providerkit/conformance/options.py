"""What a run is told (conformance.md §3.1)."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from bigfleet_base import options
from bigfleet_base.model import ID_PATTERN, is_valid_id
from bigfleet_base.options import UsageError, duration, new_parser
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS, PROFILES

PREFIX: Final = "BIGFLEET_CONFORMANCE_"
KINDS: Final = ("create", "configure", "drain", "delete")
FORMATS: Final = ("json", "junit", "badge", "md")
_SECOND: Final = 10**9
_LONGEST_S: Final = 1_000_000_000
"""What comes out of a slip of the finger; clocks and sleeps would not take much more."""


@dataclass(frozen=True)
class Options:
    """The options of one run; times are seconds."""

    target: str = ""
    provider_cmd: str = ""
    profiles: tuple[str, ...] = ("core",)
    """``("auto",)`` derives them from the provider."""
    select: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    settle: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 15.0))
    poll: float = 0.02
    fast_poll: float = 0.001
    seed: int = 1
    min_slots: int | None = None
    """None asks for what the provider's capabilities make necessary."""
    parallel: int = 1
    reclaim: bool = True
    tls_ca: str = ""
    certs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    shard_ids: tuple[str, ...] = ()
    fault_mode: str = "auto"
    transition_timeout: float = 2.0
    recovery: float = 300.0
    """For a lost host to show, and for a Failed machine to be repaired."""
    readiness_oracle: str = ""
    workloads: str = ""
    """A folder that the hosts see; they run bootstrap blobs that begin with ``#!/bin/sh``."""
    scale_seed: int = 8_000
    soak: float = 10.0
    hundred_thousand: bool = False
    compat: bool = False
    no_vacuous: bool = False
    timeout: float = 1_800.0

    def __post_init__(self) -> None:
        if bool(self.target) == bool(self.provider_cmd):
            raise UsageError(
                "give the provider to check: either --target HOST:PORT of a running one, or --provider-cmd"
            )
        if self.provider_cmd:
            _check_command(self.provider_cmd)
        self._check_ids()
        self._check_certificates()
        self._check_numbers()
        # A mistake in either would show when the first check that needs it has nothing to look at.
        if self.workloads and not Path(self.workloads).is_dir():
            raise UsageError(f"{self.workloads} (--workloads) is no folder")
        oracle = self.readiness_oracle
        if oracle and "://" not in oracle and not Path(oracle).is_file():
            raise UsageError(f"{oracle} (--readiness-oracle) is neither a URL nor the file of a kubeconfig")

    def _check_ids(self) -> None:
        if not self.profiles:
            raise UsageError(f"--profile is empty: name some of {', '.join(PROFILES)}, or auto")
        if unknown := set(self.profiles) - {*PROFILES, "auto"}:
            raise UsageError(f"--profile: {min(unknown)!r} is none of {', '.join(PROFILES)}, auto")
        if "auto" in self.profiles and len(self.profiles) > 1:
            raise UsageError("--profile auto finds the profiles itself: name no others beside it")
        for glob in (*self.select, *self.exclude):
            if not any(fnmatchcase(behaviour_id, glob) for behaviour_id in BEHAVIOURS):
                raise UsageError(f"no id matches {glob!r}; ids look like B101, X301, and globs like B3*")
        profiles = {*PROFILES} if "auto" in self.profiles else {*self.profiles}
        if not any(self.selects(one.id) and profiles & {*one.profiles} for one in BEHAVIOURS.values()):
            raise UsageError(
                f"--profile {','.join(self.profiles)} has no id that --select and --exclude leave in"
            )

    def _check_certificates(self) -> None:
        if len(self.certs) != len(self.keys):
            raise UsageError(f"{len(self.certs)} --cert and {len(self.keys)} --key do not make pairs")
        if self.certs and not self.tls_ca:
            raise UsageError("--cert and --key need --tls-ca, the authority that vouches for the target")
        if self.certs and self.shard_ids and len(self.shard_ids) != len(self.certs):
            raise UsageError("every --shard-id needs its own --cert and --key, in the same order")
        if len(self.certs) > 1 and not self.shard_ids:
            raise UsageError("several --cert are for several --shard-id, in the same order")
        if "" in self.shard_ids or len(set(self.shard_ids)) < len(self.shard_ids):
            raise UsageError("every --shard-id must be another one, and none of them empty")
        if wrong := [shard_id for shard_id in self.shard_ids if not is_valid_id(shard_id)]:
            raise UsageError(f"--shard-id {wrong[0]!r} does not match {ID_PATTERN}")

    def _check_numbers(self) -> None:
        for flag, number in (
            ("--parallel", self.parallel),
            ("--min-slots", 1 if self.min_slots is None else self.min_slots),
            ("--scale-seed", self.scale_seed),
        ):
            if number < 1:
                raise UsageError(f"{flag} is {number}; it must be at least 1")
        for flag, seconds in (
            *(("--settle-timeout", seconds) for seconds in self.settle.values()),
            ("--poll", self.poll),
            ("--fast-poll", self.fast_poll),
            ("--transition-timeout", self.transition_timeout),
            ("--recovery-timeout", self.recovery),
            ("--soak", self.soak),
            ("--timeout", self.timeout),
        ):
            if not 0 < seconds <= _LONGEST_S:
                raise UsageError(
                    f"{flag} is {seconds:g} s; it must be more than 0 and at most {_LONGEST_S} s"
                )

    def selects(self, behaviour_id: str) -> bool:
        """Whether ``--select`` and ``--exclude`` leave the id in."""
        return any(fnmatchcase(behaviour_id, glob) for glob in self.select) and not any(
            fnmatchcase(behaviour_id, glob) for glob in self.exclude
        )

    def reproduction(self, behaviour_id: str) -> str:
        """The command that runs one id again as it ran here."""
        words = ["bigfleet-conformance"]
        words += ["--target", self.target] if self.target else ["--provider-cmd", self.provider_cmd]
        words += ["--profile", ",".join(self.profiles), "--select", behaviour_id, "--seed", str(self.seed)]
        words += ["--compat"] if self.compat else []
        words += ["--hundred-thousand"] if self.hundred_thousand else []
        default = Options(target="default")
        if self.settle != default.settle:
            words += [
                "--settle-timeout",
                ",".join(f"{kind}={_as_duration(s)}" for kind, s in self.settle.items()),
            ]
        for flag, name in (
            ("--min-slots", "min_slots"),
            ("--fault-mode", "fault_mode"),
            ("--scale-seed", "scale_seed"),
            ("--tls-ca", "tls_ca"),
            ("--readiness-oracle", "readiness_oracle"),
            ("--workloads", "workloads"),
        ):
            if getattr(self, name) != getattr(default, name):
                words += [flag, str(getattr(self, name))]
        for flag, name in (
            ("--poll", "poll"),
            ("--fast-poll", "fast_poll"),
            ("--transition-timeout", "transition_timeout"),
            ("--recovery-timeout", "recovery"),
            ("--soak", "soak"),
        ):
            if (seconds := getattr(self, name)) != getattr(default, name):
                words += [flag, _as_duration(seconds)]
        words += [] if self.reclaim else ["--reclaim", "off"]
        for flag, values in (("--cert", self.certs), ("--key", self.keys), ("--shard-id", self.shard_ids)):
            for value in values:
                words += [flag, value]
        return shlex.join(words)

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Output:
    """What a command line does with a report."""

    folder: Path | None
    formats: tuple[str, ...]


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[Options, Output]:
    """Options from flags, environment and file; UsageError or SystemExit(2) for a mistake."""
    given = options.parse(_parser(), argv, environment, PREFIX)
    return (
        Options(
            target=given.target,
            provider_cmd=given.provider_cmd,
            profiles=_words(given.profile),
            select=tuple(given.select) or ("*",),
            exclude=tuple(given.exclude),
            settle=given.settle_timeout,
            poll=given.poll / _SECOND,
            fast_poll=given.fast_poll / _SECOND,
            seed=given.seed,
            min_slots=given.min_slots,
            parallel=given.parallel,
            reclaim=given.reclaim == "on",
            tls_ca=given.tls_ca,
            certs=tuple(given.cert),
            keys=tuple(given.key),
            shard_ids=tuple(given.shard_id),
            fault_mode=given.fault_mode,
            transition_timeout=given.transition_timeout / _SECOND,
            recovery=given.recovery_timeout / _SECOND,
            readiness_oracle=given.readiness_oracle,
            workloads=given.workloads,
            scale_seed=given.scale_seed,
            soak=given.soak / _SECOND,
            hundred_thousand=given.hundred_thousand,
            compat=given.mode == "compat",
            no_vacuous=given.no_vacuous,
            timeout=given.timeout / _SECOND,
        ),
        _output(given.out, _words(given.format)),
    )


def settle_limits(text: str) -> dict[str, float]:
    """Seconds per kind of transition from ``30s`` or ``30s,create=2m``."""
    limits = dict.fromkeys(KINDS, 15.0)
    for part in _words(text):
        kind, equals, value = part.rpartition("=")
        if equals and kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} is none of {', '.join(KINDS)}")
        limits |= dict.fromkeys([kind] if equals else KINDS, duration(value) / _SECOND)
    return limits


def _check_command(command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--provider-cmd cannot be split into words: {error}") from error
    if not any("{addr}" in word for word in words):
        raise UsageError("--provider-cmd must say where the address goes: write {addr} in it")


def _output(folder: str, formats: tuple[str, ...]) -> Output:
    allowed = FORMATS if folder else ("text", *FORMATS)
    if unknown := set(formats) - set(allowed):
        raise UsageError(f"--format: {min(unknown)!r} is none of {', '.join(allowed)}")
    if folder:
        return Output(Path(folder), formats or FORMATS)
    if len(formats) > 1:
        raise UsageError("several --format need --out DIR; without it one is printed")
    return Output(None, formats or ("text",))


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "Check that a capacity provider does what BigFleet needs of it. It creates and destroys machines:"
        " point it at a provider that is yours to use up.",
        PREFIX,
        prog="bigfleet-conformance",
    )
    add = parser.add_argument
    add("--target", metavar="HOST:PORT", default="", help="a running provider")
    add(
        "--provider-cmd",
        metavar="COMMAND",
        default="",
        help="start the provider with this command; {addr}, {state} and {seed_count} are filled in",
    )
    add("--profile", metavar="NAMES", default="core", help=f"comma list of {', '.join(PROFILES)}; or auto")
    globs: dict[str, Any] = {"action": "extend", "type": _words, "metavar": "GLOBS", "default": []}
    add("--select", **globs, help="only these ids, for example B3*,X301; repeatable")
    add("--exclude", **globs, help="not these ids; repeatable")
    add(
        "--settle-timeout",
        type=settle_limits,
        metavar="TIME",
        default="15s",
        help="how long a transition may take; per kind: 30s,create=2m",
    )
    add("--poll", type=duration, metavar="TIME", default="20ms", help="between two looks at a machine")
    add("--fast-poll", type=duration, metavar="TIME", default="1ms", help="while hunting passing states")
    add("--seed", type=int, metavar="N", default=1, help="of everything random")
    add(
        "--min-slots",
        type=int,
        metavar="N",
        help="free machines to insist on; else 120, or 24 when reclaimed",
    )
    add("--parallel", type=int, metavar="N", default=1, help="ids at once")
    add("--reclaim", choices=("on", "off"), default="on", help="drain and delete what each id has used")
    add("--tls-ca", metavar="FILE", default="", help="authority of the target's certificate")
    add("--cert", "--tls-cert", action="append", metavar="FILE", default=[], help="ours; repeatable")
    add("--key", "--tls-key", action="append", metavar="FILE", default=[], help="of --cert, in order")
    add(
        "--shard-id",
        action="append",
        metavar="ID",
        default=[],
        help="the shard that --cert names, for a target that checks it; in order",
    )
    add(
        "--fault-mode",
        choices=("auto", "hooks", "reference", "off"),
        default="auto",
        help="whose faults: the provider's own hooks, or a reference provider's",
    )
    add(
        "--transition-timeout",
        type=duration,
        metavar="TIME",
        default="2s",
        help="of the target in the fault lane, if it does not say",
    )
    add(
        "--recovery-timeout",
        type=duration,
        metavar="TIME",
        default="5m",
        help="until a lost host must show, and until a failed machine must be repaired",
    )
    add(
        "--readiness-oracle",
        metavar="URL",
        default="",
        help="API server or kubeconfig of cluster conformance-a: the suite looks at nodes there",
    )
    add(
        "--workloads",
        metavar="DIR",
        default="",
        help="hosts see this folder and run bootstrap blobs that begin with #!/bin/sh: check Drain with them",
    )
    add("--scale-seed", type=int, metavar="N", default=8_000, help="machines in the scale lane")
    add("--soak", type=duration, metavar="TIME", default="10s", help="of the scale lane's long checks")
    add("--hundred-thousand", action="store_true", help="also start the provider with so many machines")
    add("--out", metavar="DIR", default="", help="write the reports here")
    add("--format", metavar="NAMES", default="", help=f"{', '.join(FORMATS)}; without --out one, printed")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--strict",
        dest="mode",
        action="store_const",
        const="strict",
        default="strict",
        help="the stricter reading of each behaviour",
    )
    mode.add_argument(
        "--compat",
        dest="mode",
        action="store_const",
        const="compat",
        default="strict",
        help="also take the lenient alternatives of the reference suite",
    )
    add("--no-vacuous", action="store_true", help="a check that had nothing to bind fails")
    add("--timeout", type=duration, metavar="TIME", default="30m", help="of the whole run")
    return parser


def _as_duration(seconds: float) -> str:
    """As a flag takes it, which knows no exponents."""
    return f"{round(seconds * _SECOND)}ns" if seconds % 1 else f"{seconds:.0f}s"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
