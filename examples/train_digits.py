"""Train a convolutional network on handwritten digits, as one would in PyTorch.

pip install "mpgrad[data]"
python examples/train_digits.py [epochs]
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import mpgrad as mg
from mpgrad import nn
from mpgrad.data import DataLoader, TensorDataset, random_split

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 10

mg.manual_seed(0)
digits = load_digits()
images = mg.tensor((digits.images / 16.0).astype(np.float32)[:, None])  # (1797, 1, 8, 8)
train, test = random_split(TensorDataset(images, mg.tensor(digits.target)), [0.8, 0.2])

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(128, 10),
)
loss_function = nn.CrossEntropyLoss()
optimizer = mg.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

# Without an Engine of one's own, a default one decides where each backward runs: here, for a small
# network like this, or in worker processes. To choose: with mg.Engine(mode="process"): ...
for epoch in range(EPOCHS):
    model.train()
    for batch, labels in DataLoader(train, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss = loss_function(model(batch), labels)
        loss.backward()
        optimizer.step()

    model.eval()
    with mg.no_grad():
        batch, labels = test[:]
        accuracy = (model(batch).argmax(1) == labels).float().mean().item()
    print(f"epoch {epoch + 1:>2}  loss {loss.item():.4f}  test accuracy {accuracy:.1%}")
