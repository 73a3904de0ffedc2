"""Ultralytics: train a small YOLO from its yaml on drawn images, validate, predict."""

import os

os.environ["YOLO_VERBOSE"] = "false"
from pathlib import Path

import cv2
import numpy as np
import yaml
from ultralytics import YOLO, settings

settings.update({"mlflow": False, "raytune": False, "tensorboard": False})
random = np.random.default_rng(0)
for part, count in (("train", 12), ("val", 4)):
    for folder in ("images", "labels"):
        os.makedirs(f"data/{folder}/{part}", exist_ok=True)
    for i in range(count):
        image = random.integers(0, 60, (64, 64, 3), dtype=np.uint8)
        x, y, size = (int(v) for v in random.integers(12, 28, 3))
        kind = i % 2
        if kind:
            cv2.circle(image, (x + size // 2, y + size // 2), size // 2, (0, 220, 220), -1)
        else:
            cv2.rectangle(image, (x, y), (x + size, y + size), (220, 40, 0), -1)
        cv2.imwrite(f"data/images/{part}/{i}.png", image)
        box = ((x + size / 2) / 64, (y + size / 2) / 64, size / 64, size / 64)
        Path(f"data/labels/{part}/{i}.txt").write_text(f"{kind} {' '.join(map(str, box))}\n")
names = {0: "square", 1: "disc"}
paths = {"train": "data/images/train", "val": "data/images/val"}
Path("data.yaml").write_text(yaml.safe_dump({**paths, "names": names}))

model = YOLO("yolov8n.yaml")
model.train(data="data.yaml", epochs=2, imgsz=64, batch=4, workers=0, device="cpu", seed=0,
            plots=False, verbose=False, project=os.path.abspath("runs"), name="shapes",
            amp=False, optimizer="AdamW", lr0=0.002)  # fmt: skip
for line in Path("runs/shapes/results.csv").read_text().splitlines():
    print(",".join(line.split(",")[:1] + line.split(",")[2:]))
metrics = model.val(data="data.yaml", imgsz=64, batch=4, workers=0, device="cpu", plots=False,
                    verbose=False, project=os.path.abspath("runs"), name="val")  # fmt: skip
print({name: round(float(value), 6) for name, value in metrics.results_dict.items()})
(result,) = model.predict("data/images/val/0.png", imgsz=64, device="cpu", verbose=False, conf=0.0)
print(len(result.boxes), [f"{v:.4f}" for v in result.boxes.conf[:5].tolist()])
