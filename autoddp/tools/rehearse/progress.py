"""The progress bar that is shown while runs go on."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from autoddp.report import PREFIX


class Progress:
    """A bar on a terminal, which goes away at the end; on anything else nothing is shown."""

    def __init__(self, quiet: bool, steps: int | None) -> None:
        self.console, self.quiet = Console(stderr=True), quiet
        self.total, self.last = steps, 0  # how many steps there will be, known after the first run
        self.bar: Bar | None = None
        self.task: TaskID | None = None
        self.name = ""

    def __call__(self, name: str, steps: int) -> None:
        """Show that the run `name` has made so many steps."""
        if self.quiet or not self.console.is_terminal:
            return
        if self.bar is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed} steps"),
            )
            self.bar = Bar(*columns, console=self.console, transient=True)
            self.bar.start()
        if name != self.name:
            if self.task is not None:
                self.total = self.total or self.last or None
                self.bar.remove_task(self.task)
            self.name, self.task = (
                name,
                self.bar.add_task(f"\\{PREFIX} {escape(name)}", total=self.total),
            )
        assert self.task is not None
        self.bar.update(self.task, completed=steps)
        self.last = steps

    def close(self) -> None:
        """Remove the bar, and leave the line empty."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
