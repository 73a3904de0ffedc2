"""A hook that has the embeddings' output require a gradient, as for gradient checkpointing with frozen weights."""
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(12, 2)).double()
net[0].register_forward_hook(lambda module, args, output: output.requires_grad_(True))
opt = torch.optim.SGD(net.parameters(), 0.1)
for frozen in (False, True):
    net[0].requires_grad_(not frozen)
    for x, y in DataLoader(TensorDataset(torch.randint(9, (16, 3)), torch.arange(16) % 2), batch_size=8):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        print(loss.item(), net[0].weight.grad is None)
try:
    (net(x) * 1).requires_grad_(False)
except RuntimeError as error:
    print(error)
