"""Train a DCGAN on scikit-learn's handwritten digits: two networks, two optimizers.

python dcgan.py
python dcgan.py --epochs 10 --out runs/dcgan
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torchvision.utils import save_image

try:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None  # no picture then

SEED = 999
BATCH_SIZE = 128
nz = 16  # size of the latent vector
ngf = 32  # feature maps of the generator
ndf = 16  # and of the discriminator
lr = 2e-3
beta1 = 0.5
REAL, FAKE = 1.0, 0.0


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 2, bias=False),  # 2 x 2
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),  # 4 x 4
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),  # 8 x 8
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False),  # 4 x 4
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),  # 2 x 2
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 2, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.main(x).view(-1)


def weights_init(m):
    classname = m.__class__.__name__
    if "Conv" in classname:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif "BatchNorm" in classname:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


def load_data():
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    return DataLoader(TensorDataset(images), batch_size=BATCH_SIZE, shuffle=True)


def plot(G_losses, D_losses, path):
    plt.plot(G_losses, label="G")
    plt.plot(D_losses, label="D")
    plt.xlabel("iterations")
    plt.ylabel("loss")
    plt.legend()
    plt.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--out", default="runs/dcgan")
    args = parser.parse_args()

    torch.manual_seed(SEED)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    os.makedirs(args.out, exist_ok=True)

    dataloader = load_data()
    netG, netD = Generator().to(device), Discriminator().to(device)
    netG.apply(weights_init)
    netD.apply(weights_init)
    criterion = nn.BCELoss()
    fixed_noise = torch.randn(64, nz, 1, 1, device=device)
    optimizerD = optim.Adam(netD.parameters(), lr=lr, betas=(beta1, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=lr, betas=(beta1, 0.999))

    G_losses, D_losses = [], []
    for epoch in range(args.epochs):
        for i, (data,) in enumerate(dataloader, 0):
            # D: maximize log(D(x)) + log(1 - D(G(z)))
            netD.zero_grad()
            real = data.to(device)
            b_size = real.size(0)
            label = torch.full((b_size,), REAL, dtype=torch.float, device=device)
            output = netD(real)
            errD_real = criterion(output, label)
            errD_real.backward()
            D_x = output.mean().item()

            noise = torch.randn(b_size, nz, 1, 1, device=device)
            fake = netG(noise)
            label.fill_(FAKE)
            output = netD(fake.detach())
            errD_fake = criterion(output, label)
            errD_fake.backward()
            D_G_z1 = output.mean().item()
            errD = errD_real + errD_fake
            optimizerD.step()

            # G: maximize log(D(G(z)))
            netG.zero_grad()
            output = netD(fake)
            errG = criterion(output, label.fill_(REAL))
            errG.backward()
            D_G_z2 = output.mean().item()
            optimizerG.step()

            G_losses.append(errG.item())
            D_losses.append(errD.item())
            if i % 5 == 0:
                print(
                    f"[{epoch}/{args.epochs}][{i}/{len(dataloader)}]\t"
                    f"Loss_D: {errD.item():.4f}\tLoss_G: {errG.item():.4f}\t"
                    f"D(x): {D_x:.4f}\tD(G(z)): {D_G_z1:.4f} / {D_G_z2:.4f}"
                )
        with torch.no_grad():
            fake = netG(fixed_noise).cpu()
        save_image(fake, os.path.join(args.out, f"fake_{epoch:03d}.png"), normalize=True)

    torch.save(netG.state_dict(), os.path.join(args.out, "netG.pth"))
    torch.save(netD.state_dict(), os.path.join(args.out, "netD.pth"))
    if plt is not None:
        plot(G_losses, D_losses, os.path.join(args.out, "curve.png"))


if __name__ == "__main__":
    main()
