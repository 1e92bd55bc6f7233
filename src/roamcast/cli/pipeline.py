"""`roamcast pipeline`: analyses event logs with Spark."""

from __future__ import annotations

import typer

from roamcast.cli import (
    pipeline_agree,
    pipeline_audit,
    pipeline_models,
    pipeline_report,
    pipeline_sql,
    pipeline_stream,
)
from roamcast.cli.usage import new_group


def register(app: typer.Typer) -> None:
    group = new_group(
        "Analyse event logs, with Spark.",
        examples=["roamcast pipeline audit --log run/log --out audit"],
    )
    app.add_typer(group, name="pipeline")
    # One line for each module of commands.
    pipeline_audit.register(group)
    pipeline_agree.register(group)
    pipeline_models.register(group)
    pipeline_report.register(group)
    pipeline_sql.register(group)
    pipeline_stream.register(group)
