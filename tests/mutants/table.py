"""The mutants: a plausible mistake each, where it is made, and who should notice."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """``edits``: (file, old text, new text), the old one found once; ``method`` to verify;
    ``tests`` by node id.
    """

    name: str
    breaks: str
    edits: tuple[tuple[str, str, str], ...]
    method: str | None = None
    tests: tuple[str, ...] = ()


METHODS = "lanternbench/methods"
RULES, PROPOSALS, TREES = f"{METHODS}/acceptance", f"{METHODS}/proposals", f"{METHODS}/trees"
PLAIN = (
    "tests/lossless/test_engine_against_plain.py::test_the_engine_samples_what_the_papers_define"
)
DRAFTED = "tests/models/test_dflash.py::test_what_it_drafts_from_is_a_plain_network_over_the_committed_context"

DIAGONALS = "tests/engine/test_diagonals.py"

MUTANTS = (
    Mutant(
        "residual-ignores-f",
        "the optimal residual ignores f",
        (
            (
                f"{METHODS}/residuals.py",
                "(q - rule.accepted_prob(q, p, depth)).clamp_(min=0)",
                "(q - p).clamp_(min=0)",
            ),
        ),
        "cool-sd",
        (
            "tests/lossless/test_engine_against_plain.py::test_every_form_of_a_rule_is_held_against_its_definition",
        ),
    ),
    Mutant(
        "omega-shifted",
        "ω is shifted by one position",
        ((f"{RULES}/exact.py", "[math.nan, *omega]", "[math.nan, *omega[1:], omega[-1]]"),),
        "cool-sd",
        (
            "tests/methods/test_acceptance.py::test_the_first_draft_has_the_first_omega_of_the_schedule",
        ),
    ),
    Mutant(
        "residual-keeps-group",
        "LANTERN's residual keeps the group",
        (
            (
                f"{METHODS}/residuals.py",
                "moved = q if relaxed.group is None else relaxed.group.struck_from(q)",
                "moved = q",
            ),
        ),
        "lantern++",
        (f"{PLAIN}[lantern++-dense]",),
    ),
    Mutant(
        "no-bonus-token",
        "a chain that is accepted whole ends without a bonus token",
        (
            (
                "lanternbench/engine/verify.py",
                "    # in a chain a node's id is its depth\n",
                "    token = torch.where(accepted == length, draft.tokens[:, -1], token)\n"
                "    accepted = accepted.clamp(max=length - 1)\n"
                "    accepted_column = accepted[:, None]\n",
            ),
        ),
        "sd",
        (
            "tests/engine/test_properties.py::test_verification_is_the_scalar_procedure_for_the_same_uniforms",
        ),
    ),
    Mutant(
        "guidance-last",
        "guidance comes after temperature, top-k and top-p",
        (
            (
                "lanternbench/engine/decode.py",
                "    logits = model.logits(final, state.guidance)\n",
                "    logits = model.logits(final, 1.0)\n",
            ),
            (
                "lanternbench/engine/decode.py",
                "        q = state.warp(outputs.logits)\n        drawn = q\n",
                "        from lanternbench.models.transformer import guide\n\n"
                "        warped = state.warp(outputs.logits).clamp(min=1e-12).log()\n"
                "        q = guide(warped, state.guidance).softmax(-1)\n        drawn = q\n",
            ),
        ),
        "ar",
        (
            "tests/lossless/test_engine_against_plain.py::test_guided_and_warped_the_engine_samples_what_the_papers_define[ar]",
        ),
    ),
    Mutant(
        "siblings-not-renormalised",
        "p is not renormalised for the next sibling",
        (
            (
                "lanternbench/engine/verify.py",
                "        drafter.div_(drafter.sum(-1, keepdim=True).clamp_(min=TINY))\n",
                "",
            ),
        ),
        "eagle-1",
        (f"{PLAIN}[eagle-1-dense]",),
    ),
    Mutant(
        "neighbours-shifted",
        "the table of neighbours is shifted by one",
        (
            (
                f"{RULES}/lantern.py",
                "stable=True).indices[:, :k]",
                "stable=True).indices.roll(-1, -1)[:, :k]",
            ),
        ),
        "lantern",
        (
            "tests/methods/test_trees.py::test_nearest_neighbours_begin_with_the_token_itself_even_where_codes_coincide",
        ),
    ),
    Mutant(
        "p-before-top-k",
        "the drafter's p is taken before temperature, top-k and top-p",
        (
            (
                f"{TREES}/fixed.py",
                "distributions.append(p)",
                "distributions.append(logits.softmax(-1))",
            ),
        ),
        "sd",
        (
            "tests/lossless/test_engine_against_plain.py::test_guided_and_warped_the_engine_samples_what_the_papers_define[sd]",
        ),
    ),
    Mutant(
        "deepest-row-stays",
        "the deepest accepted cache row is not moved",
        (
            (
                "lanternbench/engine/cache.py",
                "return self.places(computed), self.places(belong)",
                "return self.places(computed[:, :-1]), self.places(belong[:, :-1])",
            ),
        ),
        "eagle-1",
        ("tests/engine/test_decode.py::test_any_static_tree_is_lossless_when_greedy[twig-8]",),
    ),
    Mutant(
        "shared-uniforms",
        "draft and verification share their uniforms",
        (
            (
                "lanternbench/engine/decode.py",
                "return Uniforms(of_nodes, of_drafts, by_position)",
                "return Uniforms(of_nodes, u[:, : u.shape[1] - nodes], by_position)",
            ),
        ),
        "sd",
        (f"{PLAIN}[sd-dense]",),
    ),
    Mutant(
        "tvd-halved",
        "LANTERN's total variation is halved",
        ((f"{RULES}/lantern.py", "    return moved\n", "    return moved / 2\n"),),
        "lantern",
        (
            "tests/methods/test_acceptance.py::test_lantern_grows_nearest_first_while_strictly_below_delta",
        ),
    ),
    Mutant(
        "lambda-not-less-one",
        "LANTERN++ bounds by λ in place of λ − 1",
        ((f"{RULES}/lantern.py", "(self.lam - 1.0) * q_x", "self.lam * q_x"),),
        "lantern++",
        (
            "tests/methods/test_acceptance.py::test_lantern_plus_plus_bound_is_inclusive_and_scales_with_q",
        ),
    ),
    Mutant(
        "loss-doubled",
        "the fidelity loss is doubled",
        (
            (
                "lanternbench/measure/fidelity.py",
                "distance = 0.5 * (q - drawn)",
                "distance = (q - drawn)",
            ),
        ),
        "cool-sd",
        (
            "tests/measure/test_fidelity.py::test_on_a_single_decision_of_a_chain_the_loss_is_the_total_variation",
        ),
    ),
    Mutant(
        "adapts-the-wrong-way",
        "ADT-Tree grows shallower after success",
        (
            (
                f"{TREES}/adaptive.py",
                "1 if alpha >= within.beta else -1",
                "-1 if alpha >= within.beta else 1",
            ),
        ),
        "adt-tree",
        (
            "tests/methods/test_trees.py::test_adt_takes_the_paper_s_depth_and_width_at_every_token_of_a_recorded_decode",
        ),
    ),
    Mutant(
        "p-shifted",
        "SJD's p belongs to the position before",
        (
            (
                f"{PROPOSALS}/jacobi.py",
                "p=rows_at(p, source)",
                "p=rows_at(p, source - 1)",
            ),
        ),
        "sjd",
        (
            "tests/lossless/test_verification.py::test_lossless_methods_have_the_targets_distribution[dense-sjd]",
        ),
    ),
    Mutant(
        "exp-rises",
        "the exp schedule rises",
        ((f"{RULES}/exact.py", "[nu**i for", "[nu**-i for"),),
        "cool-sd",
        ("tests/methods/test_acceptance.py::test_exp_schedule_by_hand_and_with_nu_one_uniform",),
    ),
    Mutant(
        "bonus-from-residual",
        "at a leaf the bonus token comes from the residual",
        (
            (
                "lanternbench/engine/verify.py",
                "law = torch.where(siblings.is_leaf[stop], q[prompts, stop], after_children)",
                "law = after_children",
            ),
        ),
        "eagle-1",
        (f"{PLAIN}[eagle-1-dense]",),
    ),
    Mutant(
        "claims-lossless",
        "the annealed rule claims to be lossless",
        (
            (
                f"{RULES}/exact.py",
                "lossless = False",
                "lossless = True",
            ),
        ),
        "cool-sd",
        ("tests/methods/test_components.py::test_relaxed_rules_do_not_claim_to_be_lossless",),
    ),
    Mutant(
        "features-zeroed",
        "EAGLE drafts without the target's features (changes speed alone)",
        (
            (
                f"{PROPOSALS}/drafting.py",
                "self.net.fuse(embedding, states)",
                "self.net.fuse(embedding, states * 0)",
            ),
        ),
        "eagle-1",
        (
            "tests/test_golden.py::test_what_the_published_code_computes_is_reproduced[eagle_llamagen]",
        ),
    ),
    Mutant(
        "old-law-kept",
        "SCD: a kept token keeps its old law p_old",
        (
            (
                f"{PROPOSALS}/jacobi.py",
                "couple_with_old_law if public else couple",
                "couple if public else couple_with_old_law",
            ),
        ),
        "scd",
        (
            "tests/methods/test_scd.py::test_maximal_coupling_is_lossless_and_the_plain_definition[dense]",
        ),
    ),
    Mutant(
        "noise-shared",
        "SCD's Gumbel noise is shared by all positions",
        (
            (
                f"{PROPOSALS}/redraws.py",
                "uniform_noise(state.now.noise, position, ",
                "uniform_noise(state.now.noise, 0 * position, ",
            ),
        ),
        "scd",
        (
            "tests/methods/test_scd.py::test_gumbel_coupling_with_its_own_noise_keeps_the_targets_distribution",
        ),
    ),
    Mutant(
        "longest-path",
        "SJD-PAC: the longest accepted path counts, not the first accepted sibling",
        (
            (
                "lanternbench/engine/tree.py",
                "    found = accept.any(-1)\n"
                "    first = accept.int().argmax(-1)  # the first accepted child\n",
                "    reach = torch.zeros(accept.shape[:2], dtype=torch.long, device=accept.device)\n"
                "    child = tree.children.expand_as(accept).clamp(min=0).flatten(1)\n"
                "    for _ in range(tree.max_depth + 1):\n"
                "        each = torch.where(accept, 1 + reach.gather(1, child).view_as(accept), 0)\n"
                "        reach = each.amax(-1)\n"
                "    found = accept.any(-1)\n"
                "    first = each.argmax(-1)\n",
            ),
        ),
        "sjd-pac",
        (
            "tests/methods/test_sjd_pac.py::test_siblings_are_lossless_and_the_plain_definition[dense]",
        ),
    ),
    Mutant(
        "siblings-with-replacement",
        "SJD-PAC: siblings drawn with replacement",
        ((f"{PROPOSALS}/sjd_pac.py", "p[:, :t].scatter(-1, tokens[:, :t, :1], 0.0)", "p[:, :t]"),),
        "sjd-pac",
        (
            "tests/methods/test_sjd_pac.py::test_siblings_are_lossless_and_the_plain_definition[dense]",
        ),
    ),
    Mutant(
        "block-without-weight",
        "block verification's h without the cumulated weight",
        (
            (
                f"{RULES}/chains.py",
                "    left = residual.sum(-1)\n",
                "    left = (q[:, :-1] - p).clamp(min=0).sum(-1)\n",
            ),
        ),
        "sd",
        ("tests/methods/test_block.py::test_it_is_lossless_and_the_plain_definition[dense]",),
    ),
    Mutant(
        "law-beyond-the-tree",
        "SJD-PAC: beyond the tree the recorded law is that of the column before",
        (
            (
                f"{PROPOSALS}/sjd_pac.py",
                "\n        return Window(tokens, p, w - accepted)",
                "\n        t = self.columns.tree_columns\n"
                "        p = torch.cat([p[:, :t], p[:, max(t, 1) - 1 : -1]], 1)\n"
                "        return Window(tokens, p, w - accepted)",
            ),
        ),
        "sjd-pac",
        (
            "tests/methods/test_sjd_pac.py::test_a_chain_beyond_the_tree_is_lossless_and_the_plain_definition",
        ),
    ),
    Mutant(
        "context-beyond-the-tree",
        "SJD-PAC: beyond the tree a column is redrawn after the token before last (changes speed alone)",
        (
            (
                f"{PROPOSALS}/sjd_pac.py",
                "self.chain[len(nodes) :]",
                "self.chain[len(nodes) - 1 : -1]",
            ),
        ),
        "sjd-pac",
        (
            "tests/methods/test_sjd_pac.py::test_a_chain_beyond_the_tree_is_lossless_and_the_plain_definition",
        ),
    ),
    Mutant(
        "seeds-shared",
        "all prompts of a batch share their uniforms",
        (
            (
                "lanternbench/engine/opening.py",
                "manual_seed(seed)",
                "manual_seed(seeds[0])",
            ),
        ),
        "ar",
        (
            "tests/lossless/test_verification.py::test_images_of_one_caption_that_are_equal_are_counted",
        ),
    ),
    Mutant(
        "loss-of-two-stages",
        "the fidelity loss stops after two stages of a node",
        (
            (
                "lanternbench/measure/fidelity.py",
                "for j in range(int(tried.max())",
                "for j in range(min(2, int(tried.max()))",
            ),
        ),
        "lantern++",
        ("tests/measure/test_fidelity.py::test_every_stage_of_a_node_has_its_loss",),
    ),
    Mutant(
        "row-end-positions",
        "the position after a row end is that of the row end",
        (
            (
                "lanternbench/engine/row_ends.py",
                "both = torch.cat([positions, positions + 1], 1)",
                "both = torch.cat([positions, positions], 1)",
            ),
        ),
        "eagle-1",
        (
            "tests/lossless/test_verification.py::test_row_ends_are_checked_against_a_plain_forward",
        ),
    ),
    Mutant(
        "compaction-swaps-rows",
        "a batch that drops finished prompts swaps its unconditional rows",
        (
            (
                "lanternbench/engine/carry.py",
                "[prompts, prompts + batch]",
                "[prompts, prompts.flip(0) + batch]",
            ),
        ),
        "eagle-1",
        (
            "tests/lossless/test_verification.py::test_row_ends_are_checked_against_a_plain_forward",
        ),
    ),
    Mutant(
        "fusion-order",
        "EAGLE-3 reads low, middle and high states in the places of high, low and middle (changes speed alone)",
        (
            (
                "lanternbench/models/drafters/eagle.py",
                "return self.fusion(states)",
                "return self.fusion(states.roll(-states.shape[-1] // 3, -1))",
            ),
        ),
        "eagle-3",
        (
            "tests/lossless/test_verification.py::test_a_drafter_that_reads_other_states_than_it_was_trained_on_is_noticed",
        ),
    ),
    Mutant(
        "rows-mask-short",
        "a row sees one column less of the rows above",
        (
            (
                "lanternbench/engine/rows.py",
                "committed = column < count[",
                "committed = column + 1 < count[",
            ),
        ),
        "zipar",
        (
            "tests/engine/test_orders.py::test_a_row_s_token_is_drawn_from_the_target_s_distribution_given_what_the_rule_says",
        ),
    ),
    Mutant(
        "diagonal-sees-lower-rows",
        "under the raster mask a token sees a row below its own",
        (
            (
                "lanternbench/engine/diagonals.py",
                "return seen & (row <= diagonal.row[:, None])",
                "return seen & (row <= diagonal.row[:, None] + 1)",
            ),
        ),
        "flashar",
        (f"{DIAGONALS}::test_a_token_is_drawn_from_its_neighbours_states_under_the_mask",),
    ),
    Mutant(
        "branch-reads-left",
        "the vertical branch is read at the neighbour to the left",
        (
            (
                "lanternbench/engine/diagonals.py",
                "place_above = place - 1",
                "place_above = place",
            ),
        ),
        "flashar",
        (f"{DIAGONALS}::test_on_tables_the_engine_draws_what_the_plain_definition_says",),
    ),
    Mutant(
        "gate-swapped",
        "the gate weighs the two predictions the other way round",
        (
            (
                "lanternbench/models/drafters/flashar.py",
                "return gate * model.logits(h) + (1 - gate) * self.vertical_head(v)",
                "return (1 - gate) * model.logits(h) + gate * self.vertical_head(v)",
            ),
        ),
        "flashar",
        (f"{DIAGONALS}::test_a_token_is_drawn_from_its_neighbours_states_under_the_mask",),
    ),
    Mutant(
        "auxiliary-not-dropped",
        "the stand-in that begins a row is seen by later tokens",
        (
            (
                "lanternbench/engine/rows.py",
                "            seen_from = width\n",
                "            seen_from = width - 1\n",
            ),
        ),
        "zipar",
        (
            "tests/engine/test_orders.py::test_a_row_s_token_is_drawn_from_the_target_s_distribution_given_what_the_rule_says",
        ),
    ),
    Mutant(
        "row-counts-swapped",
        "a row attends by the counts of another prompt",
        (
            (
                "lanternbench/engine/rows.py",
                "count[:, row.clamp(",
                "count.roll(1, 0)[:, row.clamp(",
            ),
        ),
        "pjd",
        (
            "tests/engine/test_orders.py::test_prompts_that_advance_at_their_own_pace_get_what_they_get_alone",
        ),
    ),
    Mutant(
        "stale-key-kept",
        "the last token of a complete row is not read, so that the stand-in's key stays",
        (
            (
                "lanternbench/engine/rows.py",
                "used=self.to_close(draft.rows, draft.active)[:, None]",
                "used=self.to_close(draft.rows, draft.active)[:, None] & False",
            ),
        ),
        "zipar",
        (
            "tests/engine/test_orders.py::test_a_row_s_token_is_drawn_from_the_target_s_distribution_given_what_the_rule_says",
        ),
    ),
    Mutant(
        "loss-of-partial-context",
        "the loss of several rows is taken against the context that they saw",
        (
            (
                "lanternbench/engine/rows.py",
                "        self.q = teacher_forced(state.target, state.prefix, tokens, state.guidance, state.warp)\n",
                "        self.q = self.seen\n",
            ),
        ),
        "zipar",
        (
            "tests/engine/test_orders.py::test_the_loss_is_that_of_the_whole_context_and_falls_with_the_lead",
        ),
    ),
    Mutant(
        "anchor-in-context",
        "a block is trained on the target's states at its own anchor",
        (
            (
                "lanternbench/training/losses.py",
                "before = entries <= at[:, None]",
                "before = entries <= at[:, None] + 1",
            ),
        ),
        tests=("tests/models/test_dflash.py::test_training_reads_and_drafts_what_decoding_does",),
    ),
    Mutant(
        "block-kept",
        "the first block's keys stay before the context of the later steps",
        (
            (
                f"{PROPOSALS}/levels.py",
                "base = layout.slots[cursor.shared - fresh] + 1",
                "base = layout.slots[cursor.shared - fresh] + 1 + block * (cursor.shared > 1)",
            ),
        ),
        tests=(f"{DRAFTED}[classes-both-ways-1]",),
    ),
    Mutant(
        "slot-before",
        "a draft's distribution is that of the slot before its own",
        ((f"{PROPOSALS}/levels.py", "context.shape[1]))[:, 1:]", "context.shape[1]))[:, :-1]"),),
        tests=(f"{DRAFTED}[classes-both-ways-1]",),
    ),
    Mutant(
        "theta-turned",
        "SJD++ keeps the drafts that have become unlikely",
        (
            (
                f"{PROPOSALS}/redraws.py",
                "> theta * at(draft.p, x)",
                "<= theta * at(draft.p, x)",
            ),
        ),
        "sjd++",
        ("tests/methods/test_sjd_plus.py::test_sjd_plus_keeps_what_its_definition_keeps",),
    ),
    Mutant(
        "segment-untested",
        "of a segment the tail is accepted untested in place of the head",
        (
            (
                f"{RULES}/chains.py",
                "(after < alpha * total) |",
                "(after >= alpha * total) |",
            ),
        ),
        tests=(
            "tests/methods/test_sjd_plus.py::test_segments_are_accepted_as_often_as_their_definition_says",
        ),
    ),
    Mutant(
        "top-p-reached-is-not-enough",
        "top-p keeps one token more if the kept mass is p exactly",
        (
            (
                "lanternbench/engine/sampling.py",
                "outside = mass_before >= top_p",
                "outside = mass_before > top_p",
            ),
        ),
        tests=("tests/engine/test_sampling.py::test_top_p_ends_at_the_token_that_reaches_p",),
    ),
    Mutant(
        "plain-top-p-reached-is-not-enough",
        "the plain top-p keeps one token more if the kept mass is p exactly",
        (
            (
                "lanternbench/lossless/plain/__init__.py",
                "if mass >= sampling.top_p:",
                "if mass > sampling.top_p:",
            ),
        ),
        tests=("tests/engine/test_sampling.py::test_top_p_ends_at_the_token_that_reaches_p",),
    ),
    Mutant(
        "known-shifted",
        "what enters SJD's window is drawn from the distribution of the token after its neighbour",
        (
            (
                f"{PROPOSALS}/jacobi.py",
                "position = result.start[:, None] + numbers(self.window + 1, q.device)\n",
                "position = result.start[:, None] + numbers(self.window + 1, q.device) - 1\n",
            ),
        ),
        tests=(
            "tests/lossless/test_worlds.py::test_what_enters_a_window_comes_from_its_neighbour",
        ),
    ),
    Mutant(
        "neighbour-not-committed",
        "the neighbour above may be a token that is not committed",
        (
            (
                f"{PROPOSALS}/jacobi.py",
                "exists = (source >= 0) & (source < end)",
                "exists = source >= 0",
            ),
        ),
        "sjd",
        ("tests/lossless/test_worlds.py::test_what_enters_a_window_comes_from_its_neighbour",),
    ),
    Mutant(
        "segments-end-at-ties",
        "a segment ends at a token as likely as the one before",
        (
            (
                f"{RULES}/chains.py",
                "falls = q[:, 1:] < q[:, :-1]",
                "falls = q[:, 1:] <= q[:, :-1]",
            ),
        ),
        tests=(
            "tests/methods/test_sjd_plus.py::test_drafts_of_equal_probability_share_a_segment",
        ),
    ),
    Mutant(
        "kept-law-unrestricted",
        "PJD: a draft that stays keeps the law of all tokens, not of those that would stay",
        (
            (
                f"{METHODS}/orders.py",
                "law = normalised(law * passes, law)",
                "law = normalised(law, law)",
            ),
        ),
        "pjd",
        ("tests/lossless/test_worlds.py::test_a_draft_that_stays_has_its_plain_law",),
    ),
    Mutant(
        "changes-not-paired",
        "the interval of a change between runs adds their deviations instead of pairing them",
        (
            (
                "lanternbench/measure/change.py",
                "_half_width(moved_new - moved_old, tests)",
                "_half_width(moved_new + moved_old, tests)",
            ),
            (
                "lanternbench/measure/change.py",
                "_half_width(moved_new / new - moved_old / old, tests)",
                "_half_width(moved_new / new + moved_old / old, tests)",
            ),
        ),
        tests=(
            "tests/measure/test_compare.py::test_prompts_that_differ_do_not_widen_the_interval_of_a_change",
        ),
    ),
    Mutant(
        "grids-start-by-rows",
        "GLM-Image: the grid after one wider than high begins too early",
        (
            (
                "lanternbench/models/glm_image/checkpoint.py",
                "start += max(rows, columns)",
                "start += rows",
            ),
        ),
        tests=(
            "tests/models/test_glm_image.py::test_the_grid_after_a_wide_one_begins_after_its_columns",
        ),
    ),
    Mutant(
        "nothing-compared",
        "verify compares nothing on tables",
        (
            (
                "lanternbench/lossless/__init__.py",
                '            deviations["within the bound"] = self.tv - loss\n'
                "        return deviations\n",
                '            deviations["within the bound"] = self.tv - loss\n        return {}\n',
            ),
        ),
        tests=("tests/lossless/test_worlds.py::test_a_method_is_held_against_all_that_it_claims",),
    ),
    Mutant(
        "row-loss-from-the-third-token",
        "the loss of several rows leaves out the second token of an image",
        (
            (
                "lanternbench/lossless/exact.py",
                "for i in range(1, self.tables.length):",
                "for i in range(2, self.tables.length):",
            ),
        ),
        tests=("tests/lossless/test_worlds.py::test_every_drawn_token_of_rows_has_its_loss",),
    ),
    Mutant(
        "p-value-of-zero",
        "the sampled permutation test leaves out the observed pattern",
        (
            (
                "lanternbench/measure/statistics.py",
                "return (1 + hits) / (1 + n)",
                "return hits / n",
            ),
        ),
        tests=(
            "tests/measure/test_statistics.py::test_a_sampled_p_value_counts_the_observed_pattern",
        ),
    ),
    Mutant(
        "noise-of-two-positions",
        "two image positions share their noise",
        (
            (
                "lanternbench/engine/state.py",
                "return self.drawn(p, start + depth)",
                "return self.drawn(p, start + depth // 2)",
            ),
        ),
        "eagle-2",
        ("tests/engine/test_noise.py::test_every_lossless_method_draws_the_tokens_of_ar",),
    ),
    Mutant(
        "noise-of-the-step",
        "shared noise depends on the step",
        (
            (
                "lanternbench/engine/state.py",
                "return perturbed(p, self.noise(self.now.noise, position, p))",
                "return perturbed(p, self.noise(self.now.noise, position + self.steps, p))",
            ),
        ),
        "sjd",
        ("tests/engine/test_noise.py::test_every_lossless_method_draws_the_tokens_of_ar",),
    ),
    Mutant(
        "noise-accepts-any-child",
        "with shared noise a child is accepted that the target did not draw",
        (
            (
                "lanternbench/engine/verify.py",
                "return draft.tokens == best.gather(1, parent)",
                "return at(rows_at(q, parent), draft.tokens) > 0.3",
            ),
        ),
        "eagle-1",
        ("tests/engine/test_noise.py::test_every_lossless_method_draws_the_tokens_of_ar",),
    ),
)
