"""The example notebook runs from its first cell to its last."""

import json
import os
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "event_log.ipynb"


def test_the_notebook_answers(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    check = '\nassert figures["lost"] > 0 and len(away) == figures["handoffs"]'
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "MPLBACKEND": "Agg", "PATH": commands}
    subprocess.run([sys.executable, "-c", code + check], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "handoffs.png").exists()
