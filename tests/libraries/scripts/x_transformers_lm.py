"""x-transformers: a decoder with rotary embeddings on enwik8-like characters, then it generates."""

import torch
from torch.utils.data import DataLoader, Dataset
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
text = "the quick brown fox jumps over the lazy dog. " * 40
data = torch.tensor([ord(c) - 32 for c in text])


class TextSampler(Dataset):
    def __init__(self, data, length):
        self.data, self.length = data, length

    def __getitem__(self, _):
        start = torch.randint(0, len(self.data) - self.length - 1, (1,))
        return self.data[start : start + self.length + 1]

    def __len__(self):
        return len(self.data) // self.length


model = AutoregressiveWrapper(TransformerWrapper(
    num_tokens=96, max_seq_len=32,
    attn_layers=Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True, attn_dropout=0.1,
                        ff_dropout=0.1, ff_glu=True),
))  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
accumulate = 2
for epoch in range(2):
    model.train()
    for i, batch in enumerate(DataLoader(TextSampler(data, 32), batch_size=8, drop_last=True)):
        loss = model(batch)
        (loss / accumulate).backward()
        print(f"training loss: {loss.item():.10f}")
        if (i + 1) % accumulate == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    sample = model.generate(data[None, :8], 24, temperature=1.0)[0]
    print("".join(chr(t + 32) for t in sample.tolist()))
torch.save(model.state_dict(), "model.pt")
