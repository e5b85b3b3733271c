"""Writes goldens.json: what PyTorch computes, in double precision, for the models of the zoo.

Run with a Python that has torch and torchvision:  python3 make_goldens.py > goldens.json
Weights and inputs come from a hash of (name, index), so the C++ test builds the same ones. The
networks here are written from their papers with torch alone; those of torchvision are its own.
"""
import json
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


def hashed(name, shape):
    """Values in [-0.5, 0.5): FNV-1a of the name, then an integer hash of the index."""
    h = 0x811C9DC5
    for c in name.encode():
        h = ((h ^ c) * 0x01000193) & 0xFFFFFFFF
    x = np.arange(int(np.prod(shape)), dtype=np.uint64) * 2654435761 + h
    x = (x & 0xFFFFFFFF).astype(np.uint64)
    for multiplier in (0x7FEB352D, 0x846CA68B):
        x = ((x ^ (x >> 16)) * multiplier) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return torch.from_numpy(x.astype(np.float64) / 2.0**32 - 0.5).reshape(shape)


def weight(name, shape):
    if name.endswith("bn3.weight"):  # deep bottlenecks would amplify rounding a thousandfold
        return 0.12 * hashed(name, shape) + 0.3
    if len(shape) == 1:
        return 0.4 * hashed(name, shape) + (1.0 if name.endswith(".weight") else 0.0)
    return hashed(name, shape) * math.sqrt(24 / math.prod(shape[1:]))


class Mlp(nn.Module):
    def __init__(self, inputs, hidden, classes):
        super().__init__()
        widths = [inputs, *hidden, classes]
        self.count = len(widths) - 1
        for i in range(self.count):
            setattr(self, f"fc{i + 1}", nn.Linear(widths[i], widths[i + 1]))

    def forward(self, x):
        x = x.flatten(1)
        for i in range(1, self.count):
            x = F.relu(getattr(self, f"fc{i}")(x))
        return getattr(self, f"fc{self.count}")(x)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.fc1 = nn.Linear(1568, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class AirbenchGroup(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding="same", bias=False)
        self.norm1 = nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding="same", bias=False)
        self.norm2 = nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4)
        self.norm1.weight.requires_grad = self.norm2.weight.requires_grad = False

    def forward(self, x):
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class Airbench(nn.Module):
    def __init__(self):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad = False
        self.layers = nn.Sequential(nn.GELU(), AirbenchGroup(24, 64), AirbenchGroup(64, 256),
                                    AirbenchGroup(256, 256), nn.MaxPool2d(3))
        self.head = nn.Linear(256, 10, bias=False)

    def forward(self, x):
        x = self.layers(self.whiten(x)).flatten(1)
        return self.head(x) / x.shape[1]


class DeepAirbenchGroup(nn.Module):
    """As in airbench96.py, with what the first convolution came to as x0."""

    def __init__(self, inputs, outputs):
        super().__init__()
        for i in (1, 2, 3):
            norm = nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4)
            norm.weight.requires_grad = False
            setattr(self, f"conv{i}", nn.Conv2d(inputs if i == 1 else outputs, outputs, 3, padding="same", bias=False))
            setattr(self, f"norm{i}", norm)

    def forward(self, x):
        x0 = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        x = F.gelu(self.norm2(self.conv2(x0)))
        return F.gelu(self.norm3(self.conv3(x)) + x0)


class Airbench96(Airbench):
    def __init__(self, width, later):
        super().__init__()
        self.layers = nn.Sequential(nn.GELU(), DeepAirbenchGroup(24, width), DeepAirbenchGroup(width, later),
                                    DeepAirbenchGroup(later, later), nn.MaxPool2d(3))
        self.head = nn.Linear(later, 10, bias=False)


class CifarBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more)))


class CifarResNet(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        inputs = 16
        for stage, width in enumerate((16, 32, 64)):
            layers = []
            for i in range(blocks):
                layers.append(CifarBlock(inputs, width, 2 if stage and i == 0 else 1))
                inputs = width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


class Conv1D(nn.Module):
    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class GptBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim)
        self.attn = nn.Module()
        self.attn.c_attn = Conv1D(3 * dim, dim)
        self.attn.c_proj = Conv1D(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Module()
        self.mlp.c_fc = Conv1D(4 * dim, dim)
        self.mlp.c_proj = Conv1D(dim, 4 * dim)
        self.heads = heads

    def forward(self, x):
        q, k, v = self.attn.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        size = q.shape[-1] // self.heads
        outputs = []
        for h in range(self.heads):  # one head and one query at a time
            s = slice(h * size, (h + 1) * size)
            rows = []
            for t in range(x.shape[1]):
                scores = (k[:, : t + 1, s] * q[:, t : t + 1, s]).sum(-1) / math.sqrt(size)
                rows.append((scores.softmax(-1)[..., None] * v[:, : t + 1, s]).sum(1))
            outputs.append(torch.stack(rows, 1))
        x = x + self.attn.c_proj(torch.cat(outputs, -1))
        y = self.mlp.c_fc(self.ln_2(x))
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        return x + self.mlp.c_proj(y)


class Gpt(nn.Module):
    def __init__(self, vocabulary, positions, dim, heads, layers):
        super().__init__()
        self.transformer = t = nn.Module()
        t.wte = nn.Embedding(vocabulary, dim)
        t.wpe = nn.Embedding(positions, dim)
        t.h = nn.ModuleList(GptBlock(dim, heads) for _ in range(layers))
        t.ln_f = nn.LayerNorm(dim)

    def forward(self, x):
        t = self.transformer
        h = t.wte(x) + t.wpe(torch.arange(x.shape[1]))
        for block in t.h:
            h = block(h)
        return t.ln_f(h) @ t.wte.weight.T


class Tower(nn.ModuleList):
    def __init__(self, inputs, widths):
        super().__init__(nn.Linear(i, o) for i, o in zip([inputs, *widths], widths))

    def forward(self, x):
        for layer in self:
            x = F.relu(layer(x))
        return x


class Towers(nn.Module):
    """DLRM and CANDLE-Uno: a tower for a vector, a table of `rows` rows for indices."""

    def __init__(self, inputs, widths, dim, classes):
        super().__init__()
        self.branches = nn.ModuleList(
            Tower(length, widths) if rows is None else nn.Embedding(rows, dim)
            for length, rows in inputs)
        joined = sum(widths[-1] if rows is None else length * dim for length, rows in inputs)
        self.top = Tower(joined, widths)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x):
        ends = [branch(each).flatten(1) for branch, each in zip(self.branches, x)]
        return self.head(self.top(torch.cat(ends, 1)))


class Mmt(nn.Module):
    def __init__(self, inputs, layers, heads, dim, classes):
        super().__init__()
        self.branches = nn.ModuleList()
        for length, rows in inputs:
            branch = nn.Module()
            branch.position = nn.Parameter(torch.empty(length, dim))
            branch.embed = nn.Embedding(rows, dim)
            branch.layers = nn.Sequential(*(
                nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0, norm_first=True,
                                           batch_first=True) for _ in range(layers)))
            self.branches.append(branch)
        self.head = nn.Linear(dim * len(inputs), classes)

    def forward(self, x):
        return self.head(torch.cat([b.layers(b.embed(each) + b.position).mean(1)
                                    for b, each in zip(self.branches, x)], 1))


def several(inputs, samples):
    """The inputs of a batch: (length, range), no range for a vector."""
    hashes = [hashed(f"input{i}", (samples, length)) for i, (length, _) in enumerate(inputs)]
    return [h * math.sqrt(12) if rows is None else ((h + 0.5) * rows).floor().long()
            for h, (_, rows) in zip(hashes, inputs)]


def case(name, model, shape, classes, inputs=None):
    model = model.double().train()
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(weight(n, tuple(p.shape)))
    if name == "gpt":
        x = ((hashed("input", shape) + 0.5) * classes).floor().long()
        labels = ((hashed("labels", shape) + 0.5) * classes).floor().long()
    else:
        x = several(inputs, *shape) if inputs else hashed("input", shape) * math.sqrt(12)
        labels = torch.arange(shape[0]) % classes
    logits = model(x)
    losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1),
                             reduction="none", label_smoothing=0.1)
    losses = losses.reshape(shape[0], -1).mean(1)
    losses.mean().backward()
    parameters = [
        {"name": n, "shape": list(p.shape), "grad_norm": p.grad.norm().item(),
         "grad_probe": (p.grad * hashed("probe" + n, tuple(p.shape))).sum().item()}
        if p.requires_grad else {"name": n, "shape": list(p.shape), "grad_norm": None}
        for n, p in model.named_parameters()]
    buffers = [
        {"name": n, "shape": list(b.shape), "norm": b.norm().item(),
         "probe": (b * hashed("probe" + n, tuple(b.shape))).sum().item()}
        for n, b in model.named_buffers() if b.is_floating_point()]
    model.eval()
    return {"model": name, "input": list(shape), "classes": classes,
            "logits": logits.flatten().tolist(), "losses": losses.tolist(),
            "eval_logits": model(x).flatten().tolist(),
            "parameters": parameters, "buffers": buffers}


def small_images(resnet):
    """With a 3x3 stem and no pooling."""
    resnet.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    resnet.maxpool = torch.nn.Identity()
    return resnet


def several_inputs():
    vector, indices, tokens = (6, None), (3, 20), (6, 11)
    mixed = [vector, vector, indices, indices]
    return [
        case("dlrm", Towers(mixed, (7, 9), 8, 4), (4,), 4, mixed),
        case("candle-uno", Towers([vector] * 3, (7, 9), 8, 4), (4,), 4, [vector] * 3),
        case("mmt", Mmt([tokens] * 3, 2, 2, 8, 4), (4,), 4, [tokens] * 3),
    ]


def main():
    torch.manual_seed(0)
    cases = [
        case("mlp", Mlp(3 * 6 * 5, (7, 9), 4), (5, 3, 6, 5), 4),
        case("cnn", Cnn(), (4, 1, 28, 28), 10),
        case("airbench", Airbench(), (4, 3, 32, 32), 10),
        case("airbench-deep", Airbench96(16, 24), (4, 3, 32, 32), 10),
        case("resnet8", CifarResNet(1), (4, 3, 16, 16), 10),
        case("resnet20", CifarResNet(3), (4, 3, 16, 16), 10),
        case("resnet18", torchvision.models.resnet18(num_classes=10), (4, 3, 64, 64), 10),
        case("resnet18-cifar", small_images(torchvision.models.resnet18(num_classes=10)),
             (4, 3, 16, 16), 10),
        case("resnet50", torchvision.models.resnet50(num_classes=10), (8, 3, 64, 64), 10),
        case("gpt", Gpt(11, 8, 16, 2, 2), (3, 6), 11),
        *several_inputs(),
    ]
    print("[")
    print(",\n".join(json.dumps(c) for c in cases))
    print("]")


main()
