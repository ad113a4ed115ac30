"""What localproc asks of the operating system."""

import contextlib
import os
from collections.abc import Iterable

from bigfleet_base.model import CapacityType
from bigfleet_providerkit.backend import Offering


def session_members(ref: str, *, but_leader: bool = False) -> list[int]:
    """The processes of the session that ``pid@starttime`` leads or has led."""
    leader, _, started = ref.partition("@")
    found = set()
    # Plain strings and not paths: every look reads all there is, and there may be many machines.
    for pid in os.listdir("/proc"):
        if pid.isdecimal() and (stat := _stat(pid)):
            if pid == leader and stat[19] != started:
                return []  # the number is another process's by now, so of the session nobody is left
            if stat[3] == leader and stat[0] != "Z":
                found.add(pid)
    if but_leader:
        found.discard(leader)
    return [int(pid) for pid in found]


def send_signal(pids: Iterable[int], number: int) -> None:
    """Send a signal to those of the processes that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def own_offerings() -> list[Offering]:
    """This computer's processors as machines of one each, with their share of the memory."""
    cpus = os.cpu_count() or 1
    mib = (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20) // cpus
    size = {"cpu": "1", "memory": f"{mib}Mi"}
    # A synthetic price (provider.md §14): 0 would win every choice.
    price = round(0.0030 + mib / 1024 * 0.0008, 6)
    return [
        Offering("local-1", "local", CapacityType.ON_DEMAND, cpus, price, allocatable=size, resources=size)
    ]


def _stat(pid: str) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the command, or none if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
