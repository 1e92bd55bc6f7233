"""One page with all claims: what the documents say, what was measured, and why where it differs."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import roamcast
from roamcast.errors import InputError
from roamcast.lab.experiment import Claim, Experiment, Findings, Outcome
from roamcast.lab.figures import save_png
from roamcast.lab.kept import code_digest
from roamcast.lab.report import drawn, write_csv
from roamcast.lab.words import cell, leaves

DOCUMENTS = {
    "G": "Gaddah 2008", "A": "Amozarrain 2021", "F": "Fiege et al. 2003", "W": "Wang et al. 2007",
    "C": "Caporuscio et al. 2003", "N": "Learned neighbours", "P": "Comparison", "R": "Radio",
}  # fmt: skip
FIGURES_MAX = 40
"""Measured values that a claim shows on the page; the tables have all."""


class ClaimsPage:
    """Grows by an experiment at a time."""

    def __init__(self, out: Path, command: str) -> None:
        self._out = out
        self._command = command
        self._found: list[tuple[Experiment, Findings]] = []

    def add(self, experiment: Experiment, findings: Findings) -> None:
        """Take an experiment's findings and write its pictures and tables."""
        folder = self._out / "claims"
        try:
            folder.mkdir(exist_ok=True)
            for name, draw in findings.figures.items():
                save_png(drawn(draw), folder / name)
            for name, rows in findings.tables.items():
                write_csv(folder / name, rows)
        except OSError as error:
            raise InputError(f"--out {self._out}: cannot be written to ({error.strerror or error})") from None
        self._found.append((experiment, findings))

    def write(self) -> None:
        (self._out / "claims.md").write_text("\n".join(self._lines()) + "\n", encoding="utf-8")

    def _lines(self) -> list[str]:
        outcomes = [outcome for _, findings in self._found for outcome in findings.outcomes]
        counts = Counter(outcome.verdict for outcome in outcomes)
        lines = [
            "# What the documents claim, and what comes out here", "",
            f"Made by `{self._command}` with version {roamcast.__version__}, {origin()}. "
            f"{len(outcomes)} claims: {counts['holds']} hold, {counts['does not hold']} do not, "
            f"{counts['open']} are open.", "",
            "Kinds: *exact* is a number or a sequence that must come out; *order* says who is better; "
            "*shape* how a curve bends; *erratum* that the document contradicts itself, and both readings "
            "are shown.", "",
            "| claim | kind | verdict | the document | why |",
            "|---|---|---|---|---|",
        ]  # fmt: skip
        for outcome in outcomes:
            link = f"[{outcome.claim}](#{outcome.claim.lower()})"
            row = [link, outcome.kind, outcome.verdict, escaped(outcome.paper), escaped(outcome.note)]
            lines.append(f"| {' | '.join(row)} |")
        for experiment, findings in self._found:
            lines += ["", f"## {experiment.title or experiment.id}", "", f"Experiment `{experiment.id}`."]
            claims = {claim.id: claim for claim in experiment.claims}
            for outcome in findings.outcomes:
                lines += section(claims[outcome.claim], outcome)
            for name in findings.figures:
                lines += ["", f"![{name.replace('_', ' ')}](claims/{name}.png)"]
            if findings.tables:
                named = ", ".join(f"[{name}](claims/{name}.csv)" for name in findings.tables)
                lines += ["", f"Tables: {named}."]
        return lines


def section(claim: Claim, outcome: Outcome) -> list[str]:
    document = DOCUMENTS.get(claim.id[0], "")
    lines = ["", f"### {claim.id}", "", f"{document}, {claim.kind}: {escaped(claim.text)}", ""]
    lines.append(
        f"**{outcome.verdict.capitalize()}**" + (f": {escaped(outcome.note)}." if outcome.note else ".")
    )
    rows = leaves(outcome.figures)
    if rows:
        lines += ["", "| measured | value |", "|---|---|"]
        lines += [f"| {escaped(name)} | {escaped(cell(value))} |" for name, value in rows[:FIGURES_MAX]]
    if len(rows) > FIGURES_MAX:
        lines += ["", f"{len(rows) - FIGURES_MAX} more values are in the tables."]
    return lines


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def origin() -> str:
    """The commit of a checkout, and the digest of the source in any case."""
    folder = Path(roamcast.__file__).parent
    asked = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    commit = f"commit {asked.stdout.strip()}, " if asked.returncode == 0 else ""
    return f"{commit}source {code_digest()}"
