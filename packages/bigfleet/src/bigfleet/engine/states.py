"""The states of machines by name alone: Python 3.11 takes ten times as long to find one through its
enumeration, and a cycle asks for every claim."""

from typing import Final

from bigfleet_base.model import MachineState

SPECULATIVE: Final = MachineState.SPECULATIVE
CREATING: Final = MachineState.CREATING
IDLE: Final = MachineState.IDLE
CONFIGURING: Final = MachineState.CONFIGURING
CONFIGURED: Final = MachineState.CONFIGURED
DRAINING: Final = MachineState.DRAINING
