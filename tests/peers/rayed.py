"""Ray Train's worker runs a script, twice, beside its group."""

import json
import os
import subprocess
import sys

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

HERE, COMMAND = sys.argv[1], json.loads(sys.argv[2])
NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def script(name):
    done = subprocess.run(COMMAND, cwd=f"{HERE}/{name}", capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def loop(config):
    before = {name: os.environ[name] for name in NAMES}
    found = {"environ": before, "runs": [script("run1"), script("run2")]}
    assert {name: os.environ[name] for name in NAMES} == before
    x = torch.ones(1)
    dist.all_reduce(x)
    found["reduced"] = x.item()
    with open(f"{HERE}/{dist.get_rank()}.json", "w") as file:
        json.dump(found, file)


ray.init(num_cpus=3, include_dashboard=False, object_store_memory=80 << 20)
scaling = ScalingConfig(num_workers=2, use_gpu=False)
TorchTrainer(
    loop, scaling_config=scaling, run_config=RunConfig(storage_path=f"{HERE}/results")
).fit()
ray.shutdown()
