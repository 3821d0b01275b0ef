"""Temperature, top-k and top-p at the edges: a mass that is reached exactly, and logits that are equal."""

from __future__ import annotations

import pytest
import torch

from lanternbench.engine import sampling as module
from lanternbench.engine.sampling import Warp, likeliest
from lanternbench.lossless.plain import warp
from lanternbench.lossless.plain.drafts import top_children
from lanternbench.settings import Sampling


def test_top_p_ends_at_the_token_that_reaches_p():
    """Four equal logits, each with probability 1/4, of which two reach 1/2; the lower ids stay."""
    sampling = Sampling(top_p=0.5)
    expected = [0.5, 0.5, 0.0, 0.0]
    assert Warp(sampling)(torch.zeros(4)).tolist() == expected
    assert warp([0.0] * 4, sampling) == tuple(expected)


@pytest.fixture(params=["host", "device"])
def device(request, monkeypatch):
    """Take the way of tensors that the host cannot read, too."""
    if request.param == "device":
        monkeypatch.setattr(module, "on_host", lambda x: False)


def in_bfloat16(seed: int) -> torch.Tensor:
    """[3, 4096] logits of 8 significant bits, as float32: of the eleven largest some are equal."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 4096, generator=generator).bfloat16().float()


def test_the_likeliest_of_equal_logits_are_those_of_lower_ids(device):
    assert likeliest(torch.zeros(5), 2).indices.tolist() == [0, 1]
    assert likeliest(
        torch.tensor([[0.0, 1.0, 1.0, 1.0], [3.0, 2.0, 2.0, 3.0]]), 2
    ).indices.tolist() == [[1, 2], [0, 3]]
    assert likeliest(torch.tensor([2.0, 5.0, 5.0]), 1).indices.tolist() == [1]
    assert likeliest(torch.tensor([2.0, 5.0, 5.0]), 3).indices.tolist() == [1, 2, 0]


@pytest.mark.parametrize("seed", range(5))
def test_ties_of_bfloat16_are_ordered_as_the_plain_definition_orders_them(device, seed):
    x = in_bfloat16(seed)
    found = likeliest(x, 10)
    expected = [top_children(row, 11) for row in x.tolist()]
    assert found.indices.tolist() == [row[:10] for row in expected]
    assert torch.equal(found.values, x.gather(-1, found.indices))
    largest = x.gather(-1, torch.tensor(expected))
    assert (largest[:, 1:] == largest[:, :-1]).any()


def test_top_p_of_bfloat16_logits_keeps_what_the_plain_definition_keeps():
    """A cut inside a run of equal logits keeps their lower ids."""
    x = torch.cat([in_bfloat16(seed)[:, :256] for seed in range(3)]).double()
    q = Warp(Sampling(top_p=0.9))(x)
    cuts = 0
    for logits, kept in zip(x, q > 0, strict=True):
        plain = torch.tensor(warp(logits.tolist(), Sampling(top_p=0.9))) > 0
        assert torch.equal(kept, plain)
        cuts += int(logits[kept].min() == logits[~kept].max())
    assert cuts > 0


def test_without_ties_a_cpu_does_not_sort(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("sorted")

    monkeypatch.setattr(torch.Tensor, "sort", refuse)
    assert likeliest(torch.tensor([0.1, 0.4, 0.2, 0.3]), 3).indices.tolist() == [1, 3, 2]
    with pytest.raises(AssertionError, match="sorted"):
        likeliest(torch.tensor([0.1, 0.4, 0.4, 0.4]), 2)
