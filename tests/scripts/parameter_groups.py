"""Two optimizers; groups with their own rates; layers and BatchNorm thawed, parameters added later."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, weight_norm
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(weight_norm(nn.Linear(20, 16)), nn.BatchNorm1d(16), nn.ReLU(), orthogonal(nn.Linear(16, 16)))
        self.heads = nn.ParameterList(torch.randn(16, 4) * 0.1 for _ in range(2))
        self.scales = nn.ParameterDict({"a": nn.Parameter(torch.ones(4))})
        self.extra = None

    def forward(self, x):
        h = torch.tanh(self.body(x))
        out = sum(h @ w for w in self.heads) * self.scales["a"]
        return out if self.extra is None else out + self.extra(h)


x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = Net()
net.body.requires_grad_(False).eval()
heads = torch.optim.Adam([{"params": net.heads, "lr": 1e-2}, {"params": [net.scales["a"]], "weight_decay": 0.1}], lr=3e-3)
body = None
for epoch in range(3):
    if epoch == 1:
        net.body.requires_grad_(True).train()
        body = torch.optim.SGD(net.body.parameters(), lr=0.05, momentum=0.9)
    if epoch == 2:
        net.extra = nn.Linear(16, 4)
        heads.add_param_group({"params": net.extra.parameters(), "lr": 0.1})
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        for optimizer in filter(None, (heads, body)):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in filter(None, (heads, body)):
            optimizer.step()
        print(epoch, loss.item(), [len(g["params"]) for g in heads.param_groups], [p.grad is None for p in net.parameters()])
torch.save([net.state_dict(), heads.state_dict(), body.state_dict()], "net.pt")
