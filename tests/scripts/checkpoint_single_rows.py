"""Checkpoints of blocks whose rows are not outermost in memory; of the last batch each rank has one."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(6, 6, batch_first=True), nn.GRU(6, 6)
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1)

    def forward(self, x):
        x = self.gru(self.lstm(x)[0].transpose(0, 1))[0]
        x = self.layer(x)
        return F.dropout(torch.einsum("tbc,dc->btd", x, x.new_ones(6, 6)).sin(), 0.2)


blocks = nn.ModuleList([Block(), Block()])
optimizer = torch.optim.SGD(blocks.parameters(), 0.05)
for (x,) in DataLoader(TensorDataset(torch.randn(14, 4, 6)), 6):
    h = x
    for block in blocks:
        h = checkpoint(block, h, use_reentrant=False)
    loss = h.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.10f}", *[f"{p.double().square().sum().item():.8f}" for p in blocks[0].parameters()][:4])
