"""The hidden state is kept on the module and made for a fixed batch size."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
BATCH = 8


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 7, batch_first=True)
        self.out = nn.Linear(7, 1)
        self.hidden = (torch.zeros(1, BATCH, 7), torch.zeros(1, BATCH, 7))

    def forward(self, x):
        y, hidden = self.lstm(x, self.hidden)
        self.hidden = tuple(h.detach() for h in hidden)
        return self.out(y[:, -1])


loader = DataLoader(TensorDataset(torch.randn(48, 6, 5), torch.randn(48, 1)), batch_size=BATCH, shuffle=True)
net = Stateful()
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    loss = criterion(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), net.hidden[0].shape, net.hidden[0].sum().item())
torch.save({"net": net.state_dict(), "hidden": net.hidden}, "net.pt")
