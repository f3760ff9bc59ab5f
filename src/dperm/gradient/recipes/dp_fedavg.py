"""DP-FedAvg (McMahan, Ramage, Talwar, Zhang 2018): training in rounds, in each of which some clients train locally."""

from __future__ import annotations

from dperm import _validate as check
from dperm.gradient.bounding import Bounding, Clip
from dperm.gradient.plan import Constant, Plan
from dperm.gradient.post_processing import Identity, Post
from dperm.gradient.query import LocalUpdate
from dperm.gradient.recipes.recipe import recipe
from dperm.gradient.sampling import Sampler, samplings
from dperm.gradient.update import SGD, Update
from dperm.objectives import RECORD


@recipe
def dp_fedavg(
    *,
    noise_multiplier: float,
    public_size: int,
    rounds: int,
    expected_cohort: float,
    local_steps: int,
    local_learning_rate: float,
    local_batch_size: int | None = None,
    local_momentum: float = 0.0,
    clipping_norm: float | None = None,
    bounding: Bounding | None = None,
    update: Update | None = None,
    sampling: str = "poisson",
    post: Post | None = None,
) -> Plan:
    """`rounds` rounds, in each of which about `expected_cohort` of `public_size` clients train locally, from the released model.

    A client takes `local_steps` steps of SGD with `local_learning_rate` and `local_momentum`, each on `local_batch_size` of its
    own rows (None: all of them). How far that moves the model is clipped at `clipping_norm`, or bounded by `bounding`:
    `AdaptiveClip` follows a quantile of the updates' lengths (Andrew et al. 2021), `PerLayer` clips each layer by itself. The sum
    is released with noise, and divided by the constant `expected_cohort`, whoever took part.

    `update` is the server's optimiser, which takes the mean update for a gradient (Reddi et al. 2021): SGD(1.0), which averages
    models, by default; with momentum FedAvgM, Adam FedAdam.

    `sampling`: "poisson", each client by itself with probability expected_cohort ÷ public_size; "fixed_order", where each client
    joins one of public_size ÷ expected_cohort groups, by a coin of its own, and groups take turns: charged without amplification,
    as if everybody knew who is in which; "truncated_poisson", "fixed_size" (replace-one), "balls_and_bins", "reshuffled".

    ValueError for settings without meaning.
    """
    if (clipping_norm is None) == (bounding is None):
        raise ValueError("Expected exactly one of clipping_norm and bounding.")
    rounds = check.integer("rounds", rounds)
    known = samplings()
    sampler = _cohorts(known[check.choice("sampling", sampling, known)], public_size, expected_cohort, rounds)
    local = LocalUpdate(local_steps, local_learning_rate, local_batch_size, local_momentum)
    bounding = bounding or Clip(clipping_norm or 0.0)
    noise = Constant(noise_multiplier)
    return Plan(sampler, bounding, noise, update or SGD(1.0), rounds, public_size, post or Identity(), query=local)


def _cohorts(kind: type[Sampler], public_size: int, expected_cohort: float, rounds: int) -> Sampler:
    """How clients are drawn. ValueError for draws of rows, and for rounds that end within an epoch of the sampler."""
    check.positive("expected_cohort", expected_cohort)
    if kind.by_rows:
        raise ValueError(f"Expected a sampler that draws clients, got {kind.words}, which draws their rows.")
    if expected_cohort > (most := kind.largest_batch(public_size, RECORD)):
        raise ValueError(
            f"Expected expected_cohort of at most {most:g} of {public_size} clients with {kind.words} sampling, got "
            f"{expected_cohort:g}; all clients in every round are sampling='poisson' with expected_cohort=public_size."
        )
    passes = max(1, round(rounds * min(1.0, expected_cohort / public_size)))
    sampler, _ = kind.for_batches(public_size, expected_cohort, passes, RECORD)
    if rounds % sampler.period:
        raise ValueError(
            f"Expected rounds as a multiple of {sampler.period}, got {rounds}: in {sampler.words} sampling clients take turns in "
            f"{sampler.period} groups (public_size ÷ expected_cohort, rounded up). Poisson sampling takes any number of rounds."
        )
    return sampler
