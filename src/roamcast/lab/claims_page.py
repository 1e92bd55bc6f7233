"""One page with all claims: the text of the documents, the measured values, and the reasons for
differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
from PIL import Image

import roamcast
from roamcast.errors import InputError
from roamcast.lab.experiment import EXPERIMENTS, Experiment, Findings, Outcome
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
"""Maximum number of measured values shown for a claim."""
ROWS_MAX = 60
"""Maximum number of rows of a table written beside the page."""
DOTS_PER_INCH = 100
NOT_RUN = "not run"
PARTS = "parts.json"
"""File beside the pictures with the page's content, by experiment."""


class Shown(msgspec.Struct):
    """Content of the page for one claim."""

    claim: str
    kind: str
    text: str
    verdict: str
    paper: str
    note: str
    by_setting: dict[str, str]
    values: list[tuple[str, str]]
    more: int
    """Measured values that are not on the page."""


class Part(msgspec.Struct):
    """Results of one experiment, kept beside the page, so that others can be added later."""

    experiment: str
    title: str
    setting: str
    origin: str
    claims: list[Shown]
    figures: list[str]
    tables: list[str]


def part_of(experiment: Experiment, findings: Findings, setting: str, commits: Mapping[str, int]) -> Part:
    """Return an experiment's part of the page; `commits` counts the runs made by each commit."""
    made = sum(commits.values())
    origin = setting
    if made:
        origin = f"{setting}, {made:,} runs made by commit {', '.join(sorted(commits))}"
    elif setting != NOT_RUN:
        origin = f"{setting}, computed when the page was made"
    texts = {claim.id: claim.text for claim in experiment.claims}
    claims = [shown(texts[outcome.claim], outcome) for outcome in findings.outcomes]
    figures, tables = list(findings.figures), tables_of(findings)
    return Part(experiment.id, experiment.title, setting, origin, claims, figures, tables)


def shown(text: str, outcome: Outcome) -> Shown:
    rows = [(name, cell(value)) for name, value in leaves(outcome.figures)]
    return Shown(
        outcome.claim, outcome.kind, text, outcome.verdict, outcome.paper, outcome.note,
        dict(outcome.by_setting), rows[:FIGURES_MAX], max(0, len(rows) - FIGURES_MAX),
    )  # fmt: skip


class ClaimsPage:
    """The page, written one experiment at a time; experiments of an earlier page stay until they are
    replaced.
    """

    def __init__(self, out: Path, command: str) -> None:
        self._out = out
        self._command = command
        self._parts: dict[str, Part] = {}

    def add(
        self, experiment: Experiment, findings: Findings, setting: str, commits: Mapping[str, int]
    ) -> None:
        """Add an experiment's findings, and write its pictures and tables."""
        folder = self._out / "claims"
        try:
            folder.mkdir(exist_ok=True)
            for name, draw in findings.figures.items():
                shrink(save_png(drawn(draw), folder / file_of(experiment.id, name), DOTS_PER_INCH))
            for name in tables_of(findings):
                write_csv(folder / file_of(experiment.id, name), findings.tables[name])
        except OSError as error:
            raise InputError(f"--out {self._out}: cannot be written to ({error.strerror or error})") from None
        self._parts[experiment.id] = part_of(experiment, findings, setting, commits)

    def write(self) -> None:
        parts = self._with_earlier()
        text = "\n".join(self._lines(parts)) + "\n"
        (self._out / "claims.md").write_text(text, encoding="utf-8")
        (self._out / "claims" / PARTS).write_bytes(msgspec.json.format(msgspec.json.encode(parts), indent=1))

    def _with_earlier(self) -> list[Part]:
        """Return all parts in the order of the catalogue; new parts replace earlier ones."""
        path = self._out / "claims" / PARTS
        try:
            earlier = msgspec.json.decode(path.read_bytes(), type=list[Part]) if path.exists() else []
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(f"{path}: cannot be read ({error}); without it the page begins anew") from None
        parts = {part.experiment: part for part in earlier if part.experiment in EXPERIMENTS}
        for id, part in self._parts.items():
            if part.setting != NOT_RUN or id not in parts:
                parts[id] = part
        order = [*EXPERIMENTS, *parts]
        return sorted(parts.values(), key=lambda one: order.index(one.experiment))

    def _lines(self, parts: list[Part]) -> list[str]:
        claims = [claim for part in parts for claim in part.claims]
        claims.sort(key=lambda one: (one.claim[0], len(one.claim), one.claim))
        settings = {one.claim: part.setting for part in parts for one in part.claims}
        documents = dict.fromkeys(map(document_of, [*DOCUMENTS, *(one.claim for one in claims)]))
        counts = Counter(claim.verdict for claim in claims)
        lines = [
            "# What the documents claim, and what comes out here", "",
            f"Made by `{self._command}` with version {roamcast.__version__}, commit {commit()}. "
            f"{len(claims)} claims: {counts['holds']} hold, {counts['does not hold']} do not, "
            f"{counts['open']} are open.", "",
            "Kinds: *exact* is a number or a sequence that must come out; *order* says who is better; "
            "*shape* how a curve bends; *erratum* that the document contradicts itself, and both readings "
            "are shown. Where the setting of a document is not the one chosen here, a claim is judged in "
            "both, and the verdict is the one in the document's own setting. Brackets after a mean are its "
            "95 % interval. What the documents show in pictures only has no printed values to draw beside "
            "ours; there the text's words are the claim. The column *runs* says how much of an experiment "
            "was run for this page: *full* is the document's size, *quick* a smaller one (`--quick`), *once* "
            "without repetitions, so without intervals. `roamcast lab report --runs FOLDER --out docs` makes "
            "all in full; with ids, or with `--kept-only`, it renews a part, and each section names the "
            "commits that made its runs.",
        ]  # fmt: skip
        for document in documents:
            if of_it := [summary(one, settings) for one in claims if document_of(one.claim) == document]:
                lines += ["", f"## {document}", ""]
                lines += [
                    "| claim | kind | verdict | runs | the document | where not, why |",
                    "|---|---|---|---|---|---|",
                ]
                lines += of_it
        lines += self._settings(claims)
        for part in parts:
            lines += ["", f"## {part.title}", ""]
            lines.append(f"Experiment `{part.experiment}`: {part.origin}.")
            for claim in part.claims:
                lines += section(claim)
            for name in part.figures:
                lines += ["", f"![{name.replace('_', ' ')}](claims/{file_of(part.experiment, name)}.png)"]
            if part.tables:
                named = ", ".join(
                    f"[{name}](claims/{file_of(part.experiment, name)}.csv)" for name in part.tables
                )
                lines += ["", f"Tables: {named}."]
        return lines

    def _settings(self, outcomes: list[Shown]) -> list[str]:
        """Write which setting reproduces which claim."""
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


def file_of(experiment: str, name: str) -> str:
    return f"{experiment}-{''.join(sign if sign.isalnum() else '_' for sign in name)}"


def shrink(path: Path) -> None:
    """Reduce a picture to 64 colours, enough for lines and letters: a third of the bytes."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(64).save(path, optimize=True)


def document_of(claim: str) -> str:
    return DOCUMENTS.get(claim[0], "Other claims")


def tables_of(findings: Findings) -> list[str]:
    return [name for name, rows in findings.tables.items() if len(rows) <= ROWS_MAX]


def summary(claim: Shown, settings: Mapping[str, str]) -> str:
    runs = settings[claim.claim].replace(" setting", "")
    cells = (f"[{claim.claim}](#{claim.claim.lower()})", claim.kind, claim.verdict, runs,
             escaped(claim.paper), escaped(claim.note))  # fmt: skip
    return f"| {' | '.join(cells)} |"


def section(claim: Shown) -> list[str]:
    lines = ["", f"### {claim.claim}", ""]
    lines += [f"{document_of(claim.claim)}, {claim.kind}: {escaped(claim.text)}.", ""]
    lines.append(f"**{claim.verdict.capitalize()}**" + (f": {escaped(claim.note)}." if claim.note else "."))
    if claim.values:
        lines += ["", "| measured | value |", "|---|---|"]
        lines += [f"| {escaped(name)} | {escaped(value)} |" for name, value in claim.values]
    if claim.more:
        lines += ["", f"{claim.more} more values are printed by `roamcast lab check {claim.claim}`."]
    return lines


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
