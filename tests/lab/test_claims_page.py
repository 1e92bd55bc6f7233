"""The page of claims: verdicts in each setting, runs and who made them, files with plain names."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from roamcast.lab.claims_page import NOT_RUN, PARTS, ROWS_MAX, ClaimsPage
from roamcast.lab.experiment import Claim, Experiment, Findings
from roamcast.lab.sweep import Sweep

G2, G10 = (Claim(id, "order", "more | less", "more") for id in ("G2", "G10"))


def run(quick: bool, sweep: Sweep) -> Findings:
    def draw(figure: Figure) -> None:
        figure.subplots().plot([1, 2], [3, 4])

    both = G10.in_settings(
        {"theirs": G10.outcome(True, {"x": 1}), "ours": G10.outcome(False, {"x": 2}, "too small")}
    )
    tables = {"table 3, top": [{"a": 1}], "runs": [{"a": n} for n in range(ROWS_MAX + 1)]}
    return Findings([both, G2.outcome(True, {})], tables, {"a figure": draw})


def test_the_page(tmp_path: Path) -> None:
    experiment = Experiment("more", "More or less", (G2, G10), run)
    page = ClaimsPage(tmp_path, "make it")
    page.add(experiment, run(True, Sweep(1)), "full setting", {"abc": 3, "def": 1})
    page.write()
    text = (tmp_path / "claims.md").read_text()
    assert text.index("| [G2](#g2) |") < text.index("| [G10](#g10) |"), "by number"
    assert "| [G2](#g2) | order | holds | full | more |" in text
    assert "Experiment `more`: full setting, 4 runs made by commit abc, def." in text
    assert "| G10 | holds | ours: does not hold |" in text
    assert (
        "Gaddah 2008: of 1 claims hold 1 in the setting 'theirs', 0 in the setting 'ours'; one setting"
        in text
    )
    assert "setting theirs: holds; setting ours: does not hold, too small" in text
    assert "more \\| less" in text
    assert "![a figure](claims/more-a_figure.png)" in text
    assert "Tables: [table 3, top](claims/more-table_3__top.csv)." in text
    assert sorted(path.name for path in (tmp_path / "claims").iterdir()) == [
        "more-a_figure.png", "more-table_3__top.csv", PARTS,
    ]  # fmt: skip
    with Image.open(tmp_path / "claims" / "more-a_figure.png") as picture:
        assert picture.mode == "P"


def test_a_later_page_keeps_what_was_found_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {id: Experiment(id, id.upper(), claims, run) for id, claims in (("one", (G2,)), ("two", (G10,)))}
    monkeypatch.setattr("roamcast.lab.claims_page.EXPERIMENTS", known)

    def page(**settings: str) -> str:
        made = ClaimsPage(tmp_path, "make it")
        for id, setting in settings.items():
            claim = known[id].claims[0]
            outcome = claim.open("no runs") if setting == NOT_RUN else claim.outcome(True, {"x": setting})
            made.add(known[id], Findings([outcome]), setting, {})
        made.write()
        return (tmp_path / "claims.md").read_text()

    page(two="quick setting")
    both = page(one="full setting", two=NOT_RUN)
    assert both.index("## ONE") < both.index("## TWO")
    assert "| [G2](#g2) | order | holds | full |" in both
    assert "| [G10](#g10) | order | holds | quick |" in both, "not run, and so as before"
    assert "| [G10](#g10) | order | holds | full |" in page(two="full setting")
    monkeypatch.delitem(known, "one")
    assert "ONE" not in page(two="full setting"), "an experiment that is no more leaves the page"
