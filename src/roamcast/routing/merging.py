"""The routing strategy `merging`: covering, plus merging of filters whose union is a filter.

A union is kept as a line: filters that differ in one attribute only. Their values of that attribute are
ranges of which each touches the next one, or lists of values. A line may be a part of another line, in
another attribute. When a part is removed, its line becomes the union of the other parts: mostly unchanged,
else shorter, or split in two; only then the lines above it are dissolved, and their parts are placed anew.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, TypeGuard

from roamcast.filters.filter import Filter
from roamcast.filters.merge_index import MergeIndex, Merger, shape_of
from roamcast.filters.merging import with_values
from roamcast.filters.values import ValueSet, union
from roamcast.routing.covering import CoveringAggregate, Node
from roamcast.state import State


class Part(Node):
    """A node that may be part of a line."""

    __slots__ = ("line",)

    __state__ = State("merging-part")

    def __init__(self, filter: Filter) -> None:
        super().__init__(filter)
        self.line: Line | None = None

    def values(self, name: str) -> ValueSet:
        """Return the values of a single box for an attribute."""
        assert self.filter.boxes
        return self.filter.boxes[0][name]


class Line(Part):
    """The union of its parts. Parts that are ranges are sorted, none covers another, and each touches the
    next."""

    __slots__ = ("is_range", "name", "parts")

    __state__ = State("merging-line")

    def __init__(self, filter: Filter, name: str, is_range: bool, parts: list[Part]) -> None:
        super().__init__(filter)
        self.name = name
        self.is_range = is_range
        self.parts = parts
        for part in parts:
            part.line = self

    def low(self, part: Part) -> Any:
        return _ends(part, self.name)[0]

    def high(self, part: Part) -> Any:
        return _ends(part, self.name)[1]

    def enter(self, part: Part) -> None:
        """Add a part; a part that another one covers is placed below it."""
        part.line = self
        if not self.is_range:
            self.parts.append(part)
            return
        place = bisect_right(self.parts, self.low(part), key=self.low)
        if place and self.high(self.parts[place - 1]) >= self.high(part):
            part.line = None
            self.parts[place - 1].put_below(part)
            return
        first = bisect_left(self.parts, self.low(part), key=self.low)
        last = bisect_right(self.parts, self.high(part), key=self.high)
        for covered in self.parts[first:last]:
            covered.line = None
            part.put_below(covered)
        self.parts[first:last] = [part]

    def covering(self, filter: Filter) -> Part | None:
        """Return a part that covers this filter."""
        if not self.is_range:
            return next((part for part in self.parts if part.filter.covers(filter)), None)
        shape = shape_of(filter.boxes[0][self.name]) if filter.boxes and len(filter.boxes) == 1 else None
        if shape is None or shape.ends is None:
            return None
        # The furthest-reaching part of those that begin early enough.
        place = bisect_right(self.parts, shape.ends[0], key=self.low)
        part = self.parts[place - 1] if place else None
        return part if part is not None and part.filter.covers(filter) else None

    def without(self, part: Part) -> list[list[Part]] | None:
        """Remove a part; returns the remaining groups of parts, or None if the union is unchanged."""
        is_range = self.is_range
        place = bisect_left(self.parts, self.low(part), key=self.low) if is_range else self.parts.index(part)
        left, right = self.parts[:place], self.parts[place + 1 :]
        part.line = None
        if not is_range:
            return [left + right]
        if not left or not right:
            return [left or right]
        if self.high(left[-1]) < self.low(right[0]):
            return [left, right]
        del self.parts[place]
        return None


class MergingAggregate(CoveringAggregate):
    __state__ = State("merging-aggregate", derived=("_mergers",))

    def _restore(self) -> None:
        super()._restore()
        self._mergers = MergeIndex()
        for filter in self._roots:
            self._mergers.add(filter)

    def _make_node(self, filter: Filter) -> Node:
        return Part(filter)

    def _add_root(self, node: Node) -> None:
        super()._add_root(node)
        self._mergers.add(node.filter)

    def _remove_root(self, node: Node) -> None:
        super()._remove_root(node)
        self._mergers.remove(node.filter)

    def _place_below(self, root: Node, node: Node) -> None:
        """Place a node directly below the lowest known node that covers it; it stays there when the nodes
        above are dissolved."""
        while isinstance(root, Line):
            part = root.covering(node.filter)
            if part is None:
                break
            root = part
        root.put_below(node)

    def _settle(self, node: Node) -> None:
        """Place an uncovered node: move the nodes that it covers below it, and merge it with others if
        possible."""
        self._absorb(node)
        while (merger := self._mergers.find(node.filter)) is not None:
            other = self._roots[merger.other]
            self._remove_root(other)
            assert isinstance(node, Part)
            assert isinstance(other, Part)
            node = _joined(node, other, merger)
            self._absorb(node)
        self._add_root(node)

    def _withdraw(self, node: Node) -> None:
        assert isinstance(node, Part)
        loose: list[Node] = []
        # Up along the lines, as far as they change.
        while node.line is not None:
            line = node.line
            groups = line.without(node)
            loose += _taken_from(node)
            if groups is None:
                break
            loose += _pieces(line, groups)
            node = line
        else:
            self._withdraw_whole(node, loose)
        # The last one is the widest, and covers or merges with earlier ones.
        for one in reversed(loose):
            one.above = None
            self._place(one)

    def _withdraw_whole(self, node: Node, loose: list[Node]) -> None:
        """Withdraw a node that is not part of a line."""
        if node.above is None:
            self._remove_root(node)
            loose += _taken_from(node)
            return
        above = node.above
        del above.below[node]
        # The node above covers everything that was taken out, too.
        for one in (*loose, *_taken_from(node)):
            above.put_below(one)
        loose.clear()


def _ends(part: Part, name: str) -> tuple[Any, Any]:
    values = part.values(name)
    cuts: tuple[Any, ...] = values.numbers or values.strings
    return cuts[0], cuts[-1]


def _taken_from(node: Node) -> list[Node]:
    below, node.below = list(node.below), {}
    return below


def _joined(one: Part, other: Part, merger: Merger) -> Line:
    """Return the line of two nodes; an existing line grows."""
    name = merger.name
    values = union(one.values(name), other.values(name))
    shape = None if values is None else shape_of(values)
    is_range = shape is not None and shape.ends is not None
    lengths = [len(node.parts) if _is_line(node, name, is_range) else 0 for node in (one, other)]
    if not any(lengths):
        parts = [other, one] if is_range and _ends(other, name) < _ends(one, name) else [one, other]
        return Line(merger.union, name, is_range, parts)
    line, added = (one, other) if lengths[0] >= lengths[1] else (other, one)
    assert isinstance(line, Line)
    line.filter = merger.union
    if _is_line(added, name, is_range):
        for part in added.parts:
            line.enter(part)
        for below in _taken_from(added):
            line.put_below(below)
    else:
        line.enter(added)
    return line


def _is_line(node: Part, name: str, is_range: bool) -> TypeGuard[Line]:
    return isinstance(node, Line) and (node.name, node.is_range) == (name, is_range)


def _pieces(line: Line, groups: list[list[Part]]) -> list[Node]:
    """Return the nodes that remain of a line when only these parts are left."""
    pieces: list[Node] = []
    for parts in groups:
        for part in parts:
            part.line = None
        values = _together(line, parts)
        filter = None if values is None else with_values(parts[0].filter, line.name, values)
        if filter is None or len(parts) == 1:
            pieces += parts
        else:
            pieces.append(Line(filter, line.name, line.is_range, parts))
    return pieces


def _together(line: Line, parts: list[Part]) -> ValueSet | None:
    """Return the union of the line's attribute values over connected parts."""
    sets = [part.values(line.name) for part in parts]
    if line.is_range:
        low, high = line.low(parts[0]), line.high(parts[-1])
        return ValueSet(numbers=(low, high)) if sets[0].numbers else ValueSet(strings=(low, high))
    # Pairwise, because long lists take longer.
    while len(sets) > 1:
        joined = [union(one, other) for one, other in zip(sets[::2], sets[1::2], strict=False)]
        if None in joined:
            return None
        sets = [one for one in joined if one is not None] + sets[len(joined) * 2 :]
    return sets[0]
