"""No claim is dropped: everything the lab is to check is in its catalogue, once."""

from collections import Counter

from roamcast.lab.catalogue import experiments
from roamcast.lab.experiment import known_claims

CLAIMS = {
    *(f"W{number}" for number in range(1, 8)),
    *(f"G{number}" for number in range(1, 16)),
    *(f"F{number}" for number in range(1, 9)),
    *(f"A{number}" for number in range(1, 11)),
    *(f"C{number}" for number in range(1, 7)),
    *(f"R{number}" for number in range(1, 11)),
    *(f"R{number}" for number in range(20, 32)),
    "N1",
    "P1",
    "P2",
}


def test_every_claim_has_its_experiment() -> None:
    claims = Counter(claim.id for experiment in experiments() for claim in experiment.claims)
    assert set(claims) == set(known_claims()) == CLAIMS
    assert set(claims.values()) == {1}
