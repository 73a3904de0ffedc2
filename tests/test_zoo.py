"""Small models of the zoo (benchmarks/zoo.py) have one process's numbers on ranks."""

from __future__ import annotations

import pytest
import torch

from benchmarks.zoo import examine

NEEDS = {
    "convnext": "torchvision",
    "mobilenet_v3": "torchvision",
    "swin": "torchvision",
    "lraspp": "torchvision",
    "timm vit_tiny": "timm",
    "hf bert": "transformers",
    "hf llama": "transformers",
    "hf t5": "transformers",
    "packed LSTM": "torch",
    "TransformerEncoder time first": "torch",
    "nn.Transformer batch first": "torch",
    "U-Net": "torch",
}
RTOL = 1e-9


@pytest.fixture(autouse=True)
def dtype():
    """The zoo's models are made in float64."""
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # a library's own
@pytest.mark.parametrize(("nproc", "parameters"), [(2, "replicated"), (3, "sharded")])
@pytest.mark.parametrize("name", NEEDS)
def test_ranks_train_it_as_one_process_does(name, nproc, parameters):
    pytest.importorskip(NEEDS[name])
    found = examine(name, nproc, double=True, parameters=parameters)
    assert found.difference < RTOL, found.at
    assert found.same_generator
