"""Methods other than `forward`, weights used outside of their module, a model called by itself."""

import torch
from torch import nn
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell = nn.Embedding(12, 8), nn.GRUCell(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.start = nn.ParameterList([nn.Parameter(torch.zeros(1, 8)) for _ in range(2)])

    def encode(self, tokens):
        state = self.start[0].expand(len(tokens), -1) + self.start[1]
        for column in tokens.unbind(1):
            state = self.cell(self.embed(column), state) * self.scale
        return state

    def logits(self, state):
        return F.linear(state, self.embed.weight)

    def forward(self, tokens):
        return self.logits(self.encode(tokens))

    @torch.no_grad()
    def generate(self, tokens, count):
        for _ in range(count):
            tokens = torch.cat([tokens, self(tokens).argmax(1, keepdim=True)], 1)
        return tokens


model = Model().to("cpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
tokens = torch.randint(0, 12, (24, 5))
for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=8):
    optimizer.zero_grad()
    loss = F.cross_entropy(model.logits(model.encode(batch[:, :-1])), batch[:, -1])
    penalty = (model.embed.weight @ model.embed.weight.T - torch.eye(12)).square().mean()
    nearest = (model.encode(batch)[:, None] - model.embed.weight).square().sum(-1).min(1).values
    (loss + 0.1 * penalty + 0.01 * nearest.mean()).backward()
    optimizer.step()
    print(loss.item(), penalty.item(), nearest.sum().item(), model.embed.weight[0, :2].tolist())
    print(model.generate(batch[:2], 4).tolist(), model.encode(tokens).sum().item())
print(model.scale, list(model.start))
