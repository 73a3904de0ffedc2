"""Log files of hydra and loguru, which contain each line once."""

from __future__ import annotations

import re

import pytest

from tests.support.cli import fork_cli

pytestmark = pytest.mark.slow

TRAINING = """
    model, x = torch.nn.Linear(4, 1), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        logger.info(f"step {step}")
"""
HYDRA = f"""
import logging
import hydra
import torch
logger = logging.getLogger(__name__)
@hydra.main(version_base=None, config_path=None)
def main(config):
{TRAINING}
main()
"""
LOGURU = f"""
from loguru import logger
import torch
logger.remove()
logger.add("plain.log", format="{{message}}")
logger.add("queue.log", format="{{message}}", enqueue=True)
logger.add("turns.log", format="{{message}}", rotation="16 B")
logger.add("late.log", format="{{message}}", delay=True)
def main():
{TRAINING}
main()
"""
STEPS = [f"step {step}" for step in range(4)]


@pytest.mark.parametrize(
    ("package", "script", "files"),
    [("hydra", HYDRA, ["train.log"]), ("loguru", LOGURU, ["late.log", "plain.log", "queue.log"])],
)
def test_each_line_is_in_a_log_once(package, script, files, tmp_path):
    pytest.importorskip(package)
    (tmp_path / "train.py").write_text(script)
    done = fork_cli("run", "--nproc", 2, "train.py", cwd=tmp_path)
    assert done.rc == 0, done.err
    logs = {path.name: path.read_text() for path in tmp_path.rglob("*.log")}
    turns = [text for name, text in logs.items() if name.startswith("turns")]
    assert sorted(name for name in logs if not name.startswith("turns")) == files
    for name in files:
        assert re.findall(r"step \d$", logs[name], flags=re.M) == STEPS
    if turns:
        assert len(turns) > 1
        assert sorted("".join(turns).splitlines()) == STEPS
