"""What it costs that ranks tell each other where they are: steps/s with stamps against without.

    python -m benchmarks.stamps [--metrics] [--rounds 9]

Without them every collective goes straight to gloo. Both run in the same 2 ranks, alternating, on a
small network whose step takes a few ms; the ratio is the median over rounds. With --metrics the
script also reads an accuracy every step, which is a small collective more.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import contextmanager

from torch.utils.data import DataLoader

from autoddp.comm.group import SUM, Group
from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from benchmarks.steps import STEPS, make, train
from tests.support.ranks import run_ranks


class Bare(Group):
    """Ranks that trust each other."""

    @contextmanager
    def together(self, what, x, kind=""):
        """Nothing is said."""
        yield ""

    def all_reduce(self, x, op=SUM):
        """By gloo, however small."""
        self.start_all_reduce(x, op).wait()
        return x

    def all_gather(self, x):
        """By gloo, however small."""
        out = x.new_empty((self.size, *x.shape))
        self.pg.allgather([list(out.unbind(0))], [x.contiguous()]).wait()
        return out

    def _agree(self, stamp, x):
        """They do."""


class Silent:
    """An exchange that a backward passes by without a word."""

    def __init__(self, exchange):
        self.collective_check = exchange

    def __getattr__(self, name):
        return getattr(self.collective_check, name)

    def pass_by(self, stamp):
        """Not a word."""


def once(group, metrics):
    """Steps/s of the unmodified script."""
    net, data, batch = make("mlp")
    with session(group.world, Options(), group, Report()):
        return train(net, DataLoader(data, batch, shuffle=True), STEPS["mlp"], metrics)


def both(group, rounds, metrics):
    """Pairs of (without, with), in turn."""
    pairs, exchange = [], group.collective_check
    for _ in range(rounds):
        group.__class__, group.collective_check = Bare, Silent(exchange)
        without = once(group, metrics)
        group.__class__, group.collective_check = Group, exchange
        pairs.append((without, once(group, metrics)))
    return pairs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    pairs = run_ranks(both, 2, options.rounds, options.metrics, timeout=600)[0]
    ratios = sorted(b / a for a, b in pairs)
    bare, stamped = (1000 / statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"a step takes {bare:.2f} ms without stamps, {stamped:.2f} ms with them; "
        f"steps/s {statistics.median(ratios):.3f} [{ratios[0]:.2f} .. {ratios[-1]:.2f}]"
    )


if __name__ == "__main__":
    main()
