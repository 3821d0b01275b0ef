"""Several rows at once: the limits are raster order, a row sees what it should, and nothing else
differs.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from conftest import ROOT, mistake, slow_but
from fake_cuda_graph import frozen
from families import small_row
from test_emu3 import VQ

from lanternbench.engine import decode as engine
from lanternbench.engine.opening import teacher_forced
from lanternbench.lossless import on_tables
from lanternbench.lossless.tables import ROW_END_CONFIG, ROW_END_VQ, RowTables, row_end_target
from lanternbench.measure.fidelity import decode_loss, row_losses
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.chameleon.checkpoint import ChameleonFamily
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.emu3.checkpoint import Emu3Family
from lanternbench.settings import Sampling
from lanternbench.utils.graph_capture import Graphs

CAPTIONS = [
    "a large red star on the left on a noisy blue background",
    "a small green ring",
    "two dogs in the snow",
]
FORMS = [
    ("zipar", {"window": 2}),
    ("zipar", {"window": "adaptive", "s_min": 1}),
    ("zipar", {"window": 1, "auxiliary": "seen"}),
    ("pjd", {"c": 2, "window": 3}),
    ("pjd", {"c": 1, "window": 2, "reuse": 0.5}),
]
EMU3 = {
    "dim": 32,
    "n_layer": 1,
    "n_head": 2,
    "n_kv_head": 1,
    "hidden": 48,
    "prompt_ids": 8192,
    "grid": 4,
}
EMU3 |= {"vocab_size": 48, "first_image_id": 100, "vq": VQ}


@pytest.fixture(scope="module")
def targets(shallow, shallow_8x8):
    """Random weights with row ends of two families, the same without, and the embedded model,
    which writes none.
    """
    lumina = row_end_target()
    emu3 = Emu3Family().random_target(small_row(EMU3, 3.0), "cpu")
    for weight in emu3.model.parameters():  # so large that every token depends on all before it
        weight.data.mul_(8)
    emu3.model.double()  # with such weights the order of float32 sums shows in the fifth decimal
    plain = replace(lumina, row_end=None)
    return {
        "lumina": lumina,
        "emu3": emu3,
        "no ends": plain,
        "tiny": shallow,
        "tiny 8×8": shallow_8x8,
    }


def decode(target, name, captions=CAPTIONS, trace=False, raster=False, temperature=1.0, **options):
    """``raster``: with the draws of this method in raster order."""
    decoder = build(target, method(name, **options), Sampling(temperature=temperature))
    if raster:
        decoder = replace(decoder, method=method(name, order="raster"))
    return engine.generate(decoder, captions, seed=5, trace=trace)


def tokens(made):
    return torch.stack([g.tokens for g in made])


@pytest.mark.parametrize(
    "which", slow_but(["lumina", "emu3", "no ends"], ["lumina", "emu3", "no ends", "tiny"])
)
@pytest.mark.parametrize(("name", "options"), [("zipar", {"window": 99}), ("pjd", {"c": 99})])
@pytest.mark.parametrize("temperature", slow_but([1.0], [1.0, 0.0]))
def test_with_one_row_at_a_time_the_tokens_are_those_of_raster_order(
    targets, which, name, options, temperature
):
    captions = CAPTIONS[:1] if which == "tiny" else CAPTIONS
    plain = engine.generate(
        build(targets[which], method(name, order="raster"), Sampling(temperature=temperature)),
        captions,
        seed=5,
    )
    made = decode(targets[which], name, captions, raster=True, temperature=temperature, **options)
    assert torch.equal(tokens(made), tokens(plain))
    assert [g.accept_lengths for g in made] == [g.accept_lengths for g in plain]


@pytest.mark.parametrize(("name", "options"), FORMS)
def test_every_token_is_committed_once_in_the_step_that_is_recorded(
    targets, monkeypatch, name, options
):
    target = targets["no ends"]
    steps = [[0] + [-1] * (target.length - 1) for _ in CAPTIONS]  # the prefill gives the first
    apply = engine.apply

    def noting(state, commit):
        for prompt, positions in zip(state.origin, commit.positions.tolist(), strict=True):
            for position in positions:
                if position < state.limit:
                    assert steps[prompt][position] == -1
                    steps[prompt][position] = 1 + state.steps
        return apply(state, commit)

    monkeypatch.setattr(engine, "apply", noting)
    made = decode(target, name, trace=True, **options)
    assert made[0].trace.committed_in.tolist() == steps
    for image, one in zip(made, steps, strict=True):
        counts = [one.count(step) for step in range(1 + image.steps)]
        assert counts == [1, *image.accept_lengths]


def test_a_row_begins_once_the_one_above_leads_by_the_window(targets):
    (made,) = decode(targets["no ends"], "zipar", CAPTIONS[:1], trace=True, window=2)
    assert made.trace.committed_in[0].view(4, 4).tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [6, 7, 8, 9],
        [8, 9, 10, 11],
    ]


@pytest.mark.parametrize(
    "which", slow_but(["lumina", "emu3", "no ends"], ["lumina", "emu3", "no ends", "tiny 8×8"])
)
@pytest.mark.parametrize(("name", "options"), FORMS)
def test_prompts_that_advance_at_their_own_pace_get_what_they_get_alone(
    targets, which, name, options
):
    target = targets[which]
    together = decode(target, name, trace=True, **options)
    for i, caption in enumerate(CAPTIONS):
        (alone,) = decode(target, name, [caption], trace=True, **options)
        assert torch.equal(alone.tokens, together[i].tokens)
        assert alone.accept_lengths == together[i].accept_lengths
        torch.testing.assert_close(
            alone.trace.seen[0], together[i].trace.seen[i], atol=1e-5, rtol=0
        )
    if name == "pjd":
        # or none would have been finished before another
        assert len({g.steps for g in together}) > 1


@pytest.mark.parametrize(
    "which", slow_but(["lumina", "no ends"], ["lumina", "emu3", "no ends", "tiny 8×8"])
)
@pytest.mark.parametrize(("name", "options"), slow_but([FORMS[1], FORMS[4]], FORMS))
def test_recorded_steps_give_the_tokens_of_launched_ones(targets, which, name, options):
    target = targets[which]
    recorded = replace(target, graphs=Graphs(frozen))
    want, made = (decode(t, name, trace=True, **options) for t in (target, recorded))
    assert torch.equal(tokens(made), tokens(want))
    assert [g.accept_lengths for g in made] == [g.accept_lengths for g in want]
    torch.testing.assert_close(made[0].trace.seen, want[0].trace.seen, atol=1e-4, rtol=0)
    assert made[0].syncs == max(g.steps for g in made)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("s", slow_but([2, 4], [2, 4, 8, 16]))
def test_zipar_takes_two_rows_and_the_lead_of_every_other_row(s, ends):
    target = ChameleonFamily().random_target(
        small_row(
            asdict(replace(ROW_END_CONFIG, grid=32, positions=2048))
            | {"dialect": "lumina", "vq": asdict(ROW_END_VQ)}
        ),
        "cpu",
    )
    target = target if ends else replace(target, row_end=None)
    (made,) = engine.generate(build(target, method("zipar", window=s)), CAPTIONS[:1])
    assert 1 + made.steps == 2 * 32 + 30 * s
    assert max(made.tree_nodes) == -(-32 // s)


@pytest.mark.slow
@pytest.mark.parametrize(("s", "forwards"), [(6, 708), (7, 796)])
def test_emu3_s_size_with_row_ends_takes_as_many_forwards_as_the_schedule_says(s, forwards):
    """Emu3-Gen's published 713 is neither."""
    target = Emu3Family().random_target(small_row(EMU3 | {"grid": 90, "positions": 9000}), "cpu")
    assert target.row_width == 90
    (made,) = engine.generate(build(target, method("zipar", window=s)), CAPTIONS[:1])
    assert 1 + made.steps == forwards == 2 * 90 + 88 * s


def forwards_by_the_rule(rows, columns, s, first_alone):
    """Every row adds a token a forward, once the one above has s of them, or all; ``first_alone``:
    or the whole first.

    The public code waits for the first row; the paper's rule does not.
    """
    counts, forwards = [0] * rows, 0
    while counts[-1] < columns:
        leads = [columns if first_alone and r == 1 else s for r in range(rows)]
        ready = [r == 0 or counts[r - 1] >= min(leads[r], columns) for r in range(rows)]
        counts = [min(n + go, columns) for n, go in zip(counts, ready, strict=True)]
        forwards += 1
    return forwards


@pytest.mark.parametrize(
    ("grid", "s", "first_alone", "forwards"),
    [(32, 4, True, 184), (32, 5, False, 187), (90, 6, True, 708), (90, 7, True, 796), (90, 7, False, 713),
     (48, 11, True, 602), (48, 11, False, 565), (48, 12, False, 612)],
)  # fmt: skip
def test_published_step_counts_stand_beside_those_of_the_rule(grid, s, first_alone, forwards):
    """The table of docs/orders.md: by the rule alone, and with the first row drawn before all
    others.
    """
    assert forwards_by_the_rule(grid, grid, s, first_alone) == forwards
    page = (ROOT / "docs" / "orders.md").read_text(encoding="utf-8")
    (line,) = (row for row in page.splitlines() if f"| {grid} × {grid} |" in row)
    assert f"{forwards}, s = {s}" in line


def uncached(target, tokens, s, warp):
    """ZipAR's distributions by one plain forward: the image's tokens and what begins each row,
    under a mask.

    The token (r, j) is drawn by forward t = j in the first row, W + (r − 1)·s + j in the others,
    and read by the next.
    """
    (h, w), ends, prefix = (
        target.grid,
        target.row_width > 0,
        target.prefix(CAPTIONS[:1], target.guidance),
    )
    p, model, stride = prefix.valid.shape[1], target.model, target.grid[1] + (target.row_width > 0)
    inputs = [
        (t, r, j, p + r * stride + j)
        for r in range(h)
        for j in range(w)
        for t in [j + (w + (r - 1) * s) * (r > 0)]
    ]
    begins = [
        (w + (r - 1) * s - 1, r - 1, w if ends else w - 1, p + r * stride - 1) for r in range(1, h)
    ]
    ids, starts = tokens.view(h, w), []
    # the last token of the row above where there is one, else the latest of the row before it
    for t, r, *_ in begins:
        whole = max(x[0] for x in inputs if x[1] == r) <= t
        latest = [x[2] for x in inputs if x[1] == r - 1 and x[0] <= t]
        starts.append(ids[r, -1] if whole else ids[r - 1, max(latest)])
    n = p + len(inputs) + len(begins)
    seen = prefix_mask(prefix.valid, n).clone()  # causal; rows of the prompt stay as they are
    seen[:, :, p:] = prefix.valid[:, None, None].new_zeros(1)
    seen[:, :, p:, :p] = prefix.valid[:, None, None]
    everything = inputs + begins
    for i, (t, r, j, _) in enumerate(everything):
        for k, (other_t, other_r, other_j, _) in enumerate(everything):
            if k < len(inputs):
                there = other_t <= t and (other_r < r or (other_r == r and other_j <= j))
            else:  # a row end is seen by all rows below; a stand-in by itself alone
                there = k == i or (ends and other_r < r)
            seen[:, :, p + i, p + k] |= there
    x = torch.cat([model.tok_embeddings(tokens), model.tok_embeddings(torch.stack(starts))])
    if ends:
        x[len(inputs) :] = model.prompt_embeddings(torch.tensor(target.row_end))
    x = torch.cat([prefix.embeddings, x.expand(len(prefix.valid), -1, -1)], 1)
    positions = torch.tensor([*range(p), *(place for *_, place in everything)])
    hidden = model(x, model.position_table(p)[None, positions, None], seen)
    first = {r: p + len(inputs) + r - 1 for r in range(1, h)} | {0: p - 1}
    if not ends:  # where the row above is whole, its last token is the input itself
        first |= {
            r: p + r * w - 1
            for r in range(1, h)
            if max(x[0] for x in inputs if x[1] == r - 1) <= begins[r - 1][0]
        }
    at = [first[r] if j == 0 else p + r * w + j - 1 for r in range(h) for j in range(w)]
    return warp(model.logits(hidden[:, at], target.guidance))[0]


@pytest.mark.parametrize("which", ["lumina", "no ends", "tiny 8×8"])
@pytest.mark.parametrize("s", [1, 3])
def test_a_row_s_token_is_drawn_from_the_target_s_distribution_given_what_the_rule_says(
    targets, which, s
):
    target = targets[which]
    decoder = build(target, method("zipar", window=s))
    with torch.inference_mode():
        (made,) = engine.generate(decoder, CAPTIONS[:1], trace=True)
        want = uncached(target, made.tokens, s, decoder.warp)
    assert (made.trace.seen[0] - want).abs().max() < 1e-4
    assert (made.trace.seen[0] - made.trace.q[0]).abs().max() > 1e-2


def test_the_loss_is_that_of_the_whole_context_and_falls_with_the_lead(targets):
    losses = []
    for s in (1, 2, 3, 4):
        decoder = build(targets["lumina"], method("zipar", window=s))
        made = engine.generate(decoder, CAPTIONS, seed=1, trace=True)
        trace, drawn = made[0].trace, tokens(made)
        prefix = decoder.target.prefix(CAPTIONS, decoder.guidance)
        q = teacher_forced(decoder.target, prefix, drawn, decoder.guidance, decoder.warp)
        by_hand = 0.5 * (trace.seen - q).abs().sum(-1)
        torch.testing.assert_close(
            row_losses(trace, decoder.rule, decoder.residual), by_hand, atol=1e-5, rtol=0
        )
        losses.append(float(decode_loss(decoder, trace, drawn).mean()))
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 0.1
    assert losses[-1] < 1e-5


def test_simulated_acceptance_commits_drafts_of_random_weights(targets):
    steps = [engine.generate(build(targets["lumina"], method("pjd", c=2, window=3), simulate_acceptance=tau), CAPTIONS)
             for tau in (1.0, 3.0)]  # fmt: skip
    assert all(a.steps > b.steps for a, b in zip(*steps, strict=True))


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["sjd", "--order", "rows", "--acceptance", "block"], "does not judge them one by one"),
        (["eagle-1", "--order", "rows"], "rows are drawn without drafts or from Jacobi windows"),
        (["scd", "--order", "rows"], "rows are drawn without drafts or from Jacobi windows"),
        (["pjd", "--init", "vertical-repeat"], "does not read the option 'init'"),
        (["zipar", "--c", "4"], "does not read the option 'c'"),
        (["zipar", "--window", "adaptive", "--variant", "reference"], "no adaptive window"),
        (["zipar", "--window", "0"], "is wrong"),
        (["ar", "--order", "rows", "--acceptance", "lantern"], "there is nothing to accept"),
    ],
)
def test_what_does_not_combine_is_refused_with_the_reason(monkeypatch, capfd, args, reason):
    assert reason in mistake(monkeypatch, capfd, "run", "--method", *args)


@pytest.mark.parametrize(
    ("name", "options"), [("zipar", {"window": 1}), ("zipar", {"window": "adaptive", "s_min": 1})]
)
def test_on_tables_the_engine_draws_what_the_plain_definition_says(name, options):
    sampling = Sampling(guidance=1.5, temperature=0.9)
    one = on_tables(method(name, **options), RowTables(2, (3, 3), 1, sampling=sampling))
    assert max(one.off, one.wrong, one.tv - one.enumerated.loss) < 1e-6
    assert one.enumerated.loss > 0.05


@pytest.mark.parametrize(
    "options",
    slow_but(
        [{"c": 1, "window": 1}],
        [{"c": 1, "window": 1}, {"c": 1, "window": 1, "reuse": 0.5, "acceptance": "lantern"}],
    ),
)
def test_windows_of_rows_too(options):
    one = on_tables(method("pjd", **options), RowTables(2, (2, 3), 1))
    assert max(one.off, one.wrong, one.tv - one.enumerated.loss) < 1e-6
    assert one.tv > 0.01
