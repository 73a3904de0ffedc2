"""nanoGPT's shape: the model returns (logits, loss), get_batch cuts random windows by hand."""
import torch
import torch.nn.functional as F
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class GPT(nn.Module):
    def __init__(self, vocab=11, d=16):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.block = nn.TransformerEncoderLayer(d, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(d, vocab)

    def forward(self, idx, targets=None):
        logits = self.head(self.block(self.wte(idx)))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


text = torch.randint(11, (400,))


def get_batch(batch_size=9, block=8):
    ix = torch.randint(len(text) - block - 1, (batch_size,))
    x = torch.stack([text[i : i + block] for i in ix])
    y = torch.stack([text[i + 1 : i + 1 + block] for i in ix])
    return x, y


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(8):
    logits, loss = model(*get_batch())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item(), logits[0, 0, 0].item())
torch.save(model.state_dict(), "ckpt.pt")
