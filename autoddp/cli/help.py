"""The help of all commands: the panels of their options, and examples."""

from __future__ import annotations

SAME, WRONG = "What one process means", "When something is wrong"
PANELS = {
    "Launch": ("nproc", "module", "backend", "own_ddp"),
    "Several nodes": ("nnodes", "node_rank", "master_addr", "master_port"),
    SAME: ("view", "batchnorm", "draws", "strict"),
    "Speed": ("loading", "average_every", "rowwise"),
}
EXAMPLES = {
    "autoddp": (
        ("autoddp run --nproc 4 train.py", "Run train.py on four ranks."),
        ("autoddp verify train.py", "Compare it on two ranks with one process."),
    ),
    "run": (
        ("autoddp run --nproc 4 train.py --lr 1e-3", "Four ranks; --lr is the script's."),
        ("AUTODDP_HANG_TIMEOUT=60 autoddp run -m pkg.train", "A variable gives an option."),
    ),
    "verify": (
        ("autoddp verify --steps 5 train.py", "Compare two ranks with one, for five steps."),
        ("autoddp verify --json found.json train.py", "Tell all as data."),
    ),
    "bench": (
        ("autoddp bench --nproc 1,2,4 train.py", "Time the script on 1, 2 and 4 ranks."),
        ("autoddp bench --recordings A B", "Compare two folders of autoddp run --record."),
    ),
    "patches": (
        ("autoddp patches files", "Show the patches of one feature."),
        ("autoddp patches | grep torch:save", "Find one function; a line is a patch."),
    ),
    "env": (
        ("autoddp env", "Show it."),
        ("autoddp env > env.txt", "Write it to a file, for a bug report."),
    ),
}


def panel_of(name: str) -> str:
    """Return the panel of the help in which an option of the table stands."""
    return next((panel for panel, names in PANELS.items() if name in names), WRONG)


def examples(name: str) -> str:
    """Return the end of a command's help: what to type, and what it does."""
    lines = (f"{typed}\n\n    {does}" for typed, does in EXAMPLES[name])
    return "\n\n".join(("Examples:", *lines))
