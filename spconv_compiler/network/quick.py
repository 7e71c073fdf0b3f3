"""A call of a captured network with next to no work on the host: what the last calls have proven is not proven again.

It serves networks over one coordinate tensor that make no voxels and end in a convolution: one kernel takes the frame
in, one graph does the rest, the last launch goes from the caller's features (or the graph's) to a new tensor. A frame
whose tensors are of another kind, or that has no room, is left to replay.py, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spconv_compiler.network.boundary import TorchPart
from spconv_compiler.network.captured import CapturedNetwork
from spconv_compiler.network.intake import ALIGNMENT
from spconv_compiler.network.places import DTYPES
from spconv_compiler.network.plan import NetworkPlan

# torch's current stream as a number, without an object around it.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def quick_call(
    plan: NetworkPlan, found: CapturedNetwork, head: TorchPart, tail: TorchPart, args: Sequence[Any]
) -> QuickCall | None:
    """The quick call of a network that is captured, or None where it is not one of those; args: of a call."""
    loose, levels = found.loose, [number for kind, number in plan.arguments if kind == "level"]
    plain = head.module is None and tail.module is None and not head.constants and not tail.constants
    if not plain or loose is None or len(levels) != 1 or len(plan.levels) != 1 or found.only_graph is None:
        return None
    if plan.results != (("value", plan.steps[loose].out),) or tail.picks != (0,) or None in head.picks:
        return None
    return QuickCall(plan, found, [pick for pick in head.picks if pick is not None], args)


class QuickCall:
    """See the module. The caller lets one call in at a time, and knows that `found` is still the one to run."""

    def __init__(
        self, plan: NetworkPlan, found: CapturedNetwork, picks: Sequence[int], args: Sequence[Any]
    ) -> None:
        assert found.loose is not None
        self._found, self._index, self._room = found, found.index, found.room[0]
        out = plan.values[plan.steps[found.loose].out]
        self._shape, self._dtype = (self._room, out.channels), DTYPES[out.dtype]
        places = {argument: picks[place] for place, argument in enumerate(plan.arguments)}
        self._coords = places.pop(("level", 0))
        # Place among the arguments, number, type, channels.
        self._values = [
            (place, number, type(args[place]), DTYPES[plan.values[number].dtype], plan.values[number].channels)
            for (_, number), place in places.items()
        ]
        self._coords_type, self._count = type(args[self._coords]), len(args)
        self._frame, self._coords_slot, self._rows_slot = found.intake.only()
        self._words, self._calls = found.intake.report.words, found.device.calls()
        self._checked, self._done = found.intake.checked.handle, found.done.handle
        assert found.only_graph is not None and found.last is not None
        self._graph, self._last = found.only_graph.handle, found.last
        self._out_slots = found.last.slots["out"]

    def __call__(self, args: Sequence[Any]) -> Any:
        """The result [N, C], or None where the call has to go the long way, for whatever reason.

        Raises:
            LaunchError: the device refuses or fails.
        """
        pointers = self._pointers(args)
        if pointers is None or torch.cuda.is_current_stream_capturing():
            return None
        rows = args[self._coords].shape[0]
        stream = self._stream()
        found, calls = self._found, self._calls
        with found.device.current():
            found.order(stream)
            self._words[0] = 0
            self._coords_slot.value, self._rows_slot.value = pointers[0], rows
            self._frame.launch(stream)
            calls.record(self._checked, stream)
            try:
                found.take(pointers[1], rows, stream)
                calls.launch_graph(self._graph, stream)
                made = found.like.new_empty(self._shape, dtype=self._dtype)
                for slot in self._out_slots:
                    slot.value = made.data_ptr()
                self._last.launch(stream)
            finally:
                calls.record(self._done, stream)
            if rows != self._room:
                made = made.narrow(0, 0, rows)
            calls.synchronize(self._checked)
        return None if self._words[0] else made

    def _stream(self) -> int:
        index = self._index
        return int(torch.cuda.current_stream(index).cuda_stream if _raw_stream is None else _raw_stream(index))

    def _pointers(self, args: Sequence[Any]) -> tuple[int, dict[int, int]] | None:
        """(address of coordinates, of values by number), or None where they are not of the kind that was seen."""
        if len(args) != self._count:
            return None
        coords, index = args[self._coords], self._index
        try:
            if type(coords) is not self._coords_type or coords.dtype is not torch.int32:
                return None
            shape = coords.shape
            rows = shape[0]
            if len(shape) != 2 or shape[1] != 4 or not 0 < rows <= self._room or not coords.is_contiguous():
                return None
            begin = coords.data_ptr()
            if coords.get_device() != index or begin % ALIGNMENT or not begin:
                return None
            pointers = {}
            for place, number, kind, dtype, channels in self._values:
                value = args[place]
                if type(value) is not kind or value.dtype is not dtype or value.shape != (rows, channels):
                    return None
                pointer = value.data_ptr()
                if value.requires_grad or not value.is_contiguous() or value.is_neg() or value.get_device() != index:
                    return None
                if pointer % ALIGNMENT or not pointer:
                    return None
                pointers[number] = pointer
        except (RuntimeError, IndexError):  # tensors without strides or memory, which the long way has words for
            return None
        return begin, pointers
