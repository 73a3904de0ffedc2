"""GPyTorch: exact regression by its marginal likelihood, and a variational process in batches."""

import gpytorch
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.linspace(0, 1, 100)
y = torch.sin(x * 6.28) + torch.randn(100) * 0.2


class ExactGP(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = ConstantMean(), ScaleKernel(RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class SVGP(gpytorch.models.ApproximateGP):
    def __init__(self, points):
        distribution = CholeskyVariationalDistribution(points.size(0))
        super().__init__(VariationalStrategy(self, points, distribution))
        self.mean_module, self.covar_module = ConstantMean(), ScaleKernel(RBFKernel())

    forward = ExactGP.forward


likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = ExactGP(x, y, likelihood)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for i in range(8):
    optimizer.zero_grad()
    loss = -mll(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"exact {i} loss {loss.item():.10f} noise {likelihood.noise.item():.10f}")
torch.save(model.state_dict(), "exact.pt")

model, likelihood = SVGP(x[::20].clone()), gpytorch.likelihoods.GaussianLikelihood()
optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=100)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = -mll(model(a), b)
        loss.backward()
        optimizer.step()
        print(f"variational {epoch} loss {loss.item():.10f}")
model.eval(), likelihood.eval()
with torch.no_grad():
    seen = likelihood(model(torch.linspace(0, 1, 5)))
print(seen.mean.tolist(), seen.confidence_region()[0].tolist())
torch.save(model.state_dict(), "variational.pt")
