"""Monte Carlo dropout and other draws under inference_mode and no_grad: several passes, no gradients."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)  # empty memory is filled
torch.manual_seed(0)


class Noisy(nn.Module):
    def forward(self, x):
        x = torch.normal(x, x.abs()) + torch.bernoulli(x.sigmoid()) + torch.normal(0.5, x.exp())
        return F.gumbel_softmax(x + 0.1 * torch.randn_like(x), dim=-1)


class Attending(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.part = kind(2, 2, num_layers=2, batch_first=True, dropout=0.5)

    def forward(self, x):
        return self.part(x)[0]


parts = {
    "dropout": nn.Dropout(0.5),
    "dropout1d": nn.Dropout1d(0.5),
    "alpha": nn.AlphaDropout(0.5),
    "rrelu": nn.RReLU(),
    "noise": Noisy(),
    "attention": Attending(),
    "lstm": Recurrent(nn.LSTM),
    "gru": Recurrent(nn.GRU),
    "encoder": nn.TransformerEncoderLayer(2, 1, 8, batch_first=True),
    "norm": nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.2)),
}
loader = DataLoader(TensorDataset(torch.randn(21, 6)), batch_size=7)
saved = {}
for name, part in parts.items():
    net = nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (4, 2)), part, nn.Flatten(), nn.Linear(8, 1))
    for mode in (torch.inference_mode, torch.no_grad):
        net.train()
        with mode():
            for (x,) in loader:
                passes = torch.stack([net(x) for _ in range(3)])
                print(name, passes.std(0).sum().item())
            net.eval()
            print(name, net(x).sum().item(), torch.rand(()).item())
    saved[name] = net.state_dict()
torch.save(saved, "nets.pt")
