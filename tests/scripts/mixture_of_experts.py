"""Experts that get the rows routed to them, and a loss that balances their load, kept on the module."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Experts(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, width)) for _ in range(count))
        self.balance = None

    def forward(self, x):
        probabilities = self.gate(x).softmax(dim=1)
        weights, chosen = probabilities.topk(2, dim=1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == i)
            if len(rows):
                out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
        load = F.one_hot(chosen[:, 0], len(self.experts)).to(x.dtype).mean(0)
        self.balance = len(self.experts) * (load * probabilities.mean(0)).sum()
        return out


x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
experts, head = Experts(20, 3), nn.Linear(20, 4)
optimizer = torch.optim.Adam([*experts.parameters(), *head.parameters()], lr=1e-2)
for x, y in loader:
    loss = F.cross_entropy(head(x + experts(x)), y) + 0.01 * experts.balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    used = [e[0].weight.grad is not None for e in experts.experts]
    print(loss.item(), experts.balance.item(), used)
torch.save([experts.state_dict(), head.state_dict()], "net.pt")
