"""A guide of Pyro, whose handlers keep what a model and its guide sample: a Bayesian regression."""
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pyro.set_rng_seed(0)
torch.set_default_dtype(torch.float64)


class Regression(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

    def forward(self, x, y=None):
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mean, 1.0), obs=y)
        return mean


x = torch.randn(50, 3)
model = Regression()
svi = SVI(model, AutoDiagonalNormal(model), pyro.optim.Adam({"lr": 0.03}), loss=Trace_ELBO())
for x, y in DataLoader(TensorDataset(x, x.sum(1)), batch_size=16):
    print(svi.step(x, y))
