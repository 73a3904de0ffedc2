"""webdataset: write shards of samples, and train from them by a pipeline with a shuffle buffer."""

import numpy as np
import torch
import webdataset as wds
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
digits = load_digits()
with wds.ShardWriter("digits-%04d.tar", maxcount=50, verbose=0) as sink:
    for i in range(150):
        image = (digits.images[i] * 15).astype(np.uint8)
        image = np.stack([image] * 3, -1)
        sink.write({"__key__": f"sample{i:05d}", "png": image, "cls": int(digits.target[i])})


def prepare(sample):
    image, label = sample
    return torch.from_numpy(image[..., 0]).double(), label


def pipeline(shards, buffer):
    dataset = wds.WebDataset(shards, shardshuffle=3 if buffer else False, seed=7)
    if buffer:
        dataset = dataset.shuffle(buffer, seed=3)
    return dataset.decode("rgb").to_tuple("png", "cls").map(prepare).batched(16)


train, test = pipeline("digits-{0000..0001}.tar", 40), pipeline("digits-0002.tar", 0)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(3):
    for x, y in wds.WebLoader(train, batch_size=None, num_workers=epoch % 2):
        loss = nn.functional.cross_entropy(net(x), torch.as_tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {len(x)} loss {loss.item():.12f}")
    with torch.no_grad():
        right = sum(int((net(x).argmax(1) == torch.as_tensor(y)).sum()) for x, y in test)
    print(f"epoch {epoch}: {right} of 50 right")
torch.save(net.state_dict(), "net.pt")
