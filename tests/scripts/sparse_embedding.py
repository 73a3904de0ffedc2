"""An embedding with sparse gradients under SparseAdam, beside a dense head under another optimizer."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

data = TensorDataset(torch.randint(30, (60, 5)), torch.randint(4, (60,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
embedding, bag, head = nn.Embedding(30, 8, sparse=True), nn.EmbeddingBag(30, 8, sparse=True), nn.Linear(16, 4)
net = nn.ModuleList([embedding, bag, head])
sparse = torch.optim.SparseAdam([embedding.weight, bag.weight], lr=1e-2)
dense = torch.optim.SGD(head.parameters(), lr=0.1)
for x, y in loader:
    h = torch.cat([embedding(x).mean(1), bag(x)], dim=1)
    loss = F.cross_entropy(head(h), y)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    grad = embedding.weight.grad
    print(loss.item(), grad.is_sparse, grad.coalesce().values().norm().item())
torch.save(net.state_dict(), "net.pt")
