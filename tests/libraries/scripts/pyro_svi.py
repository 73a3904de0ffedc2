"""Pyro: a variational autoencoder by SVI, and a Bayesian regression with an automatic guide."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.nn import PyroModule, PyroSample
from pyro.optim import Adam
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

pyro.set_rng_seed(0)
torch.set_default_dtype(torch.float64)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.Softplus(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.Softplus(), nn.Linear(32, 64))

    def model(self, x):
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", x.shape[0]):
            zero = x.new_zeros(x.shape[0], 4)
            z = pyro.sample("latent", dist.Normal(zero, zero + 1).to_event(1))
            pyro.sample("obs", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", x.shape[0]):
            loc, log_scale = self.encoder(x).chunk(2, -1)
            pyro.sample("latent", dist.Normal(loc, log_scale.exp()).to_event(1))


images = (torch.tensor(load_digits().data[:96]) > 8).double()
loader = DataLoader(images, batch_size=32, shuffle=True)
vae = VAE()
svi = SVI(vae.model, vae.guide, Adam({"lr": 1e-2}), loss=Trace_ELBO())
for epoch in range(3):
    losses = [svi.step(x) for x in loader]
    print(epoch, *(f"{value:.8f}" for value in losses))


class Regression(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

    def forward(self, x, y=None):
        sigma = pyro.sample("sigma", dist.Uniform(0.1, 10.0))
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("rows", x.shape[0]):
            return pyro.sample("y", dist.Normal(mean, sigma), obs=y)


x = torch.randn(40, 3)
y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(40)
model = Regression()
guide = AutoDiagonalNormal(model)
svi = SVI(model, guide, Adam({"lr": 0.05}), loss=Trace_ELBO())
print([f"{svi.step(x, y):.8f}" for _ in range(20)])
samples = Predictive(model, guide=guide, num_samples=20, return_sites=("linear.weight",))(x)
print(samples["linear.weight"].mean(0).tolist())
pyro.get_param_store().save("params.save")
