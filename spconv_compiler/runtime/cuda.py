"""Objects of the CUDA driver, and what HIP has no like of: graphs are brought to the device ahead of their launch."""

from __future__ import annotations

from spconv_compiler.runtime.driver_objects import DeviceMemory, Event, Graph, HostWords, Stream, capture

__all__ = ["DeviceMemory", "Event", "Graph", "HostWords", "Stream", "capture", "upload"]


def upload(graph: Graph, stream: Stream) -> None:
    """Brings a graph to the device, so that its first launch need not."""
    graph.driver.call("cuGraphUpload", graph.handle, stream.handle)
