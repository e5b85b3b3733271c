"""The job of blobs.py, which logs by itself, as scripts do that were written for wandb."""

import ductile.wandb as wandb
from blobs import Job as Blobs
from blobs import arguments

wandb.init(project="blobs", config={"lr": 0.05})
wandb.config.width = 8


class Job(Blobs):
    def loss(self, model, batch):
        out = super().loss(model, batch)
        x = batch[0]
        if model.training:
            wandb.log({"spread": x.std(), "lr": 1.0})
            wandb.log({"of": {"first": float(x.flatten()[0])}, "picture": x})
        elif "training" not in arguments.fault:  # what is logged in training alone
            wandb.log({"test_spread": x.std()})
        return out
