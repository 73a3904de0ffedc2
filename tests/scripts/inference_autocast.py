"""Monte Carlo dropout under inference_mode and autocast: operators that torch makes of others are cast, too."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.backends.mkldnn.set_flags(False)  # whose LSTM in bfloat16 not every processor has


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.drop, self.head = nn.LSTM(6, 8, batch_first=True), nn.Dropout(0.5), nn.Linear(8, 3)
        self.mix = nn.Parameter(torch.eye(8))

    def forward(self, x):
        hidden = torch.einsum("btd,de->bte", self.lstm(x)[0], self.mix)
        print(hidden.dtype)
        return self.head(self.drop(hidden[:, -1] @ self.mix))


net = Net()
loader = DataLoader(TensorDataset(torch.randn(21, 5, 6)), batch_size=7)
with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
    for (x,) in loader:
        passes = torch.stack([net(x) for _ in range(3)])
        print(passes.dtype, passes.float().std(0).sum().item(), torch.rand(()).item())
torch.save(net.state_dict(), "net.pt")
