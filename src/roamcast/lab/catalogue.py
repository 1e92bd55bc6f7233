"""All experiments: each module that registers some has a line here."""

from __future__ import annotations

import roamcast.lab.amozarrain
import roamcast.lab.amozarrain_radio
import roamcast.lab.amozarrain_radio_variants
import roamcast.lab.amozarrain_rules
import roamcast.lab.amozarrain_speed
import roamcast.lab.amozarrain_trees
import roamcast.lab.caporuscio
import roamcast.lab.comparison
import roamcast.lab.fiege
import roamcast.lab.fiege_fig2
import roamcast.lab.fiege_location
import roamcast.lab.fiege_traffic
import roamcast.lab.gaddah
import roamcast.lab.gaddah_activemq
import roamcast.lab.gaddah_covering
import roamcast.lab.gaddah_models
import roamcast.lab.gaddah_movement
import roamcast.lab.gaddah_variants
import roamcast.lab.learned_neighbours
import roamcast.lab.radio_model
import roamcast.lab.wang  # noqa: F401
from roamcast.lab.experiment import EXPERIMENTS, Experiment


def experiments() -> list[Experiment]:
    """Return the experiments in the order of the documents and their claims."""
    return list(EXPERIMENTS.values())
