"""A collate_fn of one's own pads sequences to the longest of the batch; packed by the script."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

sequences = [(torch.randn(3 + i % 5, 5), i % 3) for i in range(50)]


def collate(batch):
    batch.sort(key=lambda sample: -len(sample[0]))
    xs, ys = zip(*batch)
    return pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs]), torch.tensor(ys)


loader = DataLoader(sequences, batch_size=9, shuffle=True, collate_fn=collate)
model = nn.ModuleDict({"gru": nn.GRU(5, 7, batch_first=True), "out": nn.Linear(7, 3)})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for x, lengths, y in loader:
    packed = pack_padded_sequence(x, lengths, batch_first=True)
    _, last = model["gru"](packed)
    by_mean, _ = model["gru"](x)
    loss = F.cross_entropy(model["out"](last[0]) + model["out"](by_mean.mean(1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(tuple(x.shape), loss.item())
torch.save(model.state_dict(), "model.pt")
