"""A training that hydra configures: a file, overrides, and a sweep over two learning rates."""

import logging
import os

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import DataLoader, TensorDataset

os.makedirs("conf/optimizer", exist_ok=True)
with open("conf/config.yaml", "w") as file:
    file.write("defaults:\n  - optimizer: sgd\n  - _self_\nepochs: 2\nbatch: 8\n")
for name, kind in (("sgd", "SGD"), ("adam", "Adam")):
    with open(f"conf/optimizer/{name}.yaml", "w") as file:
        file.write(f"_target_: torch.optim.{kind}\nlr: 0.01\n")
log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path=os.path.abspath("conf"), config_name="config")
def main(config: DictConfig):
    print(OmegaConf.to_yaml(config))
    torch.manual_seed(0)
    x = torch.randn(40, 4, dtype=torch.float64)
    model = torch.nn.Linear(4, 1).double()
    optimizer = hydra.utils.instantiate(config.optimizer, params=model.parameters())
    for epoch in range(config.epochs):
        for a, b in DataLoader(TensorDataset(x, x.sum(1, True)), config.batch, shuffle=True):
            loss = torch.nn.functional.mse_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        log.info("epoch %d: loss %.17g", epoch, loss.item())
    torch.save(model.state_dict(), os.path.join(HydraConfig.get().runtime.output_dir, "model.pt"))
    return loss.item()


if __name__ == "__main__":
    main()
