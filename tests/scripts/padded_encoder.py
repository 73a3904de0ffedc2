"""Encoders of padded texts, whose fast path in evaluation makes zeros of padded places: where all rows allow it."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(23, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x), src_key_padding_mask=x == 0).mean(1))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(23, 8)
        self.both = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, x):
        return self.both(self.embed(x), self.embed(x.flip(1)), src_key_padding_mask=x == 0).mean(1)


x = torch.randint(1, 23, (21, 9))
for n, length in enumerate([9, 8, 7, 5, 5, 3, 2] * 2 + [9] * 7):
    x[n, length:] = 0
x[8, 2] = x[12, 1] = x[17, 0] = 0  # of the second and third batch some rows end elsewhere
y = x.sum(1) % 3
for net in (Classifier(), Translator()):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(2):
        net.train()
        for batch, target in DataLoader(TensorDataset(x, y), 7, shuffle=True):
            loss = F.cross_entropy(net(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
        net.eval()
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                for batch, target in DataLoader(TensorDataset(x, y), 7):
                    print(mode.__name__, F.cross_entropy(net(batch), target).item())
    torch.save(net.state_dict(), f"{type(net).__name__}.pt")
