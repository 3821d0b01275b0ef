"""``--compile inductor``: fused kernels give what the decoder gives, write the cache in place, and
are not missed where there is no compiler.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lanternbench
from lanternbench.costs.operators import count_phases, layer_operators
from lanternbench.engine import decode as engine
from lanternbench.engine.cache import Address, DecoderCache, raster
from lanternbench.errors import UserError
from lanternbench.experiment.worker import mode
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.compiled import CacheParts, Inductor, of_mode
from lanternbench.models.llamagen.random import small_target
from lanternbench.models.transformer import DecoderConfig, Stack, rope_1d
from lanternbench.settings import ModelSpec
from lanternbench.utils.graph_capture import Graphs

CAPTIONS = ["a red circle", "two small green squares"]
CAPACITY = 40
KERNELS_PER_LAYER = 9  # when compiled
XL_LAYERS = 36
EARLIER = 9  # slots that are written before
SHAPES = {
    "usual": DecoderConfig(64, 2, 4, 96, 50),
    "grouped": DecoderConfig(64, 2, 4, 96, 50, n_kv_head=2),
    "odd width": DecoderConfig(60, 2, 3, 96, 50),
    "normed": DecoderConfig(64, 2, 4, 96, 50, qk_norm=True),
    "normed by RMS": DecoderConfig(64, 2, 4, 96, 50, n_kv_head=2, qk_norm="rms"),
    "norms on outputs": DecoderConfig(64, 2, 4, 96, 50, swin_norm=True),
    "half turned": DecoderConfig(64, 2, 4, 96, 50, sandwich_norm=True, rotary_width=8),
}


def cache_of(net: Stack, config: DecoderConfig) -> DecoderCache:
    """A cache whose first slots hold something."""
    layout = raster(16, 0, EARLIER, 0, CAPACITY, torch.device("cpu"))
    rope = rope_1d(CAPACITY + 1, config.head_dim)
    cache = DecoderCache(net, config, layout, 2, rope, torch.zeros(1))
    generator = torch.Generator().manual_seed(1)
    cache.store[:, :, :, :EARLIER] = torch.randn(
        cache.store[:, :, :, :EARLIER].shape, generator=generator
    )
    return cache


def address(n: int) -> Address:
    """Inputs of one prompt after the first slots: each sees those, and the others up to itself."""
    slots = torch.arange(EARLIER, EARLIER + n)[None]
    mask = torch.full((1, 1, n, CAPACITY), -torch.inf).triu(EARLIER + 1)
    return Address(slots, slots, mask, CAPACITY)


def run_parts(net: Stack, cache: DecoderCache, x: Tensor, at: Address, last: bool) -> Tensor:
    """What is compiled, operator by operator."""
    keys = [layer.chunk(2, 1)[0] for layer in cache.layers]
    values = [layer.chunk(2, 1)[1] for layer in cache.layers]
    parts = CacheParts(keys, values, at.slots, at.span)
    angles = torch.view_as_real(cache.per_row(cache.rope[at.positions]))
    return net(x, angles, at.mask, parts.put, last)


@torch.inference_mode()
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_rotary_embedding_and_cache_are_the_same_without_complex_numbers(config, last):
    torch.manual_seed(0)
    net = Stack(config)
    eager = cache_of(net, config)
    parts = cache_of(net, config)
    x = torch.randn(2, 3, config.dim)
    want = eager.forward(x, address(3), last)
    found = run_parts(net, parts, x, address(3), last)
    torch.testing.assert_close(found, want, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(parts.store, eager.store, atol=1e-6, rtol=1e-5)


def test_the_mode_is_an_option_and_is_recorded(shallow):
    assert ModelSpec(compile="inductor").compile == "inductor"
    graphs = Graphs()
    graphs.mode = "inductor"
    assert mode(replace(shallow, graphs=graphs))["compile"] == "inductor"
    assert mode(replace(shallow, graphs=Graphs()))["compile"] == "graphs"
    assert mode(shallow)["compile"] == "eager"
    with pytest.raises(UserError, match="use eager, graphs or inductor"):
        of_mode("fast", "cpu")


def decode(target, name: str) -> list[list[int]]:
    """The committed tokens of one prompt, and of two together."""
    decoder = build(target, method(name))
    drawn = engine.generate(decoder, CAPTIONS[:1], max_steps=3)
    drawn += engine.generate(decoder, CAPTIONS, max_steps=3)
    return [x.tokens[: 1 + sum(x.accept_lengths)].tolist() for x in drawn]


def files_of(*folders: Path) -> set[Path]:
    found = {path for folder in folders for path in folder.rglob("*")}
    return {path for path in found if "__pycache__" not in path.parts}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ar", "eagle-3", "dflash"])
def test_compiled_steps_draw_the_same_tokens_and_leave_no_files(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package = Path(lanternbench.__file__).parent
    before = files_of(package, tmp_path)
    target = small_target()
    inductor = Inductor("cpu")
    assert decode(replace(target, graphs=inductor), name) == decode(target, name)
    assert inductor.mode == "inductor"
    assert len(inductor.forwards) == (1 if name == "ar" else 2)
    assert files_of(package, tmp_path) == before


@pytest.mark.parametrize(("name", "most"), [("ar", 380), ("eagle-2", 480), ("medusa", 480)])
def test_a_compiled_step_of_llamagen_xl_verifies_in_few_kernels(name, most):
    """Drafting is not counted: its own forward passes are as many as the tree is deep."""
    target = small_target(dtype=torch.bfloat16)
    counted = count_phases(build(target, method(name))).phases
    launched = counted["verify"] + counted["commit"] + counted["other"]
    outside_layers = launched - layer_operators() * len(target.model.layers)
    assert XL_LAYERS * KERNELS_PER_LAYER + outside_layers <= most


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("n", [1, 3])
def test_a_compiled_layer_is_nine_kernels_and_copies_no_cache(n, monkeypatch):
    from torch._inductor.utils import run_and_get_code

    counts = []
    for layers in (1, 2):
        torch.manual_seed(0)
        config = replace(SHAPES["usual"], n_layer=layers)
        net = Stack(config).requires_grad_(False)
        eager = cache_of(net, config)
        compiled = cache_of(net, config)
        compiled.compile(Inductor("cpu"))
        x = torch.randn(2, n, config.dim)
        states, codes = run_and_get_code(compiled.forward, x, address(n))
        torch.testing.assert_close(states, eager.forward(x, address(n)), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(compiled.store, eager.store, atol=1e-6, rtol=1e-5)
        body = codes[0].partition("def call(")[2]
        launches = r"cpp_fused\w*\(|extern_kernels\.\w+\(|torch\.ops\.aten\._scaled\w+\.default\("
        counts.append(len(re.findall(launches, body)))
        part = compiled.keys[0][:, :, :CAPACITY].numel()
        for sizes in re.findall(r"empty_strided_cpu\(\(([\d, ]+)\)", body):
            assert torch.Size(int(size) for size in re.findall(r"\d+", sizes)).numel() < part
    assert counts[1] - counts[0] <= KERNELS_PER_LAYER


@pytest.mark.slow
def test_without_a_compiler_the_mode_is_eager_and_a_sentence_says_why(tmp_path):
    code = "from lanternbench.models.compiled import of_mode; print(of_mode('inductor', 'cpu'))"
    missing = {"CXX": "/no/compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | missing,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "None"
    said = [line for line in done.stderr.splitlines() if line.startswith("lanternbench: ")]
    assert len(said) == 1
    assert "compiler" in said[0]
    assert said[0].endswith("the run goes on with --compile eager")


@pytest.mark.slow
def test_what_cannot_be_compiled_is_said_once_and_decodes_as_before(monkeypatch, capsys):
    target = small_target()
    want = decode(target, "ar")
    inductor = Inductor("cpu")
    monkeypatch.setattr(target.model.layers[0], "forward", _not_traceable(target.model.layers[0]))
    assert decode(replace(target, graphs=inductor), "ar") == want
    assert inductor.mode == "eager"
    assert inductor.compiled(target.model) is None
    assert len(capsys.readouterr().err.splitlines()) == 1


def _not_traceable(layer):
    forward = layer.forward

    def with_a_break(*inputs):
        torch._dynamo.graph_break()
        return forward(*inputs)

    return with_a_break
