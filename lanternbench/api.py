"""The Python interface: load a target, generate with any method."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, overload

import torch
from PIL import Image
from torch import Tensor

from lanternbench.engine.decode import Generation, SpeculativeDecoder, generate
from lanternbench.methods import presets
from lanternbench.methods.build import build
from lanternbench.methods.method import Method
from lanternbench.methods.method import method as make_method
from lanternbench.models.grids import size
from lanternbench.models.target import Target
from lanternbench.settings import Sampling, checked

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KEPT_DECODERS = 4  # whose recordings hold a GPU's memory


class Stats(Generation):
    """What decoding an image took; prints as one line."""

    def __repr__(self) -> str:
        drawn = sum(self.accept_lengths)  # the first token is the prefill's
        tau = f", τ = {drawn / self.steps:.2f}" if self.steps else ""
        return f"{1 + drawn} tokens in {self.steps} steps{tau}, decoded in {self.decode_s:.2f} s"


@dataclass(frozen=True)
class Result:
    """``tokens`` [L], the ``image`` (None without an image tokeniser) and ``stats``; a notebook
    shows the last two.
    """

    tokens: Tensor
    image: Image.Image | None
    stats: Stats
    grid: tuple[int, int]  # rows and columns of the last tokens, the image

    def _repr_html_(self) -> str:
        from lanternbench.report.images import data_uri

        picture = f'<img src="{data_uri(self.image, "PNG")}"><br>' if self.image else ""
        return picture + escape(repr(self.stats))

    def plot(self) -> "Figure":
        """The image beside a map of the accepted lengths: each token in the colour of the step
        that committed it.
        """
        from lanternbench.report.images import image_and_map

        return image_and_map(
            self.image,
            [1, *self.stats.accept_lengths],
            self.grid,
            len(self.tokens) - size(self.grid),
        )


@dataclass(frozen=True)
class Model:
    """A loaded target.  It keeps the decoders of its last methods, and what they recorded."""

    target: Target
    _decoders: dict[tuple[str, Sampling], SpeculativeDecoder] = field(
        default_factory=dict, repr=False, compare=False
    )

    @overload
    def generate(self, prompt: str, method: str = "ar", **options: Any) -> Result: ...

    @overload
    def generate(
        self, prompt: Sequence[str], method: str = "ar", **options: Any
    ) -> list[Result]: ...

    def generate(
        self,
        prompt: str | Sequence[str],
        method: str = "ar",
        *,
        seed: int = 0,
        trace: bool = False,
        **options: Any,
    ) -> Result | list[Result]:
        """An image, or a list of them for several prompts, which are decoded in one batch.

        ``options`` are those of ``settings.Sampling`` (``temperature``, ``top_k``, …), by default
        the target's, and of the method (``lam=2.0``, ``tree="chain"``, …), which may be a file
        that ``tune`` wrote. ``trace``: keep the target's and the drafter's distributions of every
        step in ``stats.trace``. The same prompt, seed and method always give the same tokens.
        Raises UserError for what cannot be run.
        """
        if presets.is_file(method):
            preset = presets.read(method)
            method, options = preset.pop("method"), preset | options
        names = Sampling.model_fields.keys() & options.keys()
        sampling = checked(Sampling, {name: options.pop(name) for name in names}, "generate")
        decoder = self._decoder(make_method(method, **options), sampling)
        captions = [prompt] if isinstance(prompt, str) else list(prompt)
        batch = generate(decoder, captions, seed=seed, trace=trace)
        images = self.target.images(torch.stack([one.tokens for one in batch]), captions)
        grid = self.target.grid
        results = [
            Result(o.tokens, image, Stats(**vars(o)), grid)
            for o, image in zip(batch, images, strict=True)
        ]
        return results[0] if isinstance(prompt, str) else results

    def _decoder(self, method: Method, sampling: Sampling) -> SpeculativeDecoder:
        """Return a new decoder, or that of an earlier call if it has recorded its steps."""
        if self.target.graphs is None:
            return build(self.target, method, sampling)
        key = (method.key, self.target.sampling.updated(sampling))
        if key not in self._decoders:
            if len(self._decoders) == KEPT_DECODERS:
                del self._decoders[next(iter(self._decoders))]
            self._decoders[key] = build(self.target, method, sampling)
        return self._decoders[key]
