"""Configured by hydra: main() under its decorator, overrides on the command line, a folder of its own for outputs."""
import logging
import os

import hydra
import torch
import torch.nn.functional as F
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger(__name__)
ConfigStore.instance().store(name="train", node={
    "defaults": ["_self_", {"override hydra/job_logging": "stdout"}],
    "seed": 0,
    "batch": 12,
    "epochs": 2,
    "model": {"_target_": "torch.nn.Linear", "in_features": 20, "out_features": 4},
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9},
    "hydra": {"run": {"dir": "outputs/${optimizer.lr}"}, "job": {"chdir": True}, "output_subdir": None, "job_logging": {"formatters": {"simple": {"format": "%(message)s"}}}},
})


@hydra.main(version_base=None, config_name="train")
def main(cfg: DictConfig) -> None:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(cfg.seed)
    x = torch.randn(50, 20)
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=cfg.batch, shuffle=True)
    model = instantiate(cfg.model)
    optimizer = instantiate(cfg.optimizer, params=model.parameters())
    for epoch in range(cfg.epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, loss.item())
        log.info("epoch %d: %.6f", epoch, loss.item())
    torch.save(model.state_dict(), "model.pt")
    print(OmegaConf.to_yaml(cfg), os.path.basename(os.getcwd()), HydraConfig.get().overrides.task)


if __name__ == "__main__":
    main()
