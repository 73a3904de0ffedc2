"""CTC with input and target lengths; packed sequences of lengths from the batch; cells unrolled by hand."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

data = TensorDataset(torch.randn(40, 9, 5), torch.randint(5, 10, (40,)), torch.randint(1, 6, (40, 3)), torch.randint(1, 4, (40,)))
loader = DataLoader(data, batch_size=9, shuffle=True)
model = nn.ModuleDict({"rnn": nn.LSTM(5, 8, batch_first=True, bidirectional=True), "out": nn.Linear(16, 6), "cell": nn.LSTMCell(5, 8), "next": nn.Linear(8, 5)})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
ctc = nn.CTCLoss(blank=0, zero_infinity=True)
for x, lengths, targets, target_lengths in loader:
    log_probs = F.log_softmax(model["out"](model["rnn"](x)[0]), dim=2).transpose(0, 1)
    by_ctc = ctc(log_probs, targets, lengths, target_lengths)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    padded, sizes = pad_packed_sequence(model["rnn"](packed)[0], batch_first=True)
    mask = torch.arange(padded.size(1))[None, :] < sizes[:, None]
    pooled = (padded * mask.unsqueeze(-1)).sum(1) / sizes.unsqueeze(-1)
    by_last = F.cross_entropy(model["out"](pooled), targets[:, 0])
    h, c = torch.zeros(len(x), 8), torch.zeros(len(x), 8)
    by_step = 0
    for t in range(x.size(1) - 1):
        h, c = model["cell"](x[:, t], (h, c))
        by_step = by_step + F.mse_loss(model["next"](h), x[:, t + 1])
    loss = by_ctc + by_last + by_step
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(by_ctc.item(), by_last.item(), by_step.item())
torch.save(model.state_dict(), "model.pt")
