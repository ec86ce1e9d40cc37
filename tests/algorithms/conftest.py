"""Torch computes on one thread in all tests of algorithms."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as learners do for networks of this size
    yield
    torch.set_num_threads(before)
