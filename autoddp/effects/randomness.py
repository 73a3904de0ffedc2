"""All ranks hold the same random state, seed it alike, and draw the same from the system."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from numbers import Integral
from typing import Any, ClassVar

import torch

from autoddp.comm import accelerator
from autoddp.comm.accelerator import CPU
from autoddp.effects.engine import Mode
from autoddp.effects.entropy import Entropy
from autoddp.effects.outward import Outward
from autoddp.effects.ownership import caller
from autoddp.effects.rows import EffectRow, ask
from autoddp.patching import Call, patch, stands_for

# Folders whose calls are their own business: what torch seeds, all ranks seed alike.
_NOT = (os.path.dirname(torch.__file__) + "/", os.path.dirname(os.path.dirname(__file__)) + "/")

SEED = 32  # bytes that a generator is seeded with
PROBE = "a text whose hash is that of other ranks where PYTHONHASHSEED is"


class Randomness(Outward):
    """The feature that gives all ranks one seed, and rank 0's answers where the system is asked."""

    name: ClassVar[str] = "randomness"
    without: ClassVar[str] = (
        "each rank draws and seeds for itself where the script leaves that to the system"
    )
    rows: ClassVar[tuple[EffectRow, ...]] = (
        ask(  # `uuid4` draws from the system, see `draw_alike`
            "uuid:uuid1",
            why="a name that is made of the machine and the time is rank 0's",
            pack=lambda made: made.hex,
            unpack=lambda answer: sys.modules["uuid"].UUID(hex=answer),
        ),
    )

    def setup(self, undo: ExitStack) -> None:
        """Start from rank 0's states: unseeded scripts draw the same numbers everywhere."""
        super().setup(undo)
        theirs = self.run.group.call("the order of sets", lambda: hash(PROBE))
        if not self.run.group.agree(hash(PROBE) == theirs):
            self.run.report.doubt(
                "randomness",
                "",
                "hash() of text, and the order of sets, differ between ranks: "
                "set PYTHONHASHSEED=0 for all",
            )
        take(self.run.group.call("the states of the random generators", states))
        secret = self.run.group.call("the secret of the job", lambda: os.urandom(32).hex())
        self.entropy = Entropy(bytes.fromhex(secret))
        self.run.draws_alike = True

    @patch(
        "random:seed",
        "random:Random.seed",
        "numpy.random:seed",
        "numpy.random.mtrand:seed",
        "numpy.random:default_rng",
        "torch:manual_seed",
        "torch.random:manual_seed",
        "torch.cuda:manual_seed",
        "torch.cuda.random:manual_seed",
        "torch.cuda:manual_seed_all",
        "torch.cuda.random:manual_seed_all",
        *(
            f"torch.{kind}:manual_seed{of}"
            for kind in ("xpu", "npu", "hpu", "mtia", "mps")
            for of in ("", "_all")
        ),
        why="who seeds with the time or the process seeds all ranks alike: the seed is rank 0's",
        optional=True,
    )
    def seed_alike(self, call: Call) -> Any:
        """Seed with rank 0's number or text; where none is given, all ranks draw the same."""
        if self.effects.mode() is not Mode.SYNCED or caller().startswith(_NOT):
            return call.plain()
        name = next((n for n in ("seed", "a") if n in call.named), None)
        value = None if name is None else call.named[name]
        if value is None and call.name.startswith("random."):  # random asks the system from C
            drawn = self.drawn(SEED)
            return (
                call.plain() if drawn is None else call.changed(a=int.from_bytes(drawn, "little"))
            )
        if not isinstance(value, (Integral, float, str)):
            return call.plain()
        value = int(value) if isinstance(value, Integral) else value
        return call.changed(**{str(name): self.effects.ask_rank0(call.name, lambda: value)})

    @patch(
        "torch:seed", "torch.random:seed", why="a seed that nobody chose is the same on all ranks"
    )
    def choose_seed(self, call: Call) -> Any:
        """Draw the same seed on all ranks, where torch would ask the system from C."""
        drawn = self.drawn(SEED)
        if drawn is None:
            return call.plain()
        with self.effects.context.internal():
            return torch.manual_seed(_as_torch(drawn)).initial_seed()

    @patch(
        "torch._C:Generator.seed", why="a seed that nobody chose is the same on all ranks", hot=True
    )
    def choose_own(self, original: Any) -> Any:
        """Draw the seed of a generator that the script made, the same on all ranks."""

        def seed(generator: torch.Generator) -> int:
            drawn = self.drawn(SEED)
            if drawn is None:
                return int(original(generator))
            return generator.manual_seed(_as_torch(drawn)).initial_seed()

        return seed

    @patch(
        "os:urandom",
        "os:getrandom",
        "random:_urandom",
        why="what is drawn from the system is the same on all ranks: uuid4, secrets, default_rng()",
        hot=True,
    )
    def draw_alike(self, original: Callable[..., bytes]) -> Callable[..., bytes]:
        """Draw alike on the script's thread, whoever calls: a library's draws steer it, too."""

        @stands_for(original)
        def draw(*args: Any, **named: Any) -> bytes:
            own = original(*args, **named)
            return self.drawn(len(own)) or own

        return draw

    def drawn(self, size: int) -> bytes | None:
        """Return `size` bytes that all ranks draw here, None where each draws its own."""
        return self.entropy.draw(size) if self.effects.mode() is Mode.SYNCED else None


def states() -> list[Any]:
    """Return the states of Python's, numpy's and torch's generators, as JSON can carry them."""
    numpy = sys.modules.get("numpy")
    kind, keys, *rest = numpy.random.get_state() if numpy is not None else ("", [], 0)
    return [
        random.getstate(),
        [kind, [int(key) for key in keys], *rest],
        _text(torch.get_rng_state()),
        [_text(state) for state in accelerator.states()],
    ]


def take(theirs: list[Any]) -> None:
    """Set the generators to the states that `states` returned."""
    (version, words, gauss), (kind, keys, *rest), cpu, devices = theirs
    random.setstate((version, tuple(words), gauss))
    if kind and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state((kind, keys, *rest))
    torch.set_rng_state(_bytes(cpu))
    accelerator.set_states([_bytes(state) for state in devices])


def _as_torch(drawn: bytes) -> int:
    return int.from_bytes(drawn, "little") >> (8 * SEED - 53)  # torch's own have as many bits


def _text(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _bytes(state: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8, device=CPU)
