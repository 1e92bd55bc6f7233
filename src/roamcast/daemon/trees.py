"""The tree of brokers that move, as this broker sees it: logged, and counted for the figures."""

from __future__ import annotations

import logging

from roamcast.broker.inputs import Tree
from roamcast.net.logs import fields

log = logging.getLogger("roamcast.tree")


class Trees:
    """Results of the election so far."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._last: Tree | None = None
        self.changes = {"leader": 0, "parent": 0, "children": 0}
        """Number of changes since the process began."""

    def take(self, tree: Tree) -> None:
        before, self._last = self._last or Tree(self._id, ""), tree
        for what in self.changes:
            self.changes[what] += getattr(before, what) != getattr(tree, what)
        if (tree.leader, tree.parent) != (before.leader, before.parent):
            log.info(
                "%s", self._line(tree),
                extra=fields(event="tree", leader=tree.leader, parent=tree.parent, hops=tree.hops),
            )  # fmt: skip

    def _line(self, tree: Tree) -> str:
        if tree.leader == self._id:
            return "this broker leads"
        if not tree.parent:
            return f"the leader is {tree.leader}, and there is no route to it now"
        hops = "1 hop" if tree.hops == 1 else f"{tree.hops} hops"
        return f"the leader is {tree.leader}, {hops} away; the parent is {tree.parent}"
