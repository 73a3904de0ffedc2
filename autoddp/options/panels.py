"""The panels of the help, in their order, with the options that stand in each."""

from __future__ import annotations

SAME, WRONG = "What one process means", "When something is wrong"
PANELS = {
    "Launch": ("nproc", "module", "gpus_per_rank", "backend", "own_ddp"),
    "Several nodes": ("nnodes", "node_rank", "master_addr", "master_port"),
    SAME: ("view", "batchnorm", "draws", "strict"),
    "Speed": (
        "loading",
        "average_every",
        "rowwise",
    ),
}


def panel_of(name: str) -> str:
    """Return the panel of an option; what is in no other is for the time when something fails."""
    return next((panel for panel, names in PANELS.items() if name in names), WRONG)
