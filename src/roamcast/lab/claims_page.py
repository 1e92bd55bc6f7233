"""One page with all claims: what the documents say, what was measured, and why where it differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

import roamcast
from roamcast.errors import InputError
from roamcast.lab.experiment import Claim, Experiment, Findings, Outcome
from roamcast.lab.figures import save_png
from roamcast.lab.kept import commit
from roamcast.lab.report import drawn, write_csv
from roamcast.lab.rows import cell, leaves

DOCUMENTS = {
    "G": "Gaddah 2008", "A": "Amozarrain 2021", "F": "Fiege et al. 2003", "W": "Wang et al. 2007",
    "C": "Caporuscio et al. 2003", "N": "our own: learned neighbours", "P": "our own: all protocols",
    "R": "our own: what decides a claim",
}  # fmt: skip
FIGURES_MAX = 40
"""Measured values that a claim shows on the page."""
ROWS_MAX = 60
"""Rows of a table that is written beside the page; tables of single runs have more."""
DOTS_PER_INCH = 100


@dataclass(frozen=True)
class Part:
    """What one experiment has found, and how."""

    experiment: Experiment
    findings: Findings
    setting: str
    commits: Mapping[str, int]
    """Commits, and how many runs each has made."""

    @property
    def origin(self) -> str:
        made = sum(self.commits.values())
        if not made and self.setting == "not run":
            return self.setting
        if not made:
            return f"{self.setting}, computed when the page was made"
        return f"{self.setting}, {made:,} runs made by commit {', '.join(sorted(self.commits))}"


class ClaimsPage:
    """Grows by an experiment at a time."""

    def __init__(self, out: Path, command: str) -> None:
        self._out = out
        self._command = command
        self._parts: list[Part] = []

    def add(
        self, experiment: Experiment, findings: Findings, setting: str, commits: Mapping[str, int]
    ) -> None:
        """Take an experiment's findings and write its pictures and tables."""
        folder = self._out / "claims"
        try:
            folder.mkdir(exist_ok=True)
            for name, draw in findings.figures.items():
                shrink(save_png(drawn(draw), folder / file_of(experiment, name), DOTS_PER_INCH))
            for name in tables_of(findings):
                write_csv(folder / file_of(experiment, name), findings.tables[name])
        except OSError as error:
            raise InputError(f"--out {self._out}: cannot be written to ({error.strerror or error})") from None
        self._parts.append(Part(experiment, findings, setting, dict(commits)))

    def write(self) -> None:
        (self._out / "claims.md").write_text("\n".join(self._lines()) + "\n", encoding="utf-8")

    def _lines(self) -> list[str]:
        outcomes = [outcome for part in self._parts for outcome in part.findings.outcomes]
        outcomes.sort(key=lambda one: (one.claim[0], len(one.claim), one.claim))
        settings = {one.claim: part.setting for part in self._parts for one in part.findings.outcomes}
        documents = dict.fromkeys(map(document_of, [*DOCUMENTS, *(one.claim for one in outcomes)]))
        counts = Counter(outcome.verdict for outcome in outcomes)
        lines = [
            "# What the documents claim, and what comes out here", "",
            f"Made by `{self._command}` with version {roamcast.__version__}, commit {commit()}. "
            f"{len(outcomes)} claims: {counts['holds']} hold, {counts['does not hold']} do not, "
            f"{counts['open']} are open.", "",
            "Kinds: *exact* is a number or a sequence that must come out; *order* says who is better; "
            "*shape* how a curve bends; *erratum* that the document contradicts itself, and both readings "
            "are shown. Where the setting of a document is not the one chosen here, a claim is judged in "
            "both, and the verdict is the one in the document's own setting. Brackets after a mean are its "
            "95 % interval. What the documents show in pictures only has no printed values to draw beside "
            "ours; there the text's words are the claim. The column *runs* says how much of an experiment "
            "was run for this page: *full* is the document's size, *quick* a smaller one (`--quick`), *once* "
            "without repetitions, so without intervals. `roamcast lab report --runs FOLDER --out docs` makes "
            "all in full.",
        ]  # fmt: skip
        for document in documents:
            if of_it := [summary(one, settings) for one in outcomes if document_of(one.claim) == document]:
                lines += ["", f"## {document}", ""]
                lines += [
                    "| claim | kind | verdict | runs | the document | where not, why |",
                    "|---|---|---|---|---|---|",
                ]
                lines += of_it
        lines += self._settings(outcomes)
        for part in self._parts:
            experiment, findings = part.experiment, part.findings
            lines += ["", f"## {experiment.title}", ""]
            lines.append(f"Experiment `{experiment.id}`: {part.origin}.")
            claims = {claim.id: claim for claim in experiment.claims}
            for outcome in findings.outcomes:
                lines += section(claims[outcome.claim], outcome)
            for name in findings.figures:
                lines += ["", f"![{name.replace('_', ' ')}](claims/{file_of(experiment, name)}.png)"]
            if tables := tables_of(findings):
                named = ", ".join(f"[{name}](claims/{file_of(experiment, name)}.csv)" for name in tables)
                lines += ["", f"Tables: {named}."]
        return lines

    def _settings(self, outcomes: list[Outcome]) -> list[str]:
        """Which setting reproduces which claim."""
        both = [outcome for outcome in outcomes if outcome.by_setting]
        if not both:
            return []
        lines = ["", "## Which setting reproduces which claim", ""]
        lines += ["| claim | in the document's own setting | in other settings |", "|---|---|---|"]
        for outcome in both:
            own, *others = outcome.by_setting.items()
            said = "; ".join(f"{name}: {verdict}" for name, verdict in others)
            lines.append(f"| {outcome.claim} | {own[1]} | {escaped(said)} |")
        documents = dict.fromkeys(document_of(outcome.claim) for outcome in both)
        for document in documents:
            of_it = [one.by_setting for one in both if document_of(one.claim) == document]
            held = {name: sum(one[name] == "holds" for one in of_it) for name in of_it[0]}
            said = ", ".join(f"{count} in the setting {name!r}" for name, count in held.items())
            most = "one setting reproduces all" if max(held.values()) == len(of_it) else "none reproduces all"
            lines += ["", f"{document}: of {len(of_it)} claims hold {said}; {most}."]
        return lines


def file_of(experiment: Experiment, name: str) -> str:
    return f"{experiment.id}-{''.join(sign if sign.isalnum() else '_' for sign in name)}"


def shrink(path: Path) -> None:
    """Lines and letters need few colours: with 64 a picture takes a third of the bytes."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(64).save(path, optimize=True)


def document_of(claim: str) -> str:
    return DOCUMENTS.get(claim[0], "Other claims")


def tables_of(findings: Findings) -> list[str]:
    return [name for name, rows in findings.tables.items() if len(rows) <= ROWS_MAX]


def summary(outcome: Outcome, settings: Mapping[str, str]) -> str:
    runs = settings[outcome.claim].replace(" setting", "")
    cells = (f"[{outcome.claim}](#{outcome.claim.lower()})", outcome.kind, outcome.verdict, runs,
             escaped(outcome.paper), escaped(outcome.note))  # fmt: skip
    return f"| {' | '.join(cells)} |"


def section(claim: Claim, outcome: Outcome) -> list[str]:
    lines = ["", f"### {claim.id}", "", f"{document_of(claim.id)}, {claim.kind}: {escaped(claim.text)}.", ""]
    lines.append(
        f"**{outcome.verdict.capitalize()}**" + (f": {escaped(outcome.note)}." if outcome.note else ".")
    )
    rows = leaves(outcome.figures)
    if rows:
        lines += ["", "| measured | value |", "|---|---|"]
        lines += [f"| {escaped(name)} | {escaped(cell(value))} |" for name, value in rows[:FIGURES_MAX]]
    if len(rows) > FIGURES_MAX:
        lines += [
            "",
            f"{len(rows) - FIGURES_MAX} more values are printed by `roamcast lab check {claim.id}`.",
        ]
    return lines


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
