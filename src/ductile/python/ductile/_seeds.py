"""Whatever the user's code may draw from."""

import contextlib
import random

import numpy
import torch


def seed_all(seed):
    """(torch.manual_seed would visit all devices.)"""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)


@contextlib.contextmanager
def kept():
    """All of these generators are afterwards as they were."""
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])
