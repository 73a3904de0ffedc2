"""timm's families that are downloaded most, at a small width or depth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.models import CLASSES, Subject, images


def made(name: str, size: int = 32, **options: object) -> Subject:
    """Make a model by its name."""
    import timm

    return images(timm.create_model(name, num_classes=CLASSES, **options), size)


def mixer() -> Subject:
    from timm.models.mlp_mixer import MlpMixer

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2}
    return images(MlpMixer(CLASSES, **sizes, **DROPS))


LITTLE = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 4, "depth": 2}
DROPS = {"drop_rate": 0.1, "drop_path_rate": 0.2}
RESNET = {"layers": (1, 1, 1, 1), "channels": (8, 16, 24, 32)}

MODELS: dict[str, Callable[[], Subject]] = {
    "timm resnet18": partial(made, "resnet18", **RESNET, **DROPS),
    "timm resnet50": partial(made, "resnet50", **RESNET, **DROPS),
    "timm resnet50d": partial(made, "resnet50d", **RESNET),
    "timm mobilenetv3": partial(made, "mobilenetv3_small_050", **DROPS),
    "timm efficientnet_b0": partial(made, "efficientnet_b0", 64, **DROPS),
    "timm tf_efficientnet": partial(made, "tf_efficientnet_lite0", 64, **DROPS),
    "timm vit_tiny": partial(made, "vit_tiny_patch16_224", **LITTLE, **DROPS),
    "timm deit_tiny": partial(made, "deit_tiny_distilled_patch16_224", **LITTLE, **DROPS),
    "timm convnext_atto": partial(
        made, "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), **DROPS
    ),
    "timm swin_tiny": partial(
        made,
        "swin_tiny_patch4_window7_224",
        **{"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16},
        **{"depths": (2, 2), "num_heads": (2, 4)},
        **DROPS,
    ),
    "timm mixer": mixer,
    "timm regnet": partial(made, "regnety_002", 64),
}
