"""The check that a drafter belongs to its target.

With the drafter of another target next to nothing is accepted, which a short decode shows.  The
images of a lossless method are the target's all the same: greedy tokens are compared with the
best logits of one plain forward pass over the image, so that a tie within the rounding of the
weights' dtype is no difference.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from lanternbench.doctor.check import Check
from lanternbench.engine.decode import Generation, SpeculativeDecoder, generate
from lanternbench.engine.opening import pieces
from lanternbench.engine.sampling import at
from lanternbench.lossless.shared_noise import rounding_error
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, named
from lanternbench.models.entries import Entry, expectation, shortfall
from lanternbench.models.target import Target
from lanternbench.registry import components
from lanternbench.settings import Sampling

STEPS = 40  # what a minute allows on a laptop, for a model of some hundred million weights
TEMPERATURES = (0.0, 1.0)


def drafting_method(kind: str) -> Method:
    """Return the first lossless preset that drafts with ``kind``, a dynamic tree preferred."""
    presets = [named(name) for name in components("preset")]
    drafting = [m for m in presets if m.lossless and m.proposal.drafter_kind == kind]
    dynamic = [m for m in drafting if m.choices.tree == "dynamic"]
    return (dynamic or drafting)[0]


def check_pair(
    target: Target,
    kind: str,
    captions: list[str],
    row: Entry | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Check]:
    """Return what a short decode says of the target's drafter of this kind.

    ``row`` of the catalogue says what is published of it.  ``on_step`` is called, as by
    ``generate``, after each of at most ``STEPS`` steps at each of the ``TEMPERATURES``.  Raises
    UserError if the drafter does not fit the target.
    """
    drafter = target.drafters[kind]
    weights = sum(p.numel() for p in drafter.parameters())
    misfit = drafter.misfit(target)
    checks = [
        Check(f"drafter '{kind}'", f"{drafter.about}, {weights / 1e6:.1f}M weights"),
        Check("fits the target", misfit or "yes", misfit is None),
    ]
    for temperature in TEMPERATURES:
        decoder = build(target, drafting_method(kind), Sampling(temperature=temperature))
        drafted = generate(decoder, captions, max_steps=STEPS, on_step=on_step)
        checks.append(check_acceptance(decoder, drafted, row))
        if decoder.warp.greedy:
            checks.append(check_greedy_tokens(decoder, captions, drafted))
    return checks


def check_acceptance(
    decoder: SpeculativeDecoder, drafted: list[Generation], row: Entry | None
) -> Check:
    """Compare how often the first drafted token was accepted with what is published, if it is."""
    temperature = decoder.warp.sampling.temperature
    method = decoder.method
    drafted_with = (method.proposal.drafter_kind, method.choices.tree, temperature)
    accepted, steps = first_tokens(drafted)
    value = f"{accepted / steps:.1%} of {steps} steps ({method.label})"
    ok = None
    published = expectation(row, *drafted_with) if row else None
    if row and published:
        least = published.first_token_acceptance
        value += f"; published: at least {least:.0%} ({published.source})"
        ok = shortfall(row, *drafted_with, accepted, steps) is None
    return Check(f"first token accepted, T = {temperature:g}", value, ok)


def first_tokens(drafted: Sequence[Generation]) -> tuple[int, int]:
    """Return in how many steps the first drafted token was accepted, and the number of steps.

    Last steps do not count, because the end of the image may cut them short.
    """
    lengths = [length for g in drafted for length in g.accept_lengths[:-1]]
    accepted = sum(length > 1 for length in lengths)
    return accepted, max(1, len(lengths))


@torch.inference_mode()
def check_greedy_tokens(
    decoder: SpeculativeDecoder, captions: list[str], drafted: list[Generation]
) -> Check:
    """Check that every token has the target's best logit, up to rounding."""
    target = decoder.target
    tolerance = rounding_error(target)
    counts = [min(1 + sum(g.accept_lengths), target.length) for g in drafted]
    tokens = first_rows(drafted, max(counts), target.row_width)
    prefix = target.prefix(captions, decoder.guidance)
    ties = 0
    for image, count in enumerate(counts):
        logits_of = pieces(target, prefix, tokens, image, decoder.guidance, Tensor.float)
        gaps = gaps_to_best(logits_of, tokens[image])[:count]
        wrong = (gaps > tolerance).nonzero()
        if len(wrong):
            where = f"prompt {image}, token {int(wrong[0])}"
            return Check("greedy tokens", f"not those of ar ({where})", False)
        ties += int((gaps > 0).sum())
    value = "those of ar"
    if ties:
        tied = f"{ties} of {sum(counts)} tied with the best"
        value += f", {tied} within {target.dtype_name}'s rounding"
    return Check("greedy tokens", value, True)


def first_rows(drafted: list[Generation], count: int, row_width: int) -> Tensor:
    """Return the first ``count`` tokens of each image [N, L]; whole rows, if the model writes an
    end after each, because a plain forward pass reads whole rows.
    """
    if row_width:
        count = -(-count // row_width) * row_width
    return torch.stack([g.tokens[:count] for g in drafted])


def gaps_to_best(logits_of_piece: Iterable[Tensor], tokens: Tensor) -> Tensor:
    """Return how far below the best logit each token's is, as a share of the largest logit.

    Pieces [1, n, V] of the logits that predict ``tokens`` [L] -> [L].
    """
    gaps = []
    start = 0
    for logits in logits_of_piece:
        end = start + logits.shape[1]
        chosen = at(logits[0], tokens[start:end])
        finite = logits[0].masked_fill(logits[0].isinf(), 0.0)
        gaps.append((logits[0].amax(-1) - chosen) / finite.abs().amax(-1))
        start = end
    return torch.cat(gaps)
