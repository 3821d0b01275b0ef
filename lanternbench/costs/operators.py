"""Count the operators of a decode step: on a GPU each of them launches about one kernel.

The count does not depend on the size of tensors.  It is therefore taken where a step costs
nothing: on the CPU, with a small random LlamaGen.  Two prompts are decoded together, because a
CPU decodes a single one in fewer operators than a GPU.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lanternbench.costs.roofline import Operators
from lanternbench.engine.decode import SpeculativeDecoder, generate
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, named
from lanternbench.models.llamagen.random import small_target
from lanternbench.utils.graph_capture import Graphs, Work
from lanternbench.utils.json_values import config_hash

STEPS = 3  # of which the first, and those that record something, are not counted
CAPTIONS = ["a red circle", "a blue square"]
OTHER = "other"  # what no recorded phase launches: copies into its inputs, and the host's own
_ALLOCATES = ("aten.empty", "aten.new_empty")  # without a kernel


_counted: dict[tuple[str, str], Operators] = {}


class Counted(NamedTuple):
    """Operators of the mean step by recorded phase, and those of ``OTHER``; ``sizes``: depth and
    nodes of the trees of the counted steps.
    """

    phases: dict[str, float]
    sizes: list[tuple[int, int]]


def count_operators(method: Method, options: Mapping[str, object]) -> Operators:
    """Return the operators of a step of ``method`` with a target's default ``options``, counted
    once a process.

    Raises UserError for a method whose drafter LlamaGen does not have.
    """
    key = (method.key, config_hash(dict(options)))
    if key not in _counted:
        _counted[key] = _count(method, options)
    return _counted[key]


def _count(method: Method, options: Mapping[str, object]) -> Operators:
    target = small_target(dtype=torch.bfloat16)
    decoder = build(replace(target, options=target.options | dict(options)), method)
    counted = count_phases(decoder)
    layer = layer_operators()
    forward = counted.phases["verify"] - layer * len(target.model.layers)
    rest = sum(counted.phases.values()) - counted.phases["verify"]
    network = decoder.proposer.network()
    if network is None:
        return Operators(layer, forward, level=0.0, rest=rest)
    drafting = counted.phases["draft"]
    passes = mean(1 + len(decoder.proposer.levels(*size)) for size in counted.sizes)
    level = drafting / passes - layer * network.layers
    return Operators(layer, forward, level, rest - drafting)


def baseline_operators() -> Operators:
    """Return the operators of a step of ``ar``."""
    return count_operators(named("ar"), {})


@cache
def layer_operators() -> float:
    """Return the operators of one layer of the target."""
    phases = []
    for layers in (1, 2):
        decoder = build(small_target(dtype=torch.bfloat16, layers=layers), named("ar"))
        phases.append(count_phases(decoder).phases)
    shallow, deep = phases
    return deep["verify"] - shallow["verify"]


def count_phases(decoder: SpeculativeDecoder) -> Counted:
    """Return the operators that the mean step of ``decoder`` launches, when its phases are
    recorded; its target is on the CPU.
    """
    counter = _Counter()
    decoder = replace(decoder, target=replace(decoder.target, graphs=Graphs(counter.record)))
    generate(decoder, CAPTIONS, max_steps=STEPS)
    sizes: list[tuple[int, int]] = []
    while not sizes:  # again if every step recorded something
        with counter:
            decoded = generate(decoder, CAPTIONS, max_steps=STEPS, on_step=counter.end_step)[0]
        trees = zip(decoded.tree_depths, decoded.tree_nodes, counter.steps, strict=False)
        sizes = [(depth, nodes) for depth, nodes, counted in trees if counted]
        counter.steps.clear()
    phases = {phase: count / len(sizes) for phase, count in counter.counted.items()}
    return Counted(phases, sizes)


class _Counter(TorchDispatchMode):
    """Counts operators that compute or copy, by phase; views and allocations launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.phase: str | None = OTHER
        self.counted: Counter[str] = Counter()  # in steps without a recording
        self.steps: list[bool] = []  # whether it was counted
        self._step: Counter[str] = Counter()  # the current one
        self._records = True  # the first step follows the prefill

    def record(self, work: Work, inputs: list[Tensor]) -> Callable[[], list[Tensor]]:
        """Stand in for a CUDA graph: replay by doing the work again, into the same tensors."""
        self._records = True
        outputs = work(*inputs)

        def replay() -> list[Tensor]:
            self.phase = work.__name__
            results = work(*inputs)
            self.phase = None
            for output, result in zip(outputs, results, strict=True):
                output.copy_(result)
            self.phase = OTHER
            return outputs

        return replay

    def end_step(self, tokens: int, total: int) -> None:
        self.steps.append(not self._records)
        if not self._records:
            self.counted.update(self._step)
        self._step.clear()
        self._records = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if self.phase is not None and _launches(func, (args, kwargs), output):
            self._step[self.phase] += 1
        return output


def _launches(func: Any, inputs: object, output: object) -> bool:
    """Return whether an operator writes: into its argument, or into memory of its own."""
    if func._schema.is_mutable:
        return True
    if str(func).startswith(_ALLOCATES):
        return False
    known = {_address(x) for x in tree_leaves(inputs) if isinstance(x, Tensor)}
    results = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
    return any(_address(x) not in known for x in results)


def _address(x: Tensor) -> int:
    return x.untyped_storage()._cdata
