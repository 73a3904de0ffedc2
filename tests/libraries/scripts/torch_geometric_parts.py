"""PyTorch Geometric: classify the nodes of one graph, which is trained on in random parts."""

import torch
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.transforms import RandomNodeSplit
from torch_geometric.utils import stochastic_blockmodel_graph

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
sizes = [40, 40, 40]
edges = stochastic_blockmodel_graph(sizes, torch.full((3, 3), 0.03) + 0.2 * torch.eye(3))
labels = torch.arange(3).repeat_interleave(40)
data = Data(x=torch.randn(120, 8) + labels[:, None] * 0.2, edge_index=edges, y=labels)
data = RandomNodeSplit(num_val=20, num_test=20)(data)
print(data, data.is_undirected())


class SAGE(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(8, 32), SAGEConv(32, 3)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


model = SAGE()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(6):
    model.train()
    total = 0.0
    for part in RandomNodeLoader(data, num_parts=4, shuffle=True):
        optimizer.zero_grad()
        out = model(part.x, part.edge_index)[part.train_mask]
        loss = torch.nn.functional.cross_entropy(out, part.y[part.train_mask])
        loss.backward()
        optimizer.step()
        total += loss.item() * int(part.train_mask.sum())
    model.eval()
    with torch.no_grad():
        guess = model(data.x, data.edge_index).argmax(-1)
    scores = [(guess == data.y)[mask].double().mean().item() for mask in
              (data.train_mask, data.val_mask, data.test_mask)]  # fmt: skip
    print(epoch, f"{total / int(data.train_mask.sum()):.12f}", *(f"{s:.4f}" for s in scores))
torch.save(model.state_dict(), "sage.pt")
