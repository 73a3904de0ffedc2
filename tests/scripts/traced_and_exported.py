"""A batch as the example of torch.jit.trace, add_graph and torch.export."""
import shutil
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

warnings.filterwarnings("ignore", category=FutureWarning)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(24, 8), torch.arange(24) % 2), batch_size=8)
x, y = next(iter(loader))
net.eval()
writer = SummaryWriter("runs")
writer.add_graph(net, x.to("cpu"))
writer.close()
shutil.rmtree("runs")
traced = torch.jit.trace(net, (x,))
both = torch.jit.trace(lambda a, b: a.sum(1) * b, (x, y))
exported = torch.export.export(net, (x,))
print(traced.graph)
print([node.name for node in exported.graph.nodes], exported.module()(x).sum().item())
net.train()
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), both(x, y).sum().item(), traced(x).detach().shape)
torch.save(net.state_dict(), "net.pt")
