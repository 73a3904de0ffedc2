"""A graph network on one graph: no batch anywhere, a mask for training and one for testing."""
import torch
import torch.nn.functional as F
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

adjacency = (torch.rand(30, 30) < 0.2).double()
adjacency = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
features, labels = torch.randn(30, 8), torch.randint(3, (30,))
train_mask = torch.arange(30) < 20
lin1, lin2 = nn.Linear(8, 6), nn.Linear(6, 3)
model = nn.ModuleList([lin1, lin2])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(5):
    hidden = torch.relu(adjacency @ lin1(features))
    output = adjacency @ lin2(hidden)
    loss = F.cross_entropy(output[train_mask], labels[train_mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    accuracy = (output[~train_mask].argmax(1) == labels[~train_mask]).double().mean()
    print(epoch, loss.item(), accuracy.item())
torch.save(model.state_dict(), "gcn.pt")
