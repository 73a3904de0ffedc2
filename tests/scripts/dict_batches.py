"""Samples are dicts, as from a tokenizer, with a string among them; the model takes keyword arguments."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def sample(i, named):
    ids = torch.randint(1, 11, (7,))
    mask = (torch.arange(7) < 4 + i % 4).long()
    item = {"input_ids": ids * mask, "attention_mask": mask, "labels": i % 3}
    return {**item, "name": f"text{i}"} if named else item


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(11, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask, labels=None):
        mask = attention_mask.unsqueeze(-1)
        pooled = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        logits = self.out(pooled)
        return {"logits": logits, "loss": F.cross_entropy(logits, labels) if labels is not None else None}


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for named in (False, True):
    for batch in DataLoader([sample(i, named) for i in range(40)], batch_size=12, shuffle=True):
        names = batch.pop("name", None)
        batch = {k: v.to("cpu") for k, v in batch.items()}
        output = model(**batch)
        optimizer.zero_grad()
        output["loss"].backward()
        optimizer.step()
        print(output["loss"].item(), output["logits"].argmax(-1).tolist(), names)
torch.save(model.state_dict(), "model.pt")
