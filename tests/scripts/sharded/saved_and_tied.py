"""Files of a model whose weights are tied: written twice, whole, and the same as in one process."""

import sys

import torch
from safetensors.torch import load_file, save_file, save_model
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.turned = nn.Parameter(torch.randn(3, 5).t())

    def forward(self, x):
        h = self.embed(x).mean(1)
        for block in self.blocks:
            h = self.norm(h + block(h).tanh())
        return self.head(h * self.turned.std())


model = Model().to("cpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x, y = torch.randint(0, 11, (32, 4)), torch.randint(0, 11, (32,))
for number in range(2):
    for a, b in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    if "rounded" in sys.argv:  # so that files are the same to the byte
        with torch.no_grad():
            states = [v for state in optimizer.state.values() for v in state.values()]
            for value in (*model.parameters(), *model.buffers(), *states):
                value.copy_((value * 64).round() / 64)
    kept = model.state_dict()
    torch.save(kept, f"model{number}.pt")
    torch.save({"model": kept, "optimizer": optimizer.state_dict()}, f"all{number}.pt")
    torch.save([*model.parameters(), model.turned.T, model.embed.weight[2]], f"views{number}.pt")
    once = {name: value.contiguous() for name, value in kept.items() if name != "head.weight"}
    save_file(once, f"model{number}.safetensors")
    save_file({"rows": model.embed.weight.detach()[2:4]}, f"rows{number}.safetensors")
    save_model(model, f"tied{number}.safetensors", force_contiguous="turned")
    try:
        save_file(kept, "refused.safetensors")
    except (RuntimeError, ValueError) as error:
        print(type(error))
    loaded = torch.load(f"model{number}.pt")
    print(loaded["head.weight"].data_ptr() == loaded["embed.weight"].data_ptr())
    print({k: (tuple(v.shape), v.stride(), v.untyped_storage().nbytes()) for k, v in loaded.items()})
    print(all(torch.equal(v, kept[k]) for k, v in load_file(f"model{number}.safetensors").items()))
