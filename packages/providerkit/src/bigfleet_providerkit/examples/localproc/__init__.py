"""An example provider whose machines are process trees on this computer."""

from bigfleet_providerkit.examples.localproc.backend import LocalProc

__all__ = ["LocalProc"]
