"""`roamcast pipeline`: questions to event logs, answered by Spark."""

from __future__ import annotations

import typer

from roamcast.cli import pipeline_models, pipeline_report
from roamcast.cli.usage import new_group


def register(app: typer.Typer) -> None:
    group = new_group(
        "Ask event logs what happened, on Spark.",
        examples=["roamcast pipeline neighbours --log run/log --out neighbours.json"],
    )
    app.add_typer(group, name="pipeline")
    # One line for each module of commands.
    pipeline_models.register(group)
    pipeline_report.register(group)
