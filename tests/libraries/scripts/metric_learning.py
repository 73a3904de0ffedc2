"""pytorch-metric-learning: a triplet loss on mined triplets of embeddings, and its accuracies."""

import numpy as np
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, samplers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
np.random.seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data[:300]) / 16, torch.tensor(digits.target[:300])
train = TensorDataset(x[:200], y[:200])
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)).double()
distance = distances.CosineSimilarity()
reducer = reducers.ThresholdReducer(low=0)
loss_func = losses.TripletMarginLoss(margin=0.2, distance=distance, reducer=reducer)
proxies = losses.ProxyAnchorLoss(num_classes=10, embedding_size=16).double()
miner = miners.TripletMarginMiner(margin=0.2, distance=distance, type_of_triplets="semihard")
parameters = [*model.parameters(), *proxies.parameters()]
optimizer = torch.optim.Adam(parameters, lr=0.003)
calculator = AccuracyCalculator(
    include=("precision_at_1", "mean_average_precision_at_r"),
    knn_func=CustomKNN(distances.LpDistance()),
    k=20,
)
for epoch in range(3):
    sampler = samplers.MPerClassSampler(y[:200], m=4, batch_size=40, length_before_new_iter=200)
    for data, labels in DataLoader(train, batch_size=40, sampler=sampler):
        embeddings = model(data)
        triplets = miner(embeddings, labels)
        loss = loss_func(embeddings, labels, triplets) + 0.1 * proxies(embeddings, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} loss {loss.item():.10f} mined triplets {miner.num_triplets}")
    with torch.no_grad():
        reference, query = model(x[:200]), model(x[200:])
    found = calculator.get_accuracy(query, y[200:], reference, y[:200])
    print({name: f"{value:.6f}" for name, value in found.items()})
torch.save(model.state_dict(), "trunk.pt")
