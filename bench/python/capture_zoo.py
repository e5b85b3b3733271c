#!/usr/bin/python3
"""Which models of torchvision `ductile.capture()` finds the operators of: each that list_models() names, in a process of its own.

Small images, 2, 3 and 5 samples at once, weights at random, nothing is timed and nothing downloaded. Up to --checked million parameters, outputs and
gradients of the operators are compared with those of the model, to the bit. Detection is given images and targets, as in training.

  bench/python/capture_zoo.py [MODEL ...] [--checked 150] [--timeout 300] [--output FILE.md]

The interpreter is one that has torch, torchvision and Ductile.
"""
import argparse
import inspect
import json
import pathlib
import subprocess
import sys
import time

LARGE = ("vit_", "swin", "maxvit", "inception", "quantized_inception")  # which want images of 224 pixels and more
DETECTION = ("rcnn", "fcos", "retinanet", "ssd")


def example(name, torch):
    def images(samples, *shape):
        return torch.randn(samples, *shape)

    if name.startswith("raft"):
        return lambda n: (images(n, 3, 128, 128), images(n, 3, 128, 128))
    if any(word in name for word in DETECTION):
        target = {"boxes": torch.tensor([[1.0, 2.0, 30.0, 40.0]]), "labels": torch.tensor([1])}
        return lambda n: ([torch.rand(3, 64, 64) for _ in range(n)], [target] * n)
    if name.startswith("mvit"):
        return lambda n: images(n, 3, 16, 224, 224)
    if name == "s3d":
        return lambda n: images(n, 3, 16, 64, 64)
    if name in ("mc3_18", "r2plus1d_18", "r3d_18"):
        return lambda n: images(n, 3, 4, 32, 32)
    size = (299 if "inception" in name else 224) if name.startswith(LARGE) else 64
    return lambda n: images(n, 3, size, size)


def capture(name, checked):
    """In the process of one model: prints a line of JSON."""
    import torch
    import torchvision
    import ductile
    torch.manual_seed(1)
    builder = torchvision.models.get_model_builder(name)
    taken = inspect.signature(builder).parameters
    options = {key: None for key in ("weights", "weights_backbone") if key in taken}
    if "googlenet" in name or "inception" in name:
        options["init_weights"] = False
    module = builder(**options)
    parameters = sum(p.numel() for p in module.parameters())
    out = {"parameters": parameters, "checked": parameters <= 1e6 * checked}
    try:
        graph = ductile.capture(module, example(name, torch), batch=5, shares=[2, 3], times=False, check=out["checked"])
        out["operators"] = len(graph["ops"])
    except ductile.Error as error:
        out["error"] = " ".join(str(error).split())[:300]
    print(json.dumps(out))


def run(name, arguments):
    begin = time.monotonic()
    try:
        done = subprocess.run([sys.executable, __file__, "--one", name, "--checked", str(arguments.checked)], capture_output=True, text=True,
                              timeout=arguments.timeout)
    except subprocess.TimeoutExpired:
        return {"failure": f"not done in {arguments.timeout:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        told = done.stderr.strip().splitlines()
        return {"failure": told[-1][:300] if told else f"ended with {done.returncode}"}
    return {**json.loads(lines[-1]), "seconds": time.monotonic() - begin}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--checked", type=float, default=150, help="millions of parameters up to which bits are compared")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        return capture(arguments.one, arguments.checked)
    import torchvision
    names = arguments.models or torchvision.models.list_models()
    found, rows = {}, []
    for name in names:
        found[name] = one = run(name, arguments)
        seen = one.get("operators", "")
        said = one.get("error", one.get("failure", "same bits" if one.get("checked") else "not compared")).replace("|", "/")
        rows.append(f"| {name} | {one.get('parameters', 0) / 1e6:.1f} | {seen} | {one.get('seconds', 0):.0f} | {said} |")
        print(rows[-1], file=sys.stderr, flush=True)
    captured = [one for one in found.values() if "operators" in one]
    text = (f"# Models of torchvision {torchvision.__version__} as graphs of operators\n\n`bench/python/capture_zoo.py {' '.join(sys.argv[1:])}`\n\n"
            "| model | million parameters | operators | s in all | |\n|---|---|---|---|---|\n" + "\n".join(rows)
            + f"\n\n{len(captured)} of {len(found)} are captured, {sum(one['checked'] for one in captured)} of them compared to the bit; "
            f"{sum('error' in one for one in found.values())} are refused by name, {sum('failure' in one for one in found.values())} failed.\n")
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
