"""Fiege et al. 2003, figure 2: losses without mobility support although everything is flooded. Claim R23.

The client leaves B1 and appears at B2 at the same moment, and neither broker knows of the other. So the
experiment has two clients, C at B1 and D at B2, and adds up what both receive. One of the two brokers is
nearer to the producer. A notification that passes B2 before the move and reaches B1 after it is missed; one
that reaches B1 before the move and B2 after it is received twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.fiege import Witness
from roamcast.lab.rows import Row, where
from roamcast.lab.sweep import Job, Sweep
from roamcast.simulator.story import parse_story

R23 = claim("R23")


SHORT_S, LONG_S, ACCESS_S = 0.05, 0.25, 0.02
PUBLISHED_S = 10.0
HEARD_S = PUBLISHED_S + ACCESS_S
"""Time at which the producer's broker receives the notification."""
NAIVE, SUPPORTED = "subscribe and leave", "relocation"

NETWORK = """
brokers B0-B1 B0-B2
protocol {protocol}
routing {routing}
access {access}
link B0-B1 {to_b1}
link B0-B2 {to_b2}
at 0 P attach B0
at 0 C attach B1
at 1 C subscribe TRUE
at {published} P publish {{}}
"""
MOVES = {
    NAIVE: """at {moves} C leave
at 0 D attach B2
at 1 D subscribe TRUE
at 2 D leave
at {appears} D attach B2
""",
    SUPPORTED: "at {moves} C attach B2\n",
}


@dataclass(frozen=True)
class MoveJob(Job):
    how: str
    nearer: str
    """The broker that is nearer to the producer."""
    moves_s: float

    @property
    def name(self) -> str:
        return f"{self.how}, {self.nearer} nearer, at {self.moves_s:g} s"

    @property
    def repetition(self) -> int:
        return 0

    def reaches_s(self, broker: str) -> float:
        """Return the time at which the notification reaches a broker."""
        return HEARD_S + (SHORT_S if broker == self.nearer else LONG_S)

    def expected(self) -> int:
        """Return how often the client receives the notification according to the figure."""
        if self.how == SUPPORTED:
            return 1
        # What is on the air when the client goes is lost, so it must have come a little earlier.
        return (self.reaches_s("B1") + ACCESS_S < self.moves_s) + (self.moves_s < self.reaches_s("B2"))

    def story(self) -> str:
        near_b1 = self.nearer == "B1"
        text = NETWORK + MOVES[self.how]
        return text.format(
            protocol="relocation" if self.how == SUPPORTED else "none",
            routing="simple" if self.how == SUPPORTED else "flooding",
            access=ACCESS_S,
            to_b1=SHORT_S if near_b1 else LONG_S,
            to_b2=LONG_S if near_b1 else SHORT_S,
            published=PUBLISHED_S,
            moves=self.moves_s,
            # The request is on the air first, and arrives at the moment of the move.
            appears=round(self.moves_s - ACCESS_S, 6),
        )


def move(job: MoveJob) -> Row:
    witness = Witness()
    parse_story(job.story(), job.name).run(witness.on_rows)
    got = sum(map(len, witness.delivered.values()))
    return {**asdict(job), "got": got, "expected": job.expected()}


@checks("fiege-fig2", "Fiege et al., figure 2: moving without support", R23)
def experiment(quick: bool, sweep: Sweep) -> Findings:
    step = 0.02 if quick else 0.005
    # Between two instants at which anything happens, never at one.
    times = [round(PUBLISHED_S - 0.1 + step * (number + 0.37), 6) for number in range(int(0.6 / step))]
    jobs = [MoveJob(how, nearer, at) for how in MOVES for nearer in ("B1", "B2") for at in times]
    rows = sweep.run(move, jobs)
    return Findings([judge(rows)], {"figure_2": rows}, {})


def judge(rows: Sequence[Row]) -> Outcome:
    wrong = [row for row in rows if row["got"] != row["expected"]]
    parts: dict[str, bool | None] = {} if rows else {"there are no runs": None}
    parts[f"{len(wrong)} moves had another result"] = not wrong
    figures: dict[str, object] = {"moves": len(rows)}
    for how in MOVES:
        got = [row["got"] for row in where(rows, how=how)]
        figures[how] = {"missed": got.count(0), "once": got.count(1), "twice": got.count(2)}
    naive, supported = (where(rows, how=how) for how in (NAIVE, SUPPORTED))
    parts["without support nothing is missed"] = any(row["got"] == 0 for row in naive)
    parts["without support nothing comes twice"] = any(row["got"] == 2 for row in naive)
    parts["relocation does not deliver once"] = all(row["got"] == 1 for row in supported)
    return R23.judge(parts, figures)
