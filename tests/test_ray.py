"""Real workers of Ray Train: a script that they run gives one process's numbers.

One fit does it all, since Ray takes half a minute to start one. Ray listens on the loopback alone
here.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.cli import ROOT, run_python
from tests.support.same import same_files, same_text

pytestmark = pytest.mark.cluster

DRIVER = Path(__file__).parent / "peers" / "rayed.py"
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
RTOL = 1e-12
TRAIN = """
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
x = torch.randn(42, 6)
data = TensorDataset(x, x[:, :3].argmax(1))
net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses = []
for a, b in DataLoader(data, batch_size=8, shuffle=True):
    loss = F.cross_entropy(net(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(losses)
torch.save(net.state_dict(), "net.pt")
"""


def command(path: Path) -> list[str]:
    """What the examples' README has a worker run, of this checkout."""
    text = (Path(ROOT) / "examples" / "README.md").read_text()
    found = re.search(r"subprocess\.run\((\[.*?\])", text)
    name, *words, _ = ast.literal_eval(found[1])
    return [sys.executable, "-m", name, *words, str(path)]


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install '.[ray]'"
)
def test_the_workers_of_ray_train(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    for name in ("plain", "run1", "run2"):
        (tmp_path / name).mkdir()
    plain = run_python(tmp_path / "train.py", cwd=tmp_path / "plain")
    # sockets lie in there, with long names
    with tempfile.TemporaryDirectory(prefix="ray") as short:
        told = json.dumps(command(tmp_path / "train.py"))
        more = LOOPBACK | {"HOME": short, "RAY_TMPDIR": short}
        done = run_python(DRIVER, tmp_path, told, cwd=tmp_path, env=more, timeout=280)
    assert done.rc == 0, done.out + done.err
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for code, out, err in first["runs"]:
        assert code == 0, err
        same_text(plain.out, out, RTOL, "stdout")
        assert "gathers" not in err
    assert second["runs"] == [[0, "", ""]] * 2
    for found in (first, second):
        assert found["reduced"] == 2, "Ray's own group is there again"
    for name in ("run1", "run2"):
        same_files(tmp_path / "plain", tmp_path / name, RTOL)
