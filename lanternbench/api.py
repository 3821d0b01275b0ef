"""The Python interface: a loaded target generates images with any method."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, overload

import torch
from PIL import Image
from torch import Tensor

from lanternbench.engine.decode import Generation, SpeculativeDecoder, generate
from lanternbench.errors import UserError
from lanternbench.methods import presets
from lanternbench.methods.build import build
from lanternbench.methods.method import Method
from lanternbench.methods.method import method as make_method
from lanternbench.models.grids import size
from lanternbench.models.target import Target
from lanternbench.settings import PromptSpec, Sampling, checked

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KEPT_DECODERS = 4  # recorded decoders, which occupy memory of the GPU


class Stats(Generation):
    """Steps, accepted lengths and times of an image; prints as one line."""

    def __repr__(self) -> str:
        tokens = sum(self.accept_lengths)  # without the first, which the prefill draws
        tau = f", τ = {tokens / self.steps:.2f}" if self.steps else ""
        return f"{1 + tokens} tokens in {self.steps} steps{tau}, decoded in {self.decode_s:.2f} s"


@dataclass(frozen=True, repr=False)
class Result:
    """One generated image; a notebook shows it with its stats.

    ``tokens`` [L]; ``image``: None for a target without an image tokeniser; ``grid``: rows and
    columns of the image's tokens, which are the last ones.
    """

    tokens: Tensor
    image: Image.Image | None
    stats: Stats
    grid: tuple[int, int]

    def __repr__(self) -> str:
        return f"Result({self.stats!r})"

    def _repr_html_(self) -> str:
        from lanternbench.report.images import data_uri

        picture = f'<img src="{data_uri(self.image, "PNG")}"><br>' if self.image else ""
        return picture + escape(repr(self.stats))

    def plot(self) -> "Figure":
        """Plot the image next to a map of its tokens, coloured by the step that committed them."""
        from lanternbench.report.images import image_and_map

        lengths = [1, *self.stats.accept_lengths]
        tokens_before = len(self.tokens) - size(self.grid)
        return image_and_map(self.image, lengths, self.grid, tokens_before)


def captions_of(prompt: str | Iterable[str]) -> list[str]:
    """Return one prompt or several as a list.  Raises UserError for none and for what is no text."""
    captions: list[str] = []
    if isinstance(prompt, Iterable) and not isinstance(prompt, str):
        captions.extend(prompt)
    else:
        captions.append(prompt)
    wrong = [caption for caption in captions if not isinstance(caption, str)]
    if wrong or not captions:
        shown = repr(wrong[0]) if wrong else "an empty list"
        raise UserError(f"generate: {shown} is no prompt: give a text or a list of texts")
    return captions


@dataclass(frozen=True, repr=False)
class Model:
    """A loaded target.  On a GPU it keeps the decoders of its last methods."""

    target: Target
    _decoders: dict[tuple[str, Sampling], SpeculativeDecoder] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __repr__(self) -> str:
        return f"Model({self.target.name!r})"

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
        """Generate an image, or a list of images for several prompts in one batch.

        ``method``: a preset, or a file that ``tune`` wrote.
        ``options``: those of ``settings.Sampling`` (``temperature``, ``top_k``, …; default: the
        target's) and of the method (``lam=2.0``, ``tree="chain"``, …).
        ``trace``: keep the distributions of target and drafter at every step in ``stats.trace``.

        The same prompt, seed and method always give the same tokens.  Raises UserError for wrong
        names and options, and for combinations that do not exist.
        """
        captions = captions_of(prompt)
        seed = checked(PromptSpec, {"seed": seed}, "generate").seed
        if not isinstance(method, str):
            raise UserError(f"generate: {method!r} is no method: give a name such as 'cool-sd'")
        if presets.is_file(method):
            options = presets.read(method) | options
            method = options.pop("method")
        names = Sampling.model_fields.keys() & options.keys()
        sampling = checked(Sampling, {name: options.pop(name) for name in names}, "generate")
        decoder = self._decoder(make_method(method, **options), sampling)
        batch = generate(decoder, captions, seed=seed, trace=trace)
        tokens = torch.stack([generation.tokens for generation in batch])
        images = self.target.images(tokens, captions)
        results = []
        for generation, image in zip(batch, images, strict=True):
            stats = Stats(**vars(generation))
            results.append(Result(generation.tokens, image, stats, self.target.grid))
        return results[0] if isinstance(prompt, str) else results

    def _decoder(self, method: Method, sampling: Sampling) -> SpeculativeDecoder:
        """Return a new decoder, or on a GPU the one of an earlier call, which is recorded."""
        if self.target.graphs is None:
            return build(self.target, method, sampling)
        key = (method.key, self.target.sampling.updated(sampling))
        if key not in self._decoders:
            if len(self._decoders) == KEPT_DECODERS:
                del self._decoders[next(iter(self._decoders))]
            self._decoders[key] = build(self.target, method, sampling)
        return self._decoders[key]
