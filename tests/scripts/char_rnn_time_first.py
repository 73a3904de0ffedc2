"""word_language_model's shape: (time, batch), hidden state carried over and detached, batches cut by hand."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class RNNModel(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.rnn = nn.GRU(hidden, hidden, 2)
        self.decoder = nn.Linear(hidden, vocab)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.embedding(x), hidden)
        return self.decoder(output), hidden


corpus = torch.randint(11, (60, 10))
model = RNNModel(11, 13)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
hidden = torch.zeros(2, 10, 13)
for i in range(0, 50, 7):
    data, target = corpus[i : i + 7], corpus[i + 1 : i + 8].reshape(-1)
    hidden = hidden.detach()
    output, hidden = model(data, hidden)
    loss = F.cross_entropy(output.reshape(-1, 11), target)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(f"loss {loss.item()!r} ppl {math.exp(loss.item())!r}")
torch.save({"model": model.state_dict(), "hidden": hidden}, "rnn.pt")
