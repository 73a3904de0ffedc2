"""Two forwards before one backward with checkpoints of both kinds; a plain checkpoint is loaded."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8))

    def forward(self, x):
        return x + self.inside(x)


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed, self.kind = nn.Embedding(12, 8), kind
        self.blocks = nn.Sequential(*[Block() for _ in range(3)])

    def forward(self, tokens):
        h = self.embed(tokens).mean(1)
        if self.kind == "sequential":
            return checkpoint_sequential(self.blocks, 2, h, use_reentrant=False)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.kind == "reentrant")
        return h


tokens = torch.randint(0, 12, (24, 5))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=8)
plain = Model("none").state_dict()
for kind in ("reentrant", "saved", "sequential"):
    model, reference = Model(kind).to("cpu"), Model(kind).to("cpu").eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    print(model.load_state_dict(plain), reference.load_state_dict(plain))
    for (batch,) in loader:
        optimizer.zero_grad()
        better, worse = model(batch).sum(1), model(batch.flip(1)[:, 1:]).sum(1)
        with torch.no_grad():
            known = reference(batch).sum(1) - reference(batch.flip(1)[:, 1:]).sum(1)
        loss = -nn.functional.logsigmoid(better - worse - known).mean()
        loss.backward()
        optimizer.step()
        print(kind, loss.item(), [p.grad.norm().item() for p in model.parameters()][:4])
