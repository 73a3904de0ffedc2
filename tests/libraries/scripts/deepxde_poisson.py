"""DeepXDE on PyTorch: a Poisson equation in one dimension, by a physics-informed network."""

import os

os.environ["DDE_BACKEND"] = "pytorch"
import deepxde as dde
import numpy as np
import torch

dde.config.set_default_float("float64")
dde.config.set_random_seed(0)


def pde(x, y):
    return -dde.grad.hessian(y, x) - np.pi**2 * torch.sin(np.pi * x)


def solution(x):
    return np.sin(np.pi * x)


interval = dde.geometry.Interval(-1, 1)
edge = dde.icbc.DirichletBC(interval, solution, lambda x, on_boundary: on_boundary)
data = dde.data.PDE(interval, pde, edge, num_domain=32, num_boundary=2, solution=solution,
                    num_test=50)  # fmt: skip
net = dde.nn.FNN([1, 30, 30, 1], "tanh", "Glorot uniform")
model = dde.Model(data, net)
model.compile("adam", lr=0.001, metrics=["l2 relative error"], loss_weights=[1, 10])
resampled = dde.callbacks.PDEPointResampler(period=20)
history, state = model.train(iterations=60, display_every=20, callbacks=[resampled],
                             model_save_path="poisson")  # fmt: skip
dde.optimizers.set_LBFGS_options(maxiter=20)
dde.optimizers.LBFGS_options["iter_per_step"] = 20  # which is 1000 by then
model.compile("L-BFGS", metrics=["l2 relative error"])
history, state = model.train()
print([f"{value:.10f}" for value in np.ravel(history.loss_train)])
print(model.predict(np.linspace(-1, 1, 5)[:, None]).ravel().tolist())
dde.saveplot(history, state, issave=True, isplot=False)
