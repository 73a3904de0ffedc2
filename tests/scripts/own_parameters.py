"""A module whose answer to `named_parameters()` has effects, as that of Keras, is asked as often."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Tracks(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.asked = nn.Linear(4, 3), 0

    def named_parameters(self, *args, **kwargs):
        self.asked += 1
        return super().named_parameters(*args, **kwargs)

    def forward(self, x):
        return self.inner(x)


model = Tracks()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in torch.randn(8, 12, 4):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}", model.asked)
