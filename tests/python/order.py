"""A job whose samples are their own numbers; what the loss of each virtual rank was given is written down."""

import os

import torch
from torch.utils.data import DataLoader, Dataset

import ductile


class Numbers(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return index, torch.ones(2)


class Job(ductile.Job):
    options = {"seed": 21, "train": {"epochs": 2, "virtual_ranks": 2, "max_steps": 10}}

    def model(self):
        return torch.nn.Linear(2, 1)

    def train_data(self):
        return DataLoader(Numbers(), batch_size=16, shuffle=True)

    test_data = train_data

    def loss(self, model, batch):
        index, x = batch
        if model.training:
            with open(os.environ["SEEN"], "a") as file:
                file.write(" ".join(map(str, index.tolist())) + "\n")
        return model(x).square().mean()
