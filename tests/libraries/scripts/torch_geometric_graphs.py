"""PyTorch Geometric: classify graphs in mini-batches, with GCN layers and a pooled readout."""

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.utils import erdos_renyi_graph

torch.manual_seed(12345)
torch.set_default_dtype(torch.float64)
graphs = []
for i in range(70):
    label, nodes = i % 2, 6 + i % 5
    edges = erdos_renyi_graph(nodes, 0.7 if label else 0.25)
    graphs.append(Data(x=torch.randn(nodes, 3) + 0.3 * label, edge_index=edges, y=label))
train = DataLoader(graphs[:50], batch_size=16, shuffle=True)
test = DataLoader(graphs[50:], batch_size=16)


class GCN(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(3, hidden), GCNConv(hidden, hidden)
        self.lin = torch.nn.Linear(hidden, 2)

    def forward(self, x, edge_index, batch):
        x = self.conv1(x, edge_index).relu()
        x = global_mean_pool(self.conv2(x, edge_index), batch)
        return self.lin(torch.nn.functional.dropout(x, p=0.5, training=self.training))


model = GCN(16)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, 6):
    model.train()
    for data in train:
        optimizer.zero_grad()
        out = model(data.x, data.edge_index, data.batch)
        loss = torch.nn.functional.cross_entropy(out, data.y)
        loss.backward()
        optimizer.step()
    model.eval()
    right = sum(int((model(d.x, d.edge_index, d.batch).argmax(1) == d.y).sum()) for d in test)
    print(f"epoch {epoch}: loss {loss.item():.12f} accuracy {right / len(test.dataset):.4f}")
torch.save(model.state_dict(), "gcn.pt")
