"""torchvision's families for classification and segmentation, at a small width or depth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from benchmarks.models import CLASSES, ROWS, Subject, images

SIDE = 33  # of images that are segmented


def named(name: str, size: int = 32, **options: object) -> Subject:
    """Make a model that is small enough as it is."""
    from torchvision import models

    return images(models.get_model(name, num_classes=CLASSES, **options), size)


def narrow_head(name: str, features: int, size: int = 64) -> Subject:
    """Make a model whose hidden linear layers of 4096 have 32 outputs."""
    from torchvision import models

    net = models.get_model(name, num_classes=CLASSES, init_weights=False) if "vgg" in name else None
    net = net or models.get_model(name, num_classes=CLASSES)
    net.avgpool = nn.AdaptiveAvgPool2d(2)
    net.classifier = nn.Sequential(
        *(nn.Dropout(), nn.Linear(features * 4, 32), nn.ReLU(inplace=True)),
        *(nn.Dropout(), nn.Linear(32, 32), nn.ReLU(inplace=True), nn.Linear(32, CLASSES)),
    )
    return images(net, size)


def convnext() -> Subject:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(8, 16, 2), CNBlockConfig(16, None, 2)]
    return images(ConvNeXt(blocks, stochastic_depth_prob=0.2, num_classes=CLASSES))


def densenet() -> Subject:
    from torchvision.models import DenseNet

    net = DenseNet(4, (2, 2, 2), num_init_features=8, drop_rate=0.1, num_classes=CLASSES)
    return images(net)


def efficientnet(kind: str = "b0") -> Subject:
    from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig

    first = partial(MBConvConfig, 1, 3, 1, 8, 8, 1)
    if kind == "v2":
        first = partial(FusedMBConvConfig, 1, 3, 1, 8, 8, 2)
    blocks = [first(), MBConvConfig(4, 3, 2, 8, 16, 2), MBConvConfig(4, 5, 2, 16, 24, 2)]
    return images(EfficientNet(blocks, 0.2, stochastic_depth_prob=0.2, num_classes=CLASSES))


def with_aux(out: object, y: Tensor) -> Tensor:
    """Return the loss of GoogLeNet, with its auxiliary outputs."""
    main, *aux = out  # type: ignore[misc]
    return F.cross_entropy(main, y) + 0.3 * sum(F.cross_entropy(x, y) for x in aux)


def googlenet() -> Subject:
    from torchvision.models import GoogLeNet

    net = GoogLeNet(num_classes=CLASSES, aux_logits=True, init_weights=False)
    return images(net, 64, lambda net, x, y: with_aux(net(x), y))


def inception() -> Subject:
    from torchvision.models import Inception3

    return images(Inception3(num_classes=CLASSES, aux_logits=False, init_weights=False), 80)


def regnet() -> Subject:
    from torchvision.models.regnet import BlockParams, RegNet

    params = BlockParams.from_init_params(5, 8, 8.0, 2.0, 8, se_ratio=0.25)
    return images(RegNet(params, num_classes=CLASSES))


def resnet(kind: str = "BasicBlock", **options: object) -> Subject:
    from torchvision.models import resnet

    net = resnet.ResNet(getattr(resnet, kind), [1, 1, 1, 1], num_classes=CLASSES, **options)
    return images(net)


def swin(version: int = 1) -> Subject:
    from torchvision.models import swin_transformer as swin

    blocks = {}
    if version == 2:
        blocks = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    sizes = [[2, 2], 16, [2, 2], [2, 4], [4, 4]]
    net = swin.SwinTransformer(
        *sizes, dropout=0.1, stochastic_depth_prob=0.2, num_classes=CLASSES, **blocks
    )
    return images(net)


def vit() -> Subject:
    from torchvision.models import VisionTransformer

    sizes = (32, 8, 2, 4, 32, 64)
    return images(VisionTransformer(*sizes, dropout=0.1, attention_dropout=0.1, num_classes=5))


def maxvit() -> Subject:
    from torchvision.models import MaxVit

    net = MaxVit((32, 32), 8, 4, [8, 16], [1, 2], 4, 0.2, num_classes=CLASSES)
    return images(net)


def of_pixels(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a model that segments, with its auxiliary output."""
    out = net(x)
    loss = F.cross_entropy(out["out"], y, ignore_index=0)
    return loss + 0.5 * F.cross_entropy(out["aux"], y, ignore_index=0) if "aux" in out else loss


def segmented(net: nn.Module) -> Subject:
    """Tell each pixel's class."""
    pixels = torch.randint(CLASSES, (ROWS, SIDE, SIDE))
    return Subject(net, TensorDataset(torch.randn(ROWS, 3, SIDE, SIDE), pixels), of_pixels)


def segmentation(kind: str) -> Subject:
    from torchvision.models import resnet
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation import deeplabv3, fcn

    dilate = [False, True, True]
    body = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], replace_stride_with_dilation=dilate)
    parts = IntermediateLayerGetter(body, {"layer4": "out", "layer3": "aux"})
    if kind == "fcn":
        return segmented(fcn.FCN(parts, fcn.FCNHead(2048, 5), fcn.FCNHead(1024, 5)))
    head = deeplabv3.DeepLabHead(2048, CLASSES, (2, 4))
    return segmented(deeplabv3.DeepLabV3(parts, head, fcn.FCNHead(1024, CLASSES)))


def lraspp() -> Subject:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    return segmented(lraspp_mobilenet_v3_large(num_classes=CLASSES, weights_backbone=None))


MODELS: dict[str, Callable[[], Subject]] = {
    "alexnet": partial(narrow_head, "alexnet", 256),
    "convnext": convnext,
    "densenet": densenet,
    "efficientnet": efficientnet,
    "efficientnet_v2": partial(efficientnet, "v2"),
    "googlenet": googlenet,
    "inception_v3": inception,
    "maxvit": maxvit,
    "mnasnet": partial(named, "mnasnet0_5"),
    "mobilenet_v2": partial(named, "mobilenet_v2", width_mult=0.35),
    "mobilenet_v3": partial(named, "mobilenet_v3_small", width_mult=0.5),
    "regnet": regnet,
    "resnet18": partial(named, "resnet18"),
    "resnet_bottleneck": partial(resnet, "Bottleneck"),
    "resnext": partial(resnet, "Bottleneck", groups=8, width_per_group=4),
    "shufflenet": partial(named, "shufflenet_v2_x0_5"),
    "squeezenet": partial(named, "squeezenet1_1"),
    "swin": swin,
    "swin_v2": partial(swin, 2),
    "vgg11": partial(narrow_head, "vgg11", 512, 32),
    "vgg11_bn": partial(narrow_head, "vgg11_bn", 512, 32),
    "vit": vit,
    "wide_resnet": partial(resnet, "Bottleneck", width_per_group=128),
    "fcn": partial(segmentation, "fcn"),
    "deeplabv3": partial(segmentation, "deeplabv3"),
    "lraspp": lraspp,
}
