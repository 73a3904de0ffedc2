"""Sentences and numbers from files of three kinds, prepared with datasets; a bag of words."""

import csv
import json

import torch
from datasets import load_dataset, load_from_disk
from torch.utils.data import DataLoader

rows = [{"text": f"word{i % 7} word{i % 5} word{i % 3}", "label": i % 3} for i in range(96)]
with open("rows.csv", "w", newline="") as file:
    writer = csv.DictWriter(file, ["text", "label"])
    writer.writeheader()
    writer.writerows(rows)
with open("rows.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows[:48])
with open("rows.txt", "w") as file:
    file.writelines(row["text"] + "\n" for row in rows[:30])

words = {f"word{i}": i for i in range(7)}


def count(batch):
    vectors = [[text.split().count(word) for word in words] for text in batch["text"]]
    return {"x": [[float(n) for n in vector] for vector in vectors]}


table = load_dataset("csv", data_files="rows.csv", split="train")
lines = load_dataset("json", data_files={"train": "rows.jsonl", "test": "rows.jsonl"})
text = load_dataset("text", data_files="rows.txt", split="train")
print(table, lines, text, text[3])
table = table.map(count, batched=True).filter(lambda row: row["x"][0] < 3)
lines = lines.map(lambda row: {"length": len(row["text"])})
print(lines["train"].sort("length", reverse=True)[:3], table.features)
parts = table.shuffle(seed=1).train_test_split(test_size=0.25, seed=2)
parts.save_to_disk("parts")
parts = load_from_disk("parts").with_format("torch", columns=["x", "label"])
stream = load_dataset("csv", data_files="rows.csv", split="train", streaming=True)
print(list(stream.shuffle(seed=3, buffer_size=10).map(lambda row: {"n": len(row["text"])}).take(3)))

torch.manual_seed(0)
model = torch.nn.Linear(7, 3).double()
optimizer = torch.optim.Adam(model.parameters(), 0.05)
for epoch in range(3):
    for batch in DataLoader(parts["train"], batch_size=16, shuffle=True):
        loss = torch.nn.functional.cross_entropy(model(batch["x"].double()), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = sum(
        (model(b["x"].double()).argmax(1) == b["label"]).sum().item()
        for b in DataLoader(parts["test"], batch_size=16)
    )
    print(epoch, loss.item(), right, len(parts["test"]))
torch.save(model.state_dict(), "model.pt")
