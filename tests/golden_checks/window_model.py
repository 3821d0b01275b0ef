"""The stand-in target of the recorded Jacobi decodes: logits that depend on the whole prefix, from
four tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from golden_checks.common import Found, Vectors, close, same, worst


class Window(NamedTuple):
    """A run's settings."""

    prompt: list[int]
    first: int  # fresh drafts are drawn from the ids first … last
    last: int
    guidance: float
    top_k: int
    max_length: int

    @classmethod
    def of(cls, run: dict[str, Any]) -> Window:
        first, last = run["image_ids"]
        return cls(run["prompt"], first, last, run["guidance"], run["top_k"], run["max_length"])

    def fresh(self, u: Tensor) -> Tensor:
        """Uniformly drawn ids: ⌊u·n⌋-th of the n image ids."""
        count = self.last - self.first + 1
        return self.first + (u * count).long().clamp(max=count - 1)


class StandIn:
    """Logits after token t at position i: A[t] + B[previous] + C[i] + D[hash of all attended
    tokens].
    """

    def __init__(self, vectors: Vectors, run: Window):
        self.a, self.b, self.c, self.d = (vectors[f"in.model.{name}"] for name in "ABCD")
        self.hash_mod, self.run = vectors.meta["model"]["hash_mod"], run
        self.vocab = self.a.shape[-1]

    def _row(self, tokens: list[int]) -> Tensor:
        t, i = tokens[-1], len(tokens) - 1
        h = sum((token + 1) * (at + 1) for at, token in enumerate(tokens)) % self.hash_mod
        before = self.b[tokens[-2]] if i else torch.zeros_like(self.a[t])
        return self.a[t] + before + self.c[i] + self.d[h]

    def logits(self, tokens: list[int]) -> Tensor:
        """Guided and cut logits [V] after ``tokens``, the prompt included."""
        out = self._row(tokens)
        if self.run.guidance != 1:  # the unconditional row sees the prompt's last token alone
            uncond = self._row(tokens[len(self.run.prompt) - 1 :])
            out = uncond + self.run.guidance * (out - uncond)
        if self.run.top_k:
            kth = out.topk(min(self.run.top_k, self.vocab)).values[-1]
            out = out.masked_fill(out < kth, -torch.inf)
        return out

    def after(self, committed: list[int], drafts: list[int]) -> Tensor:
        """Distributions after the last committed token and after each draft: [1 + drafts, V]."""
        rows = [self.logits(committed + drafts[:n]) for n in range(len(drafts) + 1)]
        return torch.stack(rows).softmax(-1)


class Step(NamedTuple):
    """One window step by output index: the first ``n`` tokens are committed, the others are the
    next drafts.
    """

    n: int
    tokens: Tensor  # [L]
    laws: Tensor  # [L, V] recorded with them


class Sampler(Protocol):
    """A window method's sampler: independent redraws of plain steps, and a whole window step."""

    def redraw(self, p: Tensor, u: Tensor) -> Tensor: ...

    def window(
        self, drafts: Tensor, p_prev: Tensor, p_cur: Tensor, u: dict[str, Tensor]
    ) -> Step: ...


class Decoded(NamedTuple):
    """A whole decode: all tokens, and each forward's window and outcome."""

    tokens: list[int]
    windows: list[list[int]]
    steps: list[Step]


def decode(model: StandIn, run: dict[str, Any], u: dict[str, Tensor], sampler: Sampler) -> Decoded:
    """The public loop: window steps inside an interval of lengths, plain one-token steps outside.

    u: ``fresh_u``, ``sample_u``, ``accept_u``, ``residual_u`` [T, L].  Fresh drafts have a one-hot
    law.
    """
    settings, none = Window.of(run), torch.zeros(0, model.vocab)
    done = Decoded(list(settings.prompt), [], [])
    low, high = (len(settings.prompt) + run[f"loop_interval_{side}"] for side in "lr")
    before, drafts, laws, window = 0, [], none, run["window"]
    while len(done.tokens) < settings.max_length:
        length = len(done.tokens)
        size = min(window, high - before) if low <= before < high else 1
        at = {name: row[len(done.steps), :size] for name, row in u.items()}
        fresh = settings.fresh(at["fresh_u"])[len(drafts[: size - 1]) + 1 :]
        drafts = drafts[: size - 1] + fresh.tolist()
        laws = torch.cat([none[:1], laws[: size - 1], F.one_hot(fresh, model.vocab).float()])
        p_cur = model.after(done.tokens, drafts)
        inputs = torch.tensor([done.tokens[-1], *drafts])
        if size > 1:
            step = sampler.window(
                inputs, torch.cat([torch.zeros(1, model.vocab), laws]), p_cur, at
            )
            window = run.get("window_after_first_window_step", window)
        else:
            step = Step(1, sampler.redraw(p_cur, at["sample_u"]), p_cur)
        done.windows.append(inputs.tolist())
        done.steps.append(step)
        done.tokens.extend(step.tokens[: step.n].tolist())
        drafts, laws, before = step.tokens[step.n :].tolist(), step.laws[step.n :], length
    return done


def accepted(kept: Tensor) -> int:
    """How many drafts are accepted: the leading kept ones."""
    return int(kept.long().cumprod(-1).sum())


def compare_decode(vectors: Vectors, name: str, done: Decoded) -> list[Found]:
    """``out.run.{name}``: tokens, steps, windows, next drafts, and the recorded laws of the steps
    that have them.
    """
    want = vectors.under(f"out.run.{name}.")
    laws = [
        close("", s.laws, w[: len(s.laws)], 1e-5)
        for s, w in zip(done.steps, want["scores"], strict=False)
    ]
    return [
        same(f"{name}: tokens", done.tokens, want["tokens"]),
        same(f"{name}: committed in each step", [s.n for s in done.steps], want["accepted"]),
        same(f"{name}: windows", padded(done.windows, want["window"]), want["window"]),
        same(
            f"{name}: tokens after",
            padded([s.tokens.tolist() for s in done.steps], want["after"]),
            want["after"],
        ),
        worst(f"{name}: recorded laws", laws),
    ]


def padded(rows: list[list[int]], like: Tensor) -> Tensor:
    """Rows of their own lengths, with −1 to the width of ``like``; how many there are is not
    imposed.
    """
    return torch.tensor([row + [-1] * (like.shape[1] - len(row)) for row in rows])
