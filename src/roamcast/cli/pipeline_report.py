"""`roamcast pipeline report`: results as one page."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from roamcast.cli.output import emit_json, prepare_out_folder
from roamcast.cli.usage import AsJson, show_examples

ONE = "roamcast pipeline report --log run --out report"
TWO = "roamcast pipeline report --log reactive --log proactive --out report --title 'Two protocols'"


def register(group: typer.Typer) -> None:
    group.command("report", epilog=show_examples(ONE, TWO))(report)


def report(
    log: Annotated[
        list[Path],
        typer.Option(help="Folder that another command wrote: a run, a lab experiment, a model. Repeatable."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for report.html and its pictures.")],
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Roamcast report",
    as_json: AsJson = False,
) -> None:
    """Show results on one self-contained page: pictures first, then claims and tables.

    Several folders are shown side by side. The pictures are also copied, as PNG and SVG.
    """
    from roamcast.pipeline.figures import draw_into
    from roamcast.pipeline.report import collect, page, write_page

    parts = [collect(folder) for folder in log]
    prepare_out_folder(out)
    for number, part in enumerate(parts, start=1):
        prefix = f"{number}-" if len(parts) > 1 else ""
        copy_pictures(part.pictures, out, prefix)
        part.pictures = [*draw_into(part, out, prefix), *part.pictures]
    write_page(out / "report.html", page(title, parts))
    pictures = [picture for part in parts for picture in part.pictures]
    claims = sum(len(part.claims) for part in parts)
    if as_json:
        emit_json({"report": out / "report.html", "pictures": len(pictures), "claims": claims})
    else:
        print(f"{out / 'report.html'}: {len(pictures)} pictures, {claims} claims")


def copy_pictures(pictures: list[Path], out: Path, prefix: str) -> None:
    for picture in pictures:
        for file in (picture.with_suffix(".png"), picture.with_suffix(".svg")):
            if file.exists() and file.parent.resolve() != out.resolve():
                shutil.copyfile(file, out / f"{prefix}{file.name}")
