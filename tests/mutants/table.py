"""The mutations: what is broken, where, and which tests should see it.

Each row is one plausible slip: a sign, a direction, an inverse, a denominator, a step too far, a
forgotten mask, a stale value, the other window.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One mutation."""

    name: str
    """What goes wrong, in words."""
    function: str
    """Qualified name of the function or class; a nested function belongs to the one around it."""
    fragment: str
    """What the mutation replaces: exactly once in the source of the function."""
    replacement: str
    tests: tuple[str, ...]
    """Node ids of pytest; one of them has to fail on an assertion."""
    harmless: str = ""
    """Why no test can see it, where none can."""


def _in(file: str, *rows: tuple[str, str, str, str, str]) -> list[Mutant]:
    """Rows whose tests are in one file, named without their common beginning and separated by blanks."""
    return [
        Mutant(name, function, old, new, tuple(f"tests/{file}.py::test_{test}" for test in tests.split()))
        for name, function, old, new, tests in rows
    ]


BATCHES = [
    *_in(
        "test_algorithms",
        (
            "one finite number is enough for a batch to be usable",
            "all_finite",
            "jnp.all(",
            "jnp.any(",
            "a_batch_that_is_not_finite_is_refused_bit_for_bit",
        ),
        (
            "padding keeps what it held",
            "zero_padding",
            "where_mask(batch.mask, values)",
            "values",
            "padding_filled_with_nan_changes_nothing",
        ),
        (
            "a bad batch stays in the history",
            "History.push",
            "batch.mask & usable",
            "batch.mask",
            "a_batch_that_is_not_finite_is_refused_bit_for_bit",
        ),
    ),
    *_in(
        "test_weights",
        (
            "the oldest batch first",
            "History.push",
            "[new[None], old[:-1]]",
            "[old[1:], new[None]]",
            "weights_are_ratios_of_probabilities_newest_first",
        ),
    ),
    *_in(
        "test_policies",
        (
            "statistics of the normaliser are parameters",
            "split_parameters",
            "not frozen(node) and",
            "",
            "statistics_are_no_parameters",
        ),
    ),
]

COLLECTING = [
    *_in(
        "test_collect",
        (
            "an episode comes back to life after its end",
            "Episodes.__call__",
            "alive & ~_ended(step)",
            "~_ended(step)",
            "what_comes_after_the_end_of_an_episode_is_padding",
        ),
        (
            "returns of whole episodes count padding",
            "Episodes.__call__",
            "axis=1, where=batch.mask",
            "axis=1",
            "whole_episodes_end_where_the_environment_says",
        ),
        (
            "an episode that was cut goes on",
            "_ended",
            "step.terminated | step.truncated",
            "step.terminated",
            "steps_never_cross_an_episode_and_count_returns_exactly",
        ),
        (
            "the clock stands still",
            "Steps.__call__",
            "going = (step.state, time + 1, total)",
            "going = (step.state, time, total)",
            "steps_never_cross_an_episode_and_count_returns_exactly",
        ),
        (
            "a return goes on into the next episode",
            "Steps.__call__",
            "jnp.zeros((), jnp.int32), jnp.zeros(()))",
            "jnp.zeros((), jnp.int32), total)",
            "steps_never_cross_an_episode_and_count_returns_exactly",
        ),
        (
            "the successor is the observation itself",
            "_act",
            "next_observations=step.observation",
            "next_observations=observation",
            "whole_episodes_end_where_the_environment_says",
        ),
        (
            "actions and transitions share their random numbers",
            "_act",
            "jax.random.fold_in(key, 2 * time + 1)",
            "jax.random.fold_in(key, 2 * time)",
            "transitions_do_not_depend_on_how_the_action_was_drawn",
        ),
        (
            "a draw from the occupancy measure walks a step too far",
            "Draws.__call__",
            "carry[1] < horizon",
            "carry[1] <= horizon",
            "draws_follow_the_occupancy_measure",
        ),
        (
            "the value of a draw lacks 1/(1 − γ)",
            "_drawn",
            "[:, 0] / (1 - discount)",
            "[:, 0]",
            "draws_follow_the_occupancy_measure",
        ),
        (
            "every copy draws the same",
            "copy_keys",
            "jax.random.fold_in(key, copy)",
            "jax.random.fold_in(key, 0 * copy)",
            "a_draw_depends_on_its_copy_alone",
        ),
    ),
    *_in(
        "test_theory_lqc",
        (
            "first and later states swapped in the occupancy measure of LQC",
            "LQC.draw_states",
            "(count,)) >= self.discount",
            "(count,)) < self.discount",
            "draws_from_the_occupancy_measure_are_those_of_walks",
        ),
    ),
    *_in(
        "test_streams",
        (
            "host: the same seeds of resets in every iteration",
            "HostCollector.__call__",
            "self.stream, iteration, copy % self.copies",
            "self.stream, 0, copy % self.copies",
            "every_reset_on_the_host_has_a_seed_of_its_own",
        ),
        (
            "host: the same seeds of resets in both streams",
            "HostCollector.__call__",
            "self.stream, iteration, copy % self.copies",
            "0, iteration, copy % self.copies",
            "every_reset_on_the_host_has_a_seed_of_its_own",
        ),
        (
            "host: the same seeds of resets in all copies of a seed",
            "HostCollector.__call__",
            "iteration, copy % self.copies, step)",
            "iteration, 0, step)",
            "every_reset_on_the_host_has_a_seed_of_its_own",
        ),
        (
            "host: the Fisher collector gets the gradient's stream",
            "_HostRun.__init__",
            "collector, seeds, stream)",
            "collector, seeds, 0)",
            "the_independent_batch_on_the_host_has_seeds_and_actions_of_its_own",
        ),
        (
            "host: the Fisher batch draws its actions with the gradient's keys",
            "_iteration_keys",
            "_collecting_keys(key, index)[stream]",
            "_collecting_keys(key, index)[0]",
            "the_independent_batch_on_the_host_has_seeds_and_actions_of_its_own",
        ),
        (
            "host: `Steps` begin anew in every iteration",
            "HostCollector.__call__",
            "if self.whole or not self.started:",
            "if True:",
            "steps_go_on_where_the_last_batch_ended",
        ),
        (
            "host: the key of an action leaves out the step",
            "_sampler",
            "jax.random.fold_in(key, step)",
            "jax.random.fold_in(key, 0 * step)",
            "the_host_draws_the_actions_of_the_compiled_engine",
        ),
        (
            "host: log-probabilities are not filled in",
            "_learn_from_host",
            "with_log_probs(policy, found.batch)",
            "found.batch",
            "log_probabilities_on_the_host_are_those_of_the_policy_that_acted",
        ),
    ),
    *_in(
        "test_host",
        (
            "host: our limit cuts a step too late",
            "HostCollector.__call__",
            "self.times + 1 >= self.limit",
            "self.times >= self.limit",
            "a_limit_of_ours_cuts_episodes",
        ),
        (
            "host: a return goes on into the next episode",
            "HostCollector.__call__",
            "self.times[over], self.totals[over], began[over] = 0, 0.0, t + 1",
            "self.times[over], began[over] = 0, t + 1",
            "no_transition_crosses_the_end_of_an_episode[ours]",
        ),
        (
            "host: a vector that resets itself gives the first observation of the next episode as successor",
            "GymVector.step",
            'self._row("step", infos["final_obs"][i], successors[i])',
            "pass",
            "no_transition_crosses_the_end_of_an_episode",
        ),
    ),
]

ADVANTAGES = [
    *_in(
        "test_advantages",
        (
            "V-trace: ratio inverted",
            "Advantages.__call__",
            "jnp.minimum(where_mask(mask, log_ratio), 80.0)",
            "jnp.minimum(-where_mask(mask, log_ratio), 80.0)",
            "vtrace_takes_the_ratio_as_it_is_and_corrects_the_targets",
        ),
        (
            "V-trace: targets from advantages instead of corrections",
            "Advantages.__call__",
            "targets = values + corrections",
            "targets = values + advantages",
            "vtrace_takes_the_ratio_as_it_is_and_corrects_the_targets",
        ),
        (
            "V-trace: ρ̄ cuts c",
            "Advantages.__call__",
            "jnp.minimum(ratio, self.truncate_c)",
            "jnp.minimum(ratio, self.truncate_rho)",
            "vtrace_takes_the_ratio_as_it_is_and_corrects_the_targets",
        ),
        (
            "`standardise` without centring",
            "Advantages.__call__",
            "centred = advantages - _mean(advantages, mask)",
            "centred = advantages",
            "standardised_advantages_have_mean_zero_and_deviation_one",
        ),
        (
            "λ left out",
            "Advantages.__call__",
            "else self.gae_lambda)",
            "else 1.0)",
            "vtrace_takes_the_ratio_as_it_is_and_corrects_the_targets",
        ),
        (
            "an episode that was cut is worth nothing afterwards",
            "vtrace",
            "jnp.where(batches.terminated, 0, next_values)",
            "jnp.where(batches.terminated | batches.truncated, 0, next_values)",
            "termination_and_truncation_by_hand",
        ),
        (
            "an episode that terminated goes on with V",
            "vtrace",
            "jnp.where(batches.terminated, 0, next_values)",
            "next_values",
            "termination_and_truncation_by_hand",
        ),
        (
            "advantages reach over the end of an episode that was cut",
            "vtrace",
            "batches.terminated | batches.truncated | ~mask, 0, decay",
            "batches.terminated | ~mask, 0, decay",
            "termination_and_truncation_by_hand",
        ),
        (
            "the advantage counts the ratio of its own action",
            "vtrace",
            "return δ + decay * following, corrections",
            "return rho * δ + decay * following, corrections",
            "vtrace_equals_a_direct_double_loop",
        ),
        (
            "returns reach over the end of an episode",
            "returns_to_go",
            "jnp.where(ended | ~mask, 0, discount)",
            "jnp.where(~mask, 0, discount)",
            "returns_to_go_equal_a_double_loop",
        ),
        (
            "the decay of the later step",
            "discounted_sums",
            "value_sooner + decay_sooner * value_later",
            "value_sooner + decay_later * value_later",
            "returns_to_go_equal_a_double_loop",
        ),
        (
            "a mean over padding too",
            "_mean",
            "jnp.maximum(mask.sum(), 1)",
            "mask.size",
            "baselines",
        ),
        (
            "the linear baseline is fitted to padding",
            "linear_values",
            "where_mask(mask, returns).reshape(-1)",
            "returns.reshape(-1)",
            "the_linear_baseline_finds_a_quadratic_value",
        ),
        (
            "exact advantages keep the baseline's mean",
            "Advantages.__call__",
            'elif self.baseline == "mean":',
            'if self.baseline == "mean":',
            "exact_advantages_are_those_of_the_current_policy",
        ),
    ),
]

CRITIC = [
    *_in(
        "test_critic",
        (
            "the critic is refitted before the advantages are taken",
            "judge",
            "estimates = algorithm.advantages(newest, state.policy, algorithm.discount, log_ratio, state.critic, oracle)",
            "estimates = algorithm.advantages(newest, state.policy, algorithm.discount, log_ratio, state.critic, oracle)\n"
            "    targets = estimates.targets\n"
            "    fitted = None if state.critic is None else algorithm.critic.refit(\n"
            "        state.critic, newest.observations, targets, newest.mask, key\n"
            "    )\n"
            "    estimates = algorithm.advantages(newest, state.policy, algorithm.discount, log_ratio, fitted, oracle)",
            "advantages_are_taken_before_the_critic_sees_their_batch",
        ),
        (
            "new units move V",
            "_in_units",
            "old.spread + old.mean - new.mean",
            "old.spread - old.mean + new.mean",
            "other_units_leave_the_values_alone",
        ),
        (
            "the critic of a batch is fitted to the window",
            "Critic.refit",
            'if self.fit == "batch":',
            'if self.fit == "window":',
            "the_batch_is_the_newest_of_the_window",
        ),
        (
            "statistics of the critic count old batches again",
            "Critic.refit",
            "seeing(rows[:newest], real[:newest])",
            "seeing(rows, real)",
            "statistics_count_every_batch_once",
        ),
        (
            "a critic without data is fitted all the same",
            "Critic.refit",
            "all_finite(fitted) & real.any()",
            "all_finite(fitted)",
            "a_fit_that_cannot_be_leaves_the_critic_alone",
        ),
        (
            "a critic that is not finite is kept",
            "Critic.refit",
            "all_finite(fitted) & real.any()",
            "real.any()",
            "a_fit_that_cannot_be_leaves_the_critic_alone",
        ),
        (
            "the critic descends uphill",
            "Critic.refit",
            "w + self.learning_rate * jnp.asarray(updates)",
            "w - self.learning_rate * jnp.asarray(updates)",
            "it_fits_values_of_any_scale_and_generalises",
        ),
        (
            "the critic's loss counts the rows of the next minibatch",
            "Critic.refit",
            "where_mask(inside, errors**2)",
            "errors**2",
            "padding_is_not_seen",
        ),
        (
            "spread of all rows, padding too",
            "Units.of",
            "where_mask(mask, (rows - mean) ** 2)",
            "((rows - mean) ** 2)",
            "padding_is_not_seen",
        ),
        (
            "the spread is a variance",
            "Units.of",
            "jnp.sqrt(variance)",
            "variance",
            "it_fits_values_of_any_scale_and_generalises",
        ),
        (
            "a minibatch has a row of the next one",
            "sweep",
            "(at < end)",
            "(at <= end)",
            "every_row_is_visited_once_an_epoch",
        ),
        (
            "every epoch in the same order",
            "sweep",
            "jax.random.fold_in(key, epoch)",
            "jax.random.fold_in(key, 0)",
            "every_epoch_has_an_order_of_its_own",
        ),
        (
            "padding is visited",
            "sweep",
            "jnp.where(mask, draws, 2.0)",
            "draws",
            "every_row_is_visited_once_an_epoch",
        ),
        (
            "an epoch too many",
            "sweep",
            "loop[0] < epochs",
            "loop[0] <= epochs",
            "every_row_is_visited_once_an_epoch",
        ),
    ),
]

WEIGHTS = [
    *_in(
        "test_weights",
        (
            "ω inverted",
            "recall",
            "log_ratio = log_probs - rows.log_probs",
            "log_ratio = rows.log_probs - log_probs",
            "weights_are_ratios_of_probabilities_newest_first",
        ),
        (
            "truncation from below",
            "Weights.__call__",
            "jnp.minimum(log_ratio, jnp.log(self.truncate))",
            "jnp.maximum(log_ratio, jnp.log(self.truncate))",
            "truncation_and_self_normalisation",
        ),
        (
            "padding has weights",
            "Weights.__call__",
            "return where_mask(mask, jnp.exp(jnp.minimum(log_ratio, jnp.log(self.truncate))))",
            "return jnp.exp(jnp.minimum(log_ratio, jnp.log(self.truncate)))",
            "truncation_and_self_normalisation",
        ),
        (
            "self-normalisation and its absence swapped",
            "Weights.normaliser",
            "if self.self_normalise else importance",
            "if not self.self_normalise else importance",
            "truncation_and_self_normalisation",
        ),
        (
            "effective sample size without its square",
            "effective_sample_size",
            "jnp.sum(weights, -1) ** 2",
            "jnp.sum(weights, -1)",
            "an_unchanged_policy_has_weights_of_one",
        ),
        (
            "denominator over the whole history instead of the window",
            "Recall.coefficients",
            "self.rule.normaliser(weights, importance)",
            "self.rule.normaliser(self.weights, self.importance)",
            "a_shorter_window_is_averaged_over_itself_alone",
        ),
        (
            "occupancy ratio inverted",
            "recall",
            "log_occupancy(observations, policy, oracle) - rows.log_occupancy",
            "rows.log_occupancy - log_occupancy(observations, policy, oracle)",
            "occupancy_ratio_of_a_table",
        ),
        (
            "states are weighed by γ instead of γ^t",
            "recall",
            "discount**rows.times",
            "discount",
            "discounted_states",
        ),
        (
            "effective sample size of an age counts episodes of others",
            "Recall.effective_sample_size",
            "self.packing.unpack(self.weights).reshape(len(self.packing.counts), -1)",
            "self.packing.unpack(self.weights).reshape(-1, len(self.packing.counts)).T",
            "an_unchanged_policy_has_weights_of_one",
        ),
    ),
    *_in(
        "test_trust_region",
        (
            "standard error between rows instead of trajectories",
            "Recall.average",
            "self.packing.unpack(importance * (values[: len(importance)] - mean)).sum(-1)",
            "self.packing.unpack(importance * (values[: len(importance)] - mean))",
            "standard_errors_are_taken_between_trajectories",
        ),
        (
            "standard error without the correction for the mean",
            "Recall.average",
            "* trajectories / jnp.maximum(trajectories - 1, 1)",
            "",
            "standard_errors_are_taken_between_trajectories",
        ),
    ),
    *_in(
        "test_scores",
        (
            "a window's rows are those of the whole history",
            "Packing.prefix",
            "self.counts[:window].sum()",
            "self.counts.sum()",
            "packing_keeps_every_transition_newest_first",
        ),
        (
            "packed padding is the first row",
            "Packing.of",
            "fill_value=mask.size)",
            "fill_value=0)",
            "packing_keeps_every_transition_newest_first",
        ),
    ),
    *_in(
        "test_algorithms",
        (
            "packed: a row of an older batch joins the window",
            "Recall._newest",
            "jnp.arange(bound) < count",
            "jnp.arange(bound) <= count",
            "packed_windows_take_the_same_step",
        ),
    ),
]

ESTIMATES = [
    *_in(
        "test_scores",
        (
            "a gradient without advantages",
            "policy_gradient",
            "coefficients * advantages",
            "coefficients",
            "gradient_is_the_weighed_sum_of_scores",
        ),
        (
            "the matrix of F from squared coefficients",
            "Fisher.matrix",
            "jnp.sqrt(_of_each(scores, c))",
            "_of_each(scores, c)",
            "fisher_on_unit_vectors_is_its_matrix",
        ),
        (
            "products with F leave out coefficients",
            "Fisher.mv",
            "_of_each(scores, c) * scores.push(vector)",
            "scores.push(vector)",
            "fisher_on_unit_vectors_is_its_matrix",
        ),
        (
            "the upper right quarter of F is not transposed",
            "Fisher.matrix",
            "[top @ top.T, cross.T]",
            "[top @ top.T, cross.T[::-1, ::-1]]",
            "fisher_on_unit_vectors_is_its_matrix",
        ),
        (
            "coefficients belong to other rows of a state",
            "_of_each",
            "jnp.repeat(coefficients, scores.rank)",
            "jnp.tile(coefficients, scores.rank)",
            "fisher_on_unit_vectors_is_its_matrix",
        ),
        (
            "sampled rows are not weighed by how rarely they are drawn",
            "Fisher.sample",
            "coefficients[indices] / expected",
            "coefficients[indices] * len(part) / rows",
            "a_sample_of_rows_estimates_the_fisher_matrix_and_misses_no_large_score",
        ),
        (
            "the last chunk that holds data is left out",
            "fold",
            "-(-count // size)",
            "count // size",
            "chunks_change_nothing",
        ),
        (
            "rows beyond the whole chunks are left out",
            "fold",
            "return total + chunk(whole * size, rest) if rest else total",
            "return total",
            "chunks_change_nothing",
        ),
        (
            "products with J leave out biases",
            "LayerScores.push",
            "total = total + vector[at : at + outs] @ δ",
            "pass",
            "layers_equal_differentiation_and_the_matrix",
        ),
        (
            "norms of scores leave out biases",
            "SharedScores.squared_norms",
            "(square(x) + bias)[:, None]",
            "square(x)[:, None]",
            "scores_that_share_a_state_equal_differentiation",
        ),
        (
            "scores do not pass the activation on the way back",
            "_through_layers",
            "slope(layer.weight.T @ deltas[-1])[0]",
            "layer.weight.T @ deltas[-1]",
            "layers_equal_differentiation_and_the_matrix",
        ),
    ),
    *_in(
        "test_algorithms",
        (
            "the Fisher matrix over the window of the gradient",
            "_fisher",
            "window = algorithm.windows[1]",
            "window = algorithm.windows[0]",
            "gradient_and_fisher_matrix_have_windows_of_their_own",
        ),
    ),
]

SOLVING = [
    *_in(
        "test_solve",
        (
            "the Woodbury identity without 1/ε",
            "_sample_space",
            "fisher.scores.push(g)))) / damping",
            "fisher.scores.push(g))))",
            "all_methods_agree",
        ),
        (
            "the Woodbury identity adds where it should subtract",
            "_sample_space",
            "(g - fisher.scores.pull",
            "(g + fisher.scores.pull",
            "all_methods_agree",
        ),
        (
            "damping multiplies instead of adding",
            "_factored",
            "matrix + damping * jnp.eye(len(matrix))",
            "matrix * (1 + damping * jnp.eye(len(matrix)))",
            "all_methods_agree",
        ),
        (
            "conjugate gradients forget their scale",
            "Solver._conjugate_gradients",
            "solution.value * (scale / damping)",
            "solution.value * scale",
            "all_methods_agree",
        ),
        (
            "the residual is that without damping",
            "Solver.__call__",
            "fisher.mv(direction) + damping * direction",
            "fisher.mv(direction)",
            "all_methods_agree",
        ),
        (
            "the residual is not relative",
            "Solver.__call__",
            "jnp.linalg.norm(gradient - product) / jnp.where(norm > 0, norm, 1)",
            "jnp.linalg.norm(gradient - product)",
            "all_methods_agree",
        ),
        (
            "a warm start in other units",
            "Solver._conjugate_gradients",
            "guess * (damping / scale)",
            "guess * (scale / damping)",
            "a_preconditioner_and_a_good_guess_save_steps",
        ),
    ),
    *_in(
        "test_trust_region",
        (
            "the first length is short by √2",
            "length_to_radius",
            "jnp.sqrt(2 * radius",
            "jnp.sqrt(radius",
            "the_first_length_reaches_the_radius_and_backtracking_counts_right",
        ),
        (
            "a line search lengthens its steps",
            "backtrack",
            "search.length * shrink",
            "search.length / shrink",
            "the_first_length_reaches_the_radius_and_backtracking_counts_right",
        ),
        (
            "a line search shortens once too often",
            "backtrack",
            "search.backtracks < most",
            "search.backtracks <= most",
            "the_first_length_reaches_the_radius_and_backtracking_counts_right",
        ),
        (
            "KL direction in TRPO's search",
            "TRPO._passes",
            "old.kl(new, observation)",
            "new.kl(old, observation)",
            "the_line_search_bounds_the_divergence_from_the_old_policy",
        ),
        (
            "the newest batch is not checked by the trust region",
            "TRPO._passes",
            "(newest <= radius) &",
            "",
            "a_step_must_pass_on_the_newest_states_by_themselves",
        ),
        (
            "margin removed",
            "TRPO._passes",
            "MARGIN * error",
            "0 * error",
            "the_mean_divergence_stays_inside_by_three_standard_errors_between_trajectories",
        ),
        (
            "the trust region's average is over the newest states twice",
            "TRPO._passes",
            "recalled.average(kls, self.window)",
            "recalled.average(kls, 1)",
            "a_step_must_pass_on_the_states_of_the_whole_window",
        ),
        (
            "a step that makes the surrogate worse is accepted",
            "TRPO._passes",
            "(gain > 0) &",
            "",
            "a_step_must_improve_the_surrogate",
        ),
        (
            "the surrogate is the change of log-probabilities",
            "TRPO._passes",
            "jnp.expm1(change)",
            "change",
            "a_step_must_improve_the_surrogate",
        ),
        (
            "the radius of the trust region grows",
            "TRPO.update",
            "(state.iteration + 1.0) ** -self.decay",
            "(state.iteration + 1.0) ** self.decay",
            "the_radius_of_the_trust_region_decays",
        ),
        (
            "KL direction in PPO's early stop",
            "PPO._surrogate",
            "old.kl(policy, s)",
            "policy.kl(old, s)",
            "ppo_stops_by_the_divergence_from_the_old_policy",
        ),
        (
            "sign of the entropy bonus",
            "PPO._surrogate",
            "self.scaled(surrogate) + bonus",
            "self.scaled(surrogate) - bonus",
            "the_entropy_bonus_raises_the_entropy",
        ),
    ),
    *_in(
        "test_project",
        (
            "a ball's inside is stretched to its surface",
            "Ball.__call__",
            "jnp.minimum(1.0, ",
            "(",
            "box_ball_and_none",
        ),
        (
            "a box only bounds from above",
            "Box.__call__",
            "jnp.clip(x, self.low, self.high)",
            "jnp.minimum(x, self.high)",
            "box_ball_and_none",
        ),
        (
            "the floor is taken from the mass once",
            "_onto_simplex",
            "1 - values.size * floor",
            "1 - floor",
            "simplex_finds_the_nearest_distribution",
        ),
        (
            "the cut of the simplex one entry later",
            "_onto_simplex",
            "jnp.sum(descending > excess) - 1]",
            "jnp.sum(descending > excess)]",
            "simplex_finds_the_nearest_distribution",
        ),
    ),
]

POLICIES = [
    *_in(
        "test_policies",
        (
            "KL of a softmax reversed",
            "Softmax.kl",
            "jnp.sum(jax.nn.softmax(outputs) * (jax.nn.log_softmax(outputs) - jax.nn.log_softmax(other_outputs)))",
            "jnp.sum(jax.nn.softmax(other_outputs) * (jax.nn.log_softmax(other_outputs) - jax.nn.log_softmax(outputs)))",
            "entropy_kl_and_fisher_are_means_over_actions[softmax]",
        ),
        (
            "KL of a Gaussian: ratio of spreads inverted",
            "Gaussian.kl",
            "jnp.exp(2 * (self.log_std - other.log_std))",
            "jnp.exp(2 * (other.log_std - self.log_std))",
            "entropy_kl_and_fisher_are_means_over_actions[gaussian]",
        ),
        (
            "KL of a Gaussian: distance in its own units",
            "Gaussian.kl",
            "jnp.exp(-other.log_std)",
            "jnp.exp(-self.log_std)",
            "entropy_kl_and_fisher_are_means_over_actions[gaussian]",
        ),
        (
            "the Fisher matrix of log σ is 1",
            "Gaussian.fisher_root",
            "2**0.5 * eye",
            "eye",
            "entropy_kl_and_fisher_are_means_over_actions[gaussian]",
        ),
        (
            "the Jacobian of the squashing multiplies",
            "SquashedGaussian.log_prob",
            "_log_density(u, outputs, self.log_std) - jnp.log(slope)",
            "_log_density(u, outputs, self.log_std) + jnp.log(slope)",
            "squashed_gaussian_is_a_density_and_matches_scipy",
        ),
        (
            "several choices are drawn with one key",
            "MultiSoftmax.sample",
            "Softmax().sample(k, part) for k, part",
            "Softmax().sample(key, part) for k, part",
            "entropy_kl_and_fisher_are_means_over_actions",
        ),
        (
            "KL of several choices reversed",
            "MultiSoftmax.kl",
            "Softmax().kl(ours, Softmax(), theirs)",
            "Softmax().kl(theirs, Softmax(), ours)",
            "entropy_kl_and_fisher_are_means_over_actions",
        ),
        (
            "an action one too low",
            "_sample",
            ">= ceiling",
            "< ceiling",
            "softmax_matches_scipy_and_samples_by_it",
        ),
    ),
]

ALGORITHMS = [
    *_in(
        "test_algorithms",
        (
            "step sizes grow",
            "AbstractAscent.rate",
            "** -self.decay",
            "** self.decay",
            "schedules_and_optax_optimizers",
        ),
        (
            "step sizes an iteration ahead",
            "AbstractAscent.rate",
            "iteration + 1.0",
            "iteration + 2.0",
            "schedules_and_optax_optimizers",
        ),
        (
            "descent",
            "AbstractAscent.ascend",
            "update(-direction, ",
            "update(direction, ",
            "vanilla_updates_equal_their_formula",
        ),
        (
            "the gradient is multiplied by 1 − γ",
            "AbstractAscent.scaled",
            "gradient / (1 - self.discount)",
            "gradient * (1 - self.discount)",
            "exact_ratios_make_the_reuse_estimator_unbiased",
        ),
        (
            "a refused update is kept",
            "accept",
            "jnp.where(refused > 0, old, new)",
            "jnp.where(refused > 0, new, old)",
            "vanilla_updates_equal_their_formula",
        ),
        (
            "a direction that is not finite is no failure",
            "common_failures",
            "(GRADIENT, ~all_finite(gradient)),",
            "",
            "weights_that_overflow_are_refused",
        ),
        (
            "KL of an update reversed",
            "describe",
            "old.kl(new, observation)",
            "new.kl(old, observation)",
            "info_tells_the_truth",
        ),
        (
            "KL of an update over old states",
            "describe",
            "newest = jax.tree.map(lambda x: x[0], history.batches)",
            "newest = jax.tree.map(lambda x: x[-1], history.batches)",
            "info_tells_the_truth",
        ),
        (
            "the natural direction is not stored for the next iteration",
            "NPG.update",
            "moved = (*self.ascend(state, solution.direction), solution.direction)",
            "moved = (*self.ascend(state, solution.direction), state.direction)",
            "the_last_direction_is_where_conjugate_gradients_start",
        ),
        (
            "a failed search lowers the damping",
            "TRPO.update",
            "state.caution * CAUTION_UP, state.caution * CAUTION_DOWN",
            "state.caution * CAUTION_DOWN, state.caution * CAUTION_UP",
            "a_line_search_that_cannot_succeed_restores_the_policy_and_raises_the_damping",
        ),
        (
            "the damping never comes down again",
            "TRPO.update",
            "state.caution * CAUTION_DOWN)",
            "state.caution)",
            "a_line_search_that_cannot_succeed_restores_the_policy_and_raises_the_damping",
        ),
        (
            "PPO: the clip raises what it should lower",
            "clipped_surrogate",
            "jnp.minimum(ratio * advantages",
            "jnp.maximum(ratio * advantages",
            "the_surrogate_by_hand",
        ),
        (
            "PPO: the clip is around one where it should be around the ratio",
            "clipped_surrogate",
            "centre - clip, centre + clip",
            "1 - clip, 1 + clip",
            "the_surrogate_by_hand",
        ),
        (
            "PPO: silenced in the wrong direction",
            "silenced",
            "jnp.where(advantages > 0,",
            "jnp.where(advantages < 0,",
            "the_surrogate_by_hand",
        ),
        (
            "PPO: the ratio is to the current policy and not to the one that acted",
            "PPO._ratios",
            "weights * jnp.exp(log_probs - recalled.log_probs[rows])",
            "jnp.exp(log_probs - recalled.log_probs[rows])",
            "ppo_with_infinite_clip_and_one_full_batch_step_is_the_policy_gradient",
        ),
        (
            "PPO: a short gradient is stretched to the largest norm",
            "PPO.update",
            "jnp.minimum(1, self.max_gradient_norm",
            "(self.max_gradient_norm",
            "a_short_gradient_is_not_stretched",
        ),
        (
            "PPO: shares of silenced transitions are of all ages",
            "PPO._silenced_by_age",
            "jnp.maximum(recalled.packing.counts, 1)",
            "jnp.maximum(recalled.packing.counts.sum(), 1)",
            "shares_of_silenced_transitions_are_of_their_age",
        ),
        (
            "advantages come from the whole history",
            "judge",
            "newest = jax.tree.map(lambda x: x[: algorithm.window], history.batches)",
            "newest = jax.tree.map(lambda x: x[-algorithm.window :], history.batches)",
            "gradient_and_fisher_matrix_have_windows_of_their_own",
        ),
        (
            "the independent batch is not the Fisher matrix's",
            "reweighed_fisher",
            "history, usable, recalled = push_and_recall(",
            "history, usable, _ = push_and_recall(",
            "the_fisher_matrix_comes_from_the_independent_batch",
        ),
        (
            "explained variance of the values",
            "_explained",
            "spread(targets - values) / ",
            "spread(values) / ",
            "explained_variance_is_that_of_the_targets",
        ),
    ),
]

TRAINING = [
    *_in(
        "test_streams",
        (
            "compiled: `Steps` begin anew in every iteration",
            "_iteration",
            "dataclasses.replace(carry, collecting=collecting,",
            "dataclasses.replace(carry, collecting=carry.collecting,",
            "steps_go_on_where_the_last_batch_ended",
        ),
        (
            "compiled: the independent `Steps` begin anew in every iteration",
            "_iteration",
            "fisher_collecting=fisher_collecting)",
            "fisher_collecting=carry.fisher_collecting)",
            "steps_go_on_where_the_last_batch_ended",
        ),
        (
            "compiled: the Fisher batch draws with the gradient's key",
            "_iteration",
            "collector(key_fisher, env,",
            "collector(key_collect, env,",
            "the_independent_batch_is_another",
        ),
        (
            "compiled: both streams start from the same states",
            "_start_seeds",
            "collector.init(key_fisher, env)",
            "collector.init(key_collect, env)",
            "the_independent_batch_is_another",
        ),
        (
            "every iteration draws the same",
            "_collecting_keys",
            "jax.random.fold_in(key, index + 1)",
            "jax.random.fold_in(key, 1)",
            "the_independent_batch_is_another",
        ),
    ),
    *_in(
        "test_train",
        (
            "the independent batch is not paid for",
            "_learn",
            "collected.environment_steps + fisher.environment_steps",
            "collected.environment_steps",
            "every_way_of_collecting_trains[steps]",
        ),
        (
            "a seed goes on after its limit",
            "_learn",
            "lax.cond(before.active, go, stay)",
            "go()",
            "limits",
        ),
        (
            "a seed stops below its target",
            "_learn",
            "recent.mean() < limits.target_return",
            "recent.max() < limits.target_return",
            "limits",
        ),
        (
            "the earliest episodes count as the latest",
            "_latest",
            "[-RECENT_EPISODES:]",
            "[:RECENT_EPISODES]",
            "recent_returns_are_those_of_the_latest_twenty_episodes",
        ),
        (
            "the updates of all iterations draw the same",
            "_learn",
            "jax.random.fold_in(jax.random.fold_in(key, index + 1), 1)",
            "jax.random.fold_in(key, 1)",
            "updates_draw_anew_in_every_iteration_and_seed",
        ),
    ),
]

THEORY = [
    *_in(
        "test_theory_lqc",
        (
            "LQC: Σ₂ is not divided by K",
            "moments",
            "(sigma_2_prime - sigma_1) / (window * batch)",
            "(sigma_2_prime - sigma_1) / batch",
            "asymptotic_variance_of_the_four_cases_of_the_paper",
        ),
        (
            "LQC: Σ₂ forgets to take Σ₁ away",
            "moments",
            "noise = sigma_1 / batch + (sigma_2_prime - sigma_1) /",
            "noise = sigma_1 / batch + sigma_2_prime /",
            "asymptotic_variance_of_the_four_cases_of_the_paper",
        ),
        (
            "LQC: Σ∞ is twice as large",
            "moments",
            "-noise / (2 * drift)",
            "-noise / drift",
            "asymptotic_variance_of_the_four_cases_of_the_paper",
        ),
        (
            "LQC: variance of the gradient at θ ≠ 0",
            "gradient_variance",
            "10 + 8 * shift**2",
            "10 + 4 * shift**2",
            "gradient_variance_and_drift_agree_with_simulation",
        ),
        (
            "LQC: one lag too few in overlapping windows",
            "overlapping_variance",
            "for lag in range(1, window))",
            "for lag in range(2, window))",
            "overlapping_fisher_windows_are_correlated_as_in_simulation",
        ),
        (
            "LQC: windows overlap in the samples that they do not share",
            "fisher_correlation",
            "draws(lag), draws(fisher_window - lag)",
            "draws(fisher_window - lag), draws(lag)",
            "overlapping_fisher_windows_are_correlated_as_in_simulation",
        ),
        (
            "LQC: errors are not scaled by √α",
            "Replications.errors",
            "** (-self.case.decay / 2)",
            "** (-self.case.decay)",
            "errors_of_small_runs_have_the_variance_of_theorem_2",
        ),
        (
            "a variance interval upside down",
            "variance_interval",
            "[(1 + level) / 2, (1 - level) / 2]",
            "[(1 - level) / 2, (1 + level) / 2]",
            "intervals_of_variance_and_mean_cover_as_often_as_they_say",
        ),
        (
            "an interval of the mean from the spread of single draws",
            "mean_interval",
            "values.std(ddof=1) / np.sqrt(len(values))",
            "values.std(ddof=1)",
            "intervals_of_variance_and_mean_cover_as_often_as_they_say",
        ),
    ),
    *_in(
        "test_theory_gain",
        (
            "table: sign of the noise in Lyapunov's equation",
            "stationary_covariance",
            "solve_continuous_lyapunov(drift, -noise)",
            "solve_continuous_lyapunov(drift, noise)",
            "lyapunov_solution_is_the_kronecker_formula",
        ),
        (
            "table: Σ₁ from the Fisher matrix inverted once",
            "Moments.sigma_1",
            "self.inverse_fisher @ self.gradient_covariance @ self.inverse_fisher.T",
            "self.inverse_fisher @ self.gradient_covariance",
            "moments_of_single_draws_by_hand",
        ),
        (
            "table: reuse divides Σ₁ too",
            "Moments.noise",
            "(self.sigma_1 + self.sigma_2 / window) / self.batch",
            "(self.sigma_1 + self.sigma_2) / window / self.batch",
            "noise_that_adds_up_is_that_of_theorem_2",
        ),
        (
            "table: the drift on the wrong side",
            "Moments.drift",
            "return self.inverse_fisher @ self.hessian",
            "return self.hessian @ self.inverse_fisher",
            "drift_is_the_derivative_of_the_mean_step",
        ),
        (
            "table: the variance of G keeps the square of its mean",
            "moments",
            "@ one - np.outer(mean, mean)",
            "@ one + np.outer(mean, mean)",
            "covariance_away_from_the_optimum_is_about_the_mean",
        ),
        (
            "gain: parts of rows and columns swapped",
            "_components",
            "by_row - joint / columns, joint, by_column - joint / rows",
            "by_column - joint / rows, joint, by_row - joint / columns",
            "parts_of_a_table_made_of_known_parts",
        ),
        (
            "gain: the joint part with too many degrees of freedom",
            "_components",
            "(rows - 1) * (columns - 1)",
            "rows * columns / 2",
            "parts_of_a_table_made_of_known_parts",
        ),
        (
            "gain: the floor is the share",
            "noise_ratio",
            "1 - share * (1 - 1 / window)",
            "share + (1 - share) / window",
            "ten_iterations_have_nine_tenths_of_any_gain_and_the_floor_is_problem_dependent",
        ),
        (
            "gain: shares of the limit count the Fisher part",
            "_shares",
            "joint / (gradient + joint)",
            "joint / parts.sum()",
            "prediction_covers_the_closed_form_of_lqc",
        ),
    ),
    *_in(
        "test_theory_ode_bias",
        (
            "ODE: the solution leaves the box",
            "integrate",
            "jnp.clip(θ + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), -bound, bound)",
            "θ + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)",
            "solution_stays_in_the_box",
        ),
        (
            "ODE: a Runge-Kutta step of weight 7/6",
            "integrate",
            "(k1 + 2 * k2 + 2 * k3 + k4)",
            "(k1 + 2 * k2 + 3 * k3 + k4)",
            "solution_on_lqc_is_the_exponential",
        ),
        (
            "ODE: the inverse of the mean for the mean of the inverse",
            "mean_inverse_fisher",
            'jnp.einsum("n,nde->de", probabilities, jnp.linalg.inv(estimates + damping * jnp.eye(scores.shape[1])))',
            'jnp.linalg.inv(jnp.einsum("n,nde->de", probabilities, estimates) + damping * jnp.eye(scores.shape[1]))',
            "mean_inverse_fisher_by_enumeration_is_the_mean_over_draws_from_the_occupancy_measure",
        ),
        (
            "an outcome counts as one order of its draws",
            "unordered_draws",
            "lgamma(samples + 1) - ",
            "0 * lgamma(samples + 1) - ",
            "probabilities_of_all_outcomes_sum_to_one",
        ),
        (
            "the jackknife forgets that its groups overlap",
            "jackknife",
            "(len(without) - 1) * without.var()",
            "without.var()",
            "jackknife_of_a_mean_is_its_standard_error",
        ),
        (
            "bias: the noise of another iteration is subtracted",
            "controlled",
            "np.concatenate([np.zeros_like(total[:, :1]), total[:, :-1]], axis=1)[:, window - 1 :]",
            "total[:, window - 1 :]",
            "bias_is_the_enumerated_one_and_vanishes_with_the_step",
        ),
        (
            "bias: the mean of old samples is divided by all",
            "deviations",
            "gradient(~is_fresh) * rows / (rows - new) - exact",
            "gradient(~is_fresh) - exact",
            "bias_is_the_enumerated_one_and_vanishes_with_the_step",
        ),
        (
            "LQC draws: first and later states swapped",
            "draw_lqc",
            "jnp.where(later, policy.shift, 0)",
            "jnp.where(later, 0, policy.shift)",
            "lqc_draws_have_the_moments_of_the_occupancy_measure",
        ),
    ),
    *_in(
        "test_envs",
        (
            "a table's value after the wrong dynamics",
            "Tabular.occupancy",
            "self.discount * dynamics.T",
            "self.discount * dynamics",
            "tabular_answers_are_exact",
        ),
        (
            "a table's advantages without the value of the state",
            "Tabular.advantages",
            " - value[:, None]",
            "",
            "tabular_answers_are_exact",
        ),
    ),
]

MUTANTS = [*BATCHES, *COLLECTING, *ADVANTAGES, *CRITIC, *WEIGHTS, *ESTIMATES, *SOLVING, *POLICIES, *ALGORITHMS, *TRAINING, *THEORY]
