"""Metrics of evaluate in a training: a module of one's own, batches, a combination, a saved result."""

import evaluate
import torch
from torch.utils.data import DataLoader, TensorDataset

HITS = '''
import datasets
import evaluate

class Hits(evaluate.Metric):
    def _info(self):
        features = datasets.Features({name: datasets.Value("int64") for name in ("predictions", "references")})
        return evaluate.MetricInfo(description="hits", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references, scale=1.0):
        return {"NAME": scale * sum(a == b for a, b in zip(predictions, references)) / len(references)}
'''
for name in ("hits", "share"):
    with open(f"{name}.py", "w") as file:
        file.write(HITS.replace("NAME", name))
torch.manual_seed(0)
x = torch.randn(90, 5, dtype=torch.float64)
y = (x[:, 0] * x[:, 1] > 0).long()
train = DataLoader(TensorDataset(x[:60], y[:60]), batch_size=12, shuffle=True)
test = DataLoader(TensorDataset(x[60:], y[60:]), batch_size=12)
model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
metric = evaluate.load("./hits.py")
both = evaluate.combine([evaluate.load("./hits.py"), evaluate.load("./share.py")])
for epoch in range(3):
    for a, b in train:
        loss = torch.nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for a, b in test:
        guess = model(a).argmax(1)
        metric.add_batch(predictions=guess, references=b)
        both.add_batch(predictions=guess, references=b)
    print(epoch, loss.item(), metric.compute(scale=100.0), both.compute())
evaluate.save("results/", loss=loss.item())
