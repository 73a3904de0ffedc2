"""A library writes its code to a file that has another name in each process, as PyTorch Geometric does."""
import ctypes
import importlib.util
import os
import tempfile
import torch

path = os.path.join(tempfile.gettempdir(), f"gen_{ctypes.CDLL(None).getpid()}.py")
fd = ctypes.CDLL(None).open(path.encode(), os.O_CREAT | os.O_WRONLY, 0o644)
text = b"def pick(x, index):\n    return x.index_select(0, index)\n"
ctypes.CDLL(None).write(fd, text, len(text))
spec = importlib.util.spec_from_file_location("gen", path)
gen = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gen)
ctypes.CDLL(None).unlink(path.encode())
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, 4)), batch_size=8):
    loss = net(gen.pick(x, torch.tensor([0, 3, 5, 7]))).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
