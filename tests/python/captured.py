"""Modules whose operators `ductile capture` finds, and some in which there are none to be found."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ductile


class Block(nn.Module):
    """A residual block; its shortcut is a branch of its own where the sizes change."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)) if stride > 1 else None

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        x = F.relu(self.stem(x), inplace=True)
        x = self.blocks(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def example(self, samples):
        return torch.randn(samples, 3, 12, 12)


class Skips(nn.Module):
    """A U-Net of two levels."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up2, self.up1 = nn.Conv2d(16, 4, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x):
        a = torch.relu(self.down1(x))
        b = torch.relu(self.down2(F.max_pool2d(a, 2)))
        c = torch.relu(self.middle(F.max_pool2d(b, 2)))
        c = F.interpolate(c, scale_factor=2)
        d = torch.relu(self.up2(torch.cat([c, b], 1)))
        d = F.interpolate(d, size=a.shape[-2:])
        return self.up1(torch.cat((d, a), dim=1))

    def example(self, samples):
        return torch.randn(samples, 1, 16, 16)


class Towers(nn.Module):
    """A recommender: users and items meet at the end. It ignores `when`, and makes a list and a dictionary."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(50, 16), nn.EmbeddingBag(80, 16, mode="sum")
        self.user = nn.Sequential(nn.Linear(16 + 3, 24), nn.ReLU(), nn.Linear(24, 8))
        self.item = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8))
        self.top = nn.Linear(9, 1)

    def forward(self, batch, when=None):
        user = self.user(torch.cat([self.users(batch["user"]), batch["dense"]], 1))
        item = self.item(self.items(batch["items"]))
        score = (user * item).sum(1, keepdim=True)
        return {"score": self.top(torch.cat([score, user], 1))[:, 0], "both": [user, item]}

    def example(self, samples):
        return {"user": torch.randint(50, (samples,)), "items": torch.randint(80, (samples, 4)),
                "dense": torch.randn(samples, 3)}, torch.randn(samples)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, mask):
        samples, length, width = x.shape
        q, k, v = self.qkv(x).view(samples, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        scores = scores.masked_fill(mask, float("-inf"))
        return self.out((self.drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(samples, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    """A decoder whose head is its embedding; positions and the mask depend on no input."""

    def __init__(self, layers=2):
        super().__init__()
        self.token, self.place = nn.Embedding(37, 16), nn.Embedding(12, 16)
        self.layers = nn.ModuleList(Layer(16, 2) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 37, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        length = tokens.size(1)
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.token(tokens) + self.place(torch.arange(length))
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))

    def example(self, samples):
        return torch.randint(37, (samples, 9))


class Noisy(nn.Module):
    """Two branches that draw in another order than their operators run; batch norm; statistics of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.bn, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(16, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        b = F.dropout(b, 0.3, self.training)
        a = F.dropout(a, 0.3, self.training) + 0.1 * torch.randn_like(a)
        a = self.bn(a)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(b.mean(0), alpha=0.1)
        return self.out(torch.cat([a, b], 1))

    def example(self, samples):
        return torch.randn(samples, 6)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.out = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.shared(torch.tanh(self.shared(x)))))

    def example(self, samples):
        return (torch.randn(samples, 6),)


class Contrast(nn.Module):
    """Its shapes grow with the number of samples, and with its square."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, x, y):
        a, b = self.a(x), self.b(y)
        a = a.view(x.shape[0] * 2, 4).reshape(len(x), -1)
        logits = a @ b.t()
        return F.cross_entropy(logits, torch.arange(x.size(0)), reduction="none") / x.shape[0]

    def example(self, samples):
        return {"x": torch.randn(samples, 4), "y": torch.randn(samples, 4)}


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        if x.sum() > 0:  # refused: the line
            x = -x
        return self.fc(x)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(6, 6), Gate(), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.gate(self.first(x)))

    def example(self, samples):
        return torch.randn(samples, 6)


class Images(ductile.Job):
    """A job: its loss is the last operator, and punishes a weight by itself."""

    options = {"seed": 4, "train": {"batch_size": 16}}

    def model(self):
        return Residual()

    def train_data(self):
        g = torch.Generator().manual_seed(1)
        return DataLoader(TensorDataset(torch.randn(40, 3, 12, 12, generator=g), torch.arange(40) % 5), batch_size=16, shuffle=True)

    def test_data(self):
        return self.train_data()

    def loss(self, model, batch):
        x, y = batch
        z = model(x + 0.1 * torch.randn_like(x))
        loss = F.cross_entropy(z, y, label_smoothing=0.1) + 1e-3 * model.fc.weight.pow(2).sum() + 0 * torch.rand(())
        return loss, {"accuracy": ductile.ratio((z.argmax(1) == y).sum(), len(y))}
