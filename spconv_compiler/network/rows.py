"""Which rows of an exported graph belong to which coordinates: groups of nodes with equal rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spconv_compiler.network.lines import refuse


class RowGroups:
    """Nodes in groups; each group has the node of its coordinates once some op has said which."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}
        self._coords: dict[Any, Any] = {}

    def _root(self, node: Any) -> Any:
        while self._parent.get(node, node) is not node:
            node = self._parent[node]
        return node

    def link(self, node: Any, others: Iterable[Any]) -> None:
        """`node` has the same rows as `others`.

        Raises:
            InputError: these have rows of different coordinates.
        """
        for other in others:
            first, second = self._root(node), self._root(other)
            if first is second:
                continue
            known = [self._coords.get(root) for root in (first, second)]
            self._parent[first] = second
            given = [coords for coords in known if coords is not None]
            if given:
                self._place(second, given[0], node)
            if len(given) == 2:
                self._place(second, given[1], node)

    def place(self, node: Any, coords: Any, user: Any) -> None:
        """`node` has a row for each row of `coords`, as `user` says.

        Raises:
            InputError: an earlier op has said something else.
        """
        self._place(self._root(node), coords, user)

    def _place(self, root: Any, coords: Any, user: Any) -> None:
        known = self._coords.setdefault(root, coords)
        if known is not coords:
            raise refuse(
                user,
                f"rows of two coordinate sets, {known.name} and {coords.name}, are taken for one",
                "operands over the same coordinates, as one tensor",
            )

    def coords(self, node: Any) -> Any:
        """The coordinates of a node's rows, or None if no op says."""
        return self._coords.get(self._root(node))
