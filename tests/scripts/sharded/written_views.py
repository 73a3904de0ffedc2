"""Views that are written into: of outputs and of parameters, by any stride and offset."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(24, 6), torch.randn(24, 9)


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 18)

    def forward(self, x):
        return self.inner(x).view(-1, 2, 9)[:, 0]


model = nn.Sequential(Halves(), nn.Linear(9, 9)).to("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for a, b in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8):
    optimizer.zero_grad()
    out = model[0](a)
    out += b
    out.mul_(0.5)
    loss = (model[1](out) - b).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item(), [p.grad.norm().item() for p in model.parameters()])
first, bias, second, last = model.parameters()
with torch.no_grad():
    first[0] = 0
    first[:, 1].fill_(2)
    bias[3:5].copy_(torch.tensor([7.0, 8.0]))
    second.t()[2].zero_()
    second.diagonal().add_(1)
    row = second.data[1]
    row[4] = 5
    last.data.view(3, 3)[:, 2] -= 1
    flat = second.view(-1)
    second.mul_(2)
    flat[7] = 9
    row.add_(flat[-9:])
    second.as_strided((2, 2), (9, 1), 10).neg_()
    first.data.masked_fill_(first.data > 0.2, 0.2)
    first.data.index_copy_(0, torch.tensor([2]), torch.ones(1, 6))
    print(row.tolist(), flat[:12].tolist(), [p.sum().item() for p in model.parameters()])
print(second.as_strided((2, 3), (1, 9), 4).sum().item(), second[2].as_strided((3,), (2,)).sum())
print(second[2].storage_offset(), second.T.storage_offset(), second[3].data_ptr() - second.data_ptr())
print(second.untyped_storage().nbytes(), second[1:].untyped_storage().nbytes(), first.stride())
try:
    first[0] = 1
except RuntimeError as error:
    print(error)
