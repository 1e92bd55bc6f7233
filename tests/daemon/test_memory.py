"""How a broker process collects garbage. Each test has a process: that is a setting of the process."""

import subprocess
import sys

PROGRAM = """
import asyncio, gc, weakref
from roamcast.daemon import memory
from roamcast.daemon.memory import COLLECT_AFTER, Survivors, collect_seldom

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return node, weakref.ref(node)

def fill(kept):
    kept += [[] for _ in range(COLLECT_AFTER + 1000)]

collect_seldom()
collect_seldom()
(survivors,) = [one for one in gc.callbacks if isinstance(one, Survivors)]
before, sessions = gc.get_freeze_count(), []

node, young = cycle()
del node
fill(sessions)
assert young() is None, "new garbage is collected"

node, old = cycle()
fill(sessions)
assert gc.get_freeze_count() > before + COLLECT_AFTER, "what survived is not examined again"
assert gc.get_count()[1] == 0

del node
gc.collect()
assert old() is not None
{collect_all}
assert old() is None, "garbage among survivors is collected when they have become more"

node, old = cycle()
gc.freeze()
del node
survivors.collect_all()
assert old() is not None, "nothing has grown since"
"""


def run(collect_all: str) -> None:
    program = PROGRAM.format(collect_all=collect_all)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_survivors_are_examined_when_they_have_become_more() -> None:
    run("survivors.collect_all()")


def test_the_loop_examines_survivors_after_many_collections() -> None:
    run(
        """
memory.COLLECT_ALL_AFTER = 2
async def main():
    fill(sessions)
    fill(sessions)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
asyncio.run(main())
"""
    )
