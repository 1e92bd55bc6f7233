"""How trees of brokers look."""

from __future__ import annotations

from roamcast.simulator.tree_shape import TreeWatch, shape_of


def test_a_tree_and_a_lonely_leader() -> None:
    shape = shape_of({"a": None, "b": "a", "c": "a", "d": "b", "e": "b", "z": None})
    assert (shape.depth, shape.children_most, shape.trees) == (2, 2, 2)
    assert shape.hops == (1 + 1 + 2 + 2) / 6
    assert shape.branch_largest == 3 / 4


def test_a_cycle_while_a_tree_changes_does_no_harm() -> None:
    assert shape_of({"a": "b", "b": "a"}).depth == 1


def test_means_over_time() -> None:
    parents: dict[str, str | None] = {"a": None, "b": None}
    watch = TreeWatch(lambda: parents)
    assert watch.figures()["tree_depth"] is None
    watch.look()
    parents["b"] = "a"
    watch.look()
    assert watch.figures() == {
        "tree_hops": 0.25,
        "tree_depth": 0.5,
        "tree_children_most": 0.5,
        "tree_branch_largest": 0.5,
        "tree_trees": 1.5,
    }
