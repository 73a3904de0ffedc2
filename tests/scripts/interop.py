"""Batches as other libraries see them: numpy, DLPack, PIL, Python scalars, type checks."""
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
images = torch.randint(0, 256, (40, 3, 6, 6), dtype=torch.uint8)
loader = DataLoader(TensorDataset(images, torch.arange(40) % 4), batch_size=12, shuffle=True)
net = nn.Linear(108, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)


def move(x, device):
    if type(x) == torch.Tensor:
        return x.to(device)
    if type(x) in (list, tuple):
        return [move(v, device) for v in x]
    raise TypeError(type(x))


for step, batch in enumerate(loader):
    raw, y = move(batch, "cpu")
    array = np.asarray(raw)
    Image.fromarray(np.transpose(array[0], (1, 2, 0))).save(f"first{step}.png")
    again = torch.from_dlpack(raw).double() / 255
    same = np.from_dlpack(y.clone())
    print(array.sum(), np.array(y), np.stack([r for r in raw]).shape, same.tolist(), type(raw) == torch.Tensor, raw.type())
    array //= 2  # in the memory of the batch
    raw[:, 0] += 1
    print(raw.sum().item(), array.sum(), raw[1].numpy().sum(), bytes(raw[0, 0, 0].numpy()))
    loss = F.cross_entropy(net(again.flatten(1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), float(loss), f"{loss:.4f}", round(loss.item(), 3), np.mean([loss.item(), float(loss)]), type(loss) == torch.Tensor, isinstance(y, torch.LongTensor))
    print(type(batch[0]), type(loss).__name__, raw.__class__ is torch.Tensor, raw.data_ptr() != 0, raw.untyped_storage().nbytes() >= raw.nbytes)
torch.save(net.state_dict(), "net.pt")
