#!/usr/bin/python3
"""The rival of bench/serving/compare.py: python3-torch behind http.server.ThreadingHTTPServer.

Usage: rival.py --weights model.safetensors --threads N --batching on|off
Serves POST with raw UINT8 pixels; prints its port. Its model is a ResNet-20 for CIFAR, loaded with the
weights of the run, scripted and frozen, which is torch's fastest way here. With --batching on one
thread runs the model on all that has come since its last batch, at most 32 images.
"""
import argparse
import http.server
import json
import pathlib
import queue
import socket
import struct
import threading

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3x3 convolutions beside an identity that is subsampled and zero-padded where the shape
    changes (He et al., CVPR'16, section 4.2, option A)."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.extra = stride, channels - channels_in

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.extra:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return F.relu(y + x)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(*[Block(before if i == 0 else width, width, stride if i == 0 else 1) for i in range(3)])
            for before, width, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(x.mean((2, 3)))


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    out = {}
    for name, tensor in head.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        values = torch.frombuffer(bytearray(data[8 + size + begin:8 + size + end]), dtype=torch.float32)
        out[name] = values.reshape(tensor["shape"])
    form = json.loads(head["__metadata__"]["ductile.data"])
    return out, form["augment"]


def load(path):
    weights, augment = read_safetensors(path)
    model = ResNet()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise SystemExit(f"the weights are of another model: missing {missing}, not known {unexpected}")
    model.eval()
    example = torch.zeros(1, 3, 32, 32)
    with torch.no_grad():
        traced = torch.jit.optimize_for_inference(torch.jit.trace(model, example))
    mean = torch.tensor(augment["mean"]).view(1, 3, 1, 1) * 255
    std = torch.tensor(augment["std"]).view(1, 3, 1, 1) * 255

    def predict(bodies):
        with torch.no_grad():
            pixels = torch.frombuffer(bytearray(b"".join(bodies)), dtype=torch.uint8)
            images = (pixels.view(-1, 32, 32, 3).permute(0, 3, 1, 2).float() - mean) / std
            return traced(images.contiguous()).softmax(1)

    return predict


class Batching:
    """One thread that runs what has come since its last batch."""

    def __init__(self, predict):
        self.predict = predict
        self.queue = queue.SimpleQueue()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            items = [self.queue.get()]
            while len(items) < 32:
                try:
                    items.append(self.queue.get_nowait())
                except queue.Empty:
                    break
            rows = self.predict([body for body, _ in items])
            for row, (_, done) in zip(rows, items):
                done.put(row)

    def __call__(self, bodies):
        done = queue.SimpleQueue()
        self.queue.put((bodies[0], done))
        return done.get().unsqueeze(0)


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batching", choices=("on", "off"), default="off")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    predict = load(args.weights)
    for size in (1, 2, 4, 8, 16, 32) * 3:
        predict([bytes(3072)] * size)
    ask = Batching(predict) if args.batching == "on" else predict

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # the head and the body in one write

        def setup(self):
            super().setup()
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

        def do_POST(self):
            rows = ask([self.rfile.read(int(self.headers["Content-Length"]))])
            body = json.dumps({"class": rows.argmax(1).tolist(), "probabilities": rows.flatten().tolist()}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, *_):
            pass

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
