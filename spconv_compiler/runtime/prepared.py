"""A launch that is put together once, and queued again and again with one or two other addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from spconv_compiler.runtime.argument_block import ArgumentBlock


class DriverCalls(NamedTuple):
    """Functions of a driver on plain handles, in the device's current context; each raises what the driver says.

    Attributes:
        launch_graph(graph, stream), record(event, stream), synchronize(event).
        is_current(): whether the device is the thread's current one; one thread at a time may ask.
        graph_failed(code): the exception for what a launch of a graph has given (driver_objects.Graph.bare).
    """

    launch_graph: Callable[..., None]
    record: Callable[..., None]
    synchronize: Callable[..., None]
    is_current: Callable[[], bool]
    graph_failed: Callable[[int], Exception]


def quick(library: Any, name: str) -> Callable[..., None]:
    """library.call(name, …) with as little around it as can be: the device has to be the current one."""
    function, failed = library.function(name), library.failed

    def call(*arguments: int) -> None:
        code = function(*arguments)
        if code:
            raise failed(name, code)

    return call


class PreparedLaunch:
    """One kernel on a grid, with arguments in a block of its own; one thread at a time may set and queue it.

    Args:
        block: the arguments, filled. queue: queues the launch on the stream with a handle, and gives the driver's code.
        failed: the exception for a code other than 0.
        owners: what has to live as long as this.

    Attributes:
        queue: as above.
    """

    def __init__(
        self,
        block: ArgumentBlock,
        queue: Callable[[int], int],
        failed: Callable[[int], Exception],
        *owners: Any,
    ) -> None:
        self._block, self.queue, self._failed, self._owners = block, queue, failed, owners

    def slot(self, number: int) -> Any:
        """Argument `number`, whose `value` can be set; it must fit."""
        return self._block.slot(number)

    def launch(self, stream: int) -> None:
        """Queues it; the driver copies the arguments before this returns. The device has to be the current one.

        Raises:
            LaunchError: the driver refuses.
        """
        code = self.queue(stream)
        if code:
            raise self._failed(code)
