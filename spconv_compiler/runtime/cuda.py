"""Objects of the CUDA driver that HIP has no like of: graphs whose first launch is set anew in every run."""

from __future__ import annotations

import ctypes
import functools

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.driver_objects import DeviceMemory, Event, Graph, HostWords, Stream, capture
from spconv_compiler.runtime.prepared import PreparedLaunch

__all__ = ["DeviceMemory", "Event", "Graph", "HeadedGraph", "HostWords", "Stream", "capture", "last_node"]


class HeadedGraph:
    """A graph whose first launch takes other arguments in every run.

    Args:
        graph: captured to keep what it is an instance of. node: of its first launch. head: the arguments of that.
    """

    def __init__(self, graph: Graph, node: int, head: PreparedLaunch) -> None:
        self.graph, self.head = graph, head
        function, launch = graph.driver.bare("cuGraphExecKernelNodeSetParams"), graph.driver.bare("cuGraphLaunch")
        address = ctypes.c_void_p.from_param
        handle, self._failed = address(graph.handle), graph.driver.failed
        self._set = functools.partial(function, handle, address(node), address(ctypes.addressof(head.node)))
        self._launch = functools.partial(launch, handle)

    def launch(self, stream: int) -> None:
        """Queues it, its head with the arguments that are set now; raises LaunchError where the driver refuses."""
        code = self._set()
        if code:
            raise self._failed("cuGraphExecKernelNodeSetParams", code)
        code = self._launch(ctypes.c_void_p(stream))
        if code:
            raise self._failed("cuGraphLaunch", code)


def upload(graph: Graph, stream: Stream) -> None:
    """Brings a graph to the device, so that its first launch need not."""
    graph.driver.call("cuGraphUpload", graph.handle, stream.handle)


def last_node(stream: Stream) -> int:
    """The handle of what was captured last on a stream that is being captured.

    Raises:
        LaunchError: the driver is too old to say, or nothing was captured.
    """
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    nodes, edges, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    places = map(ctypes.addressof, (status, number, graph, nodes, edges, count))
    stream.driver.call("cuStreamGetCaptureInfo_v3", stream.handle, *places)
    if count.value != 1 or not nodes.value:
        raise LaunchError(f"a capture ends in {count.value} nodes; accepted: 1")
    return ctypes.c_size_t.from_address(nodes.value).value
