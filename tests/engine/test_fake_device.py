"""On a device of its own.  Without a GPU a stand-in keeps tensors apart: nothing meets the host's,
one sync a step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import slow_but, two_layers
from fake_device import THERE, Apart, Elsewhere
from test_anole import CAPTIONS, small
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lanternbench.engine import decode as engine
from lanternbench.experiment import worker
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.metrics import ImageMetric, Setup, scorers_for
from lanternbench.models.target import Target
from lanternbench.registry import components
from lanternbench.settings import Sampling
from lanternbench.utils.graph_capture import Graphs

# in test_dflash and test_diagonals
UNBUNDLED = ("dflash", "flashar")
EMBEDDED = [n for n, p in components("preset").items() if p.choices.proposal not in UNBUNDLED]
ALONE = ["ar", "sd", "medusa", "eagle-1", "eagle-2", "sjd", "adt-tree", "cool-sd"]
QUICK = ["ar", "eagle-2", "sjd"]
PROMPTS = ["a red circle", "two small green squares", "a large blue ring above a yellow star"]


@pytest.fixture
def apart():
    with torch.inference_mode(), Apart() as apart:
        yield apart


@pytest.fixture(scope="module")
def there() -> Target:
    """As ``shallow``, but elsewhere."""
    with torch.inference_mode(), Apart():
        return two_layers(str(THERE))


def decode(target: Target, name: str, captions: list[str], *options: Any):
    decoder = build(target, method(name), *options)
    return engine.generate(decoder, captions, max_steps=4)


def test_what_would_fail_on_a_gpu_fails_here(apart):
    x = torch.arange(4, device=THERE)
    assert isinstance(x[1:] + 1, Elsewhere)
    assert str(x.device) == str(THERE)
    for wrong in (
        lambda: x + torch.ones(4),
        lambda: torch.cat([x, torch.arange(4)]),
        lambda: x.clone().add_(x.cpu()),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            wrong()
    with pytest.raises(TypeError):
        x.numpy()
    before = apart.asked
    assert x.tolist() == [0, 1, 2, 3]
    assert int(x.sum()) == 6
    assert apart.asked == before + 2
    torch.ones(4).to(THERE)  # from memory that is not pinned: CUDA waits for such a copy
    assert apart.asked == before + 3
    torch.ones(4).to(THERE, non_blocking=True)
    assert apart.asked == before + 3
    with pytest.raises(AssertionError, match="could not record"):
        apart.record(lambda x: x * x.sum().item(), [x])
    with pytest.raises(AssertionError, match="could not record"):
        apart.record(lambda x: x + torch.tensor([1], device=THERE), [x])


@pytest.mark.parametrize("name", slow_but(QUICK, EMBEDDED))
def test_every_method_decodes_there_and_gives_the_same_tokens(shallow, there, name, apart):
    for captions in (PROMPTS[:1], PROMPTS):
        for want, made in zip(
            decode(shallow, name, captions), decode(there, name, captions), strict=True
        ):
            assert made.accept_lengths == want.accept_lengths
            assert torch.equal(made.tokens.cpu(), want.tokens)
    for options in ((Sampling(temperature=0.0),), (Sampling(top_p=0.5), 2.0)):
        want, made = (decode(t, name, PROMPTS[:1], *options)[0].tokens for t in (shallow, there))
        assert torch.equal(made.cpu(), want)


@pytest.mark.parametrize("name", slow_but(QUICK, EMBEDDED))
def test_a_step_waits_for_the_device_once_and_brings_it_nothing(there, name, apart):
    decoder = build(there, method(name))
    engine.generate(decoder, PROMPTS[:1], max_steps=7)  # what is made once, is made here
    waits = []
    for steps in (2, 7):
        asked, sent = apart.asked, apart.sent
        engine.generate(decoder, PROMPTS[:1], max_steps=steps)
        waits.append((apart.asked - asked, apart.sent - sent))
    assert waits[1][0] - waits[0][0] == 5
    # its trees' depths and widths are the host's to choose: one table, not waited for
    adapts = name == "adt-tree"
    assert waits[1][1] - waits[0][1] == (5 if adapts else 0)


@pytest.mark.parametrize(
    ("name", "prompts"),
    slow_but([(n, 2) for n in QUICK], [*((n, 1) for n in ALONE), *((n, 2) for n in EMBEDDED)]),
)
def test_recorded_phases_ask_nothing_and_bring_nothing(shallow, there, name, prompts, apart):
    recorded = replace(there, graphs=Graphs(apart.record))
    pairs = zip(*(decode(t, name, PROMPTS[:prompts]) for t in (recorded, shallow)), strict=True)
    for made, want in pairs:
        assert made.accept_lengths == want.accept_lengths
        # what lies past it in a decode that ends early is void
        committed = 1 + sum(want.accept_lengths)
        assert torch.equal(made.tokens[:committed].cpu(), want.tokens[:committed])


@pytest.mark.parametrize("dialect", slow_but(["lumina"], ["anole", "lumina"]))
def test_whole_images_with_all_that_is_measured_of_them_are_made_there(dialect, apart):
    made, want = (_measured(small(dialect, device)) for device in (str(THERE), "cpu"))
    assert made[0] == want[0]
    assert made[1] == pytest.approx(want[1])
    assert made[2] == want[2]


def _measured(target: Target) -> tuple[list[list[int]], list[float], list[bytes]]:
    decoder = build(target, method("cool-sd"))
    made = engine.generate(decoder, CAPTIONS, trace=True)
    tokens: Tensor = torch.stack([g.tokens for g in made])
    figures = [x for row in worker.trace_fields(decoder, made) for x in tree_leaves(row)]
    return tokens.tolist(), figures, [image.tobytes() for image in target.images(tokens)]


def test_images_are_decoded_and_scored_there(target, there, apart):
    tokens = torch.randint(
        target.vocab, (2, target.length), generator=torch.Generator().manual_seed(0)
    )
    images = there.images(tokens.to(THERE))
    assert [i.tobytes() for i in images] == [i.tobytes() for i in target.images(tokens)]
    for made, want in zip(
        *(scorers_for(None, "tiny", Setup(device=d)) for d in (str(THERE), "cpu")), strict=True
    ):
        if isinstance(made, ImageMetric) and isinstance(want, ImageMetric):
            assert made.score(images, PROMPTS[:2]) == pytest.approx(
                want.score(images, PROMPTS[:2])
            )
