"""Planting a mistake in the kit of this process, and taking it out again."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_providerkit import state
from bigfleet_providerkit.metrics import Telemetry
from bigfleet_providerkit.server import Service

Change = Callable[[pb.Machine], None]


class Kit:
    """The kit, as a breach may change it."""

    def __init__(self, planted: ExitStack) -> None:
        self._planted = planted

    def put(self, owner: object, name: str, value: object) -> None:
        """Replace an attribute of a module or class."""
        self._planted.enter_context(mock.patch.object(owner, name, value))

    def around(self, owner: object, name: str) -> Callable[[Callable[..., Any]], None]:
        """Decorates what is called instead of a function or method; the original is its first argument."""
        original = getattr(owner, name)

        def replace(wrong: Callable[..., Any]) -> None:
            async def awaited(*args: Any, **more: Any) -> Any:
                return await wrong(original, *args, **more)

            def called(*args: Any, **more: Any) -> Any:
                return wrong(original, *args, **more)

            # The kit runs plain methods of a backend in threads.
            self.put(owner, name, awaited if inspect.iscoroutinefunction(original) else called)

        return replace

    def records(self, change: Change) -> None:
        """Change every record on its way out: by Get, by List and in acknowledgements."""
        self.got(change)
        self.listed(change)
        self.acknowledged(change)

    def got(self, change: Change) -> None:
        """Change what Get shows."""

        @self.around(Service, "_get")
        async def get(original: Any, *args: Any) -> bytes:
            machine = pb.Machine.FromString(await original(*args))
            change(machine)
            return machine.SerializeToString()

    def listed(self, change: Change) -> None:
        """Change what List shows of each machine."""

        @self.lists
        def every(request: pb.ListFilter, found: pb.MachineList) -> None:
            for machine in found.machines:
                change(machine)

    def acknowledged(self, change: Change) -> None:
        """Change the snapshot in acknowledgements."""

        @self.around(Service, "_mutate")
        async def mutate(original: Any, *args: Any, **more: Any) -> bytes:
            ack = pb.TransitionAck.FromString(await original(*args, **more))
            change(ack.machine)
            return ack.SerializeToString()

    def lists(self, change: Callable[[pb.ListFilter, pb.MachineList], None]) -> None:
        """Change the answers to List."""

        @self.around(Service, "_list")
        async def answer(original: Any, service: Any, request: pb.ListFilter, context: Any) -> bytes:
            found = pb.MachineList.FromString(await original(service, request, context))
            change(request, found)
            return found.SerializeToString()

    def lawless(self) -> None:
        """Let machines go from any state to any other."""
        self.put(state, "edge", lambda source, target: None)


@contextmanager
def planted(
    plant: Callable[[Kit], None], panicked: Callable[[BaseException], None] = lambda error: None
) -> Iterator[None]:
    """The kit with this mistake in it, until the end of the block.

    ``panicked`` is told of every error that the kit did not expect: a provider that breaks down turns checks
    red for reasons of its own.
    """
    with ExitStack() as stack:
        kit = Kit(stack)
        plant(kit)

        @kit.around(Telemetry, "panicked")
        def tell(original: Any, telemetry: Any, error: BaseException) -> None:
            original(telemetry, error)
            panicked(error)

        yield
