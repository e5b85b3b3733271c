"""Whatever the user's code may draw from."""

import random

import numpy
import torch


def seed_all(seed):
    """(torch.manual_seed would visit all devices.)"""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
