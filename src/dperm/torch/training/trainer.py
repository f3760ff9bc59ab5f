"""Private training of a torch model: `PrivateTrainer(...).fit(dataset)`, or its steps for a loop of your own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from dperm._remind import remind_of_budget
from dperm.gradient import PlannedRun, Policy
from dperm.objectives import PrivacyUnit
from dperm.privacy import Certificate, Relation, Risk
from dperm.release.ledger import Settlement
from dperm.torch.module_objective import Independence, ModuleObjective
from dperm.torch.training.callbacks import Callback, PrivateStep
from dperm.torch.training.fit_loop import FitLoop
from dperm.torch.training.planner import Budget, MakePlan, Planner, Recipe
from dperm.torch.training.session import TrainingSession
from dperm.torch.training.settings import FitOptions, TrainingSettings, TrainingSpec
from dperm.torch.training.unspent import Remaining, remaining_of

T = TypeVar("T")


class PrivateTrainer:
    """Trains `model` privately and certifies what it cost.

    Parameters
    ----------
    model, loss_fn : the network, and `loss_fn(outputs, targets) -> (b,)`, one loss per record (`reduction="none"`).
    optimizer : any torch optimiser over the model's trainable parameters. None: the plan's own update.
    epsilon, delta : the budget; the noise is the least that keeps within it. `delta` is always needed. `epsilon` may be a `Risk`:
        what an attacker may achieve at most.
    noise_multiplier : instead of `epsilon`: noise standard deviation ÷ sensitivity. Not for recipes that choose their noise.
    epochs, expected_batch_size, clipping_norm : of DP-SGD with Poisson sampling (`dperm.gradient.recipes.dp_sgd`); where they
        and `plan` are left out, by public rule 20, 256 (at most a quarter of the records), and 1.
    plan : another recipe, with these as its settings or bound by functools.partial; a function
        (noise_multiplier, public_size) → `Plan`; or a `Plan` with its noise.
    relation : "add_or_remove_one" (the number of records is private) or "replace_one" (it is public).
    public_size : publicly known number of records. None under add/remove: released with noise, at 5 % of
        epsilon, or as the recipe says. Of persons, where `max_rows_per_unit` is given.
    max_rows_per_unit : with `groups` in `fit`, the most records that are used of a person; public. A person's loss is then the
        mean of these, and what is said of a record is said of a person.
    spent : certificates of earlier releases from the same records (normalisation, other models) that `epsilon` is to cover too.
    physical_batch_size : most records at once in memory. None: measured on the first records.
    autocast : run the forward in this type, for example `torch.bfloat16`; norms and sums stay in single precision.
    collate_fn, num_workers : as for a DataLoader.
    views : how many views of a record its loss is the mean of (augmentation multiplicity; De et al. 2022). A record is read that
        many times, so that a data set or `transform` that draws gives it other inputs each time, and what the model and the loss
        draw is drawn for each view. Their mean has one gradient, which is clipped: the certificate is the same as for one view,
        and time and memory are those of as many records.
    transform : transform(inputs) -> inputs, called with one record's inputs, without an axis for the batch, whenever they are
        read for training. It draws from the global generators of torch, NumPy and Python.
    checkpoint : a folder for checkpoints, from which an interrupted run can be continued.
    label : names the data set in the spend log.
    random_state : None for real noise. A fixed seed is for tests: the certificate then says "not private".
    independence : "proved": the model sees one record at a time, so that none can influence another. "tested": it sees whole
        batches, for what cannot run so (sharded parameters); that it keeps records apart is looked at, and is an assumption of
        yours that the certificate states.

    Raises ValueError or TypeError for anything unusable before anything is charged. Whatever fails later, the charge stands.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        plan: Policy | MakePlan | Recipe | None = None,
        *,
        epsilon: float | Risk | None = None,
        delta: float,
        noise_multiplier: float | None = None,
        epochs: float | None = None,
        expected_batch_size: float | None = None,
        clipping_norm: float | None = None,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        public_size: int | None = None,
        max_rows_per_unit: int | None = None,
        spent: Sequence[Certificate] = (),
        physical_batch_size: int | None = None,
        autocast: torch.dtype | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        views: int = 1,
        transform: Callable[[Any], Any] | None = None,
        checkpoint: str | Path | None = None,
        label: str = "",
        random_state: Any = None,
        independence: Independence | str = "proved",
    ) -> None:
        settings = TrainingSettings(
            model=model, loss_fn=loss_fn, optimizer=optimizer, unit=PrivacyUnit(max_rows_per_unit), spent=tuple(spent),
            physical_batch_size=physical_batch_size, collate_fn=collate_fn, num_workers=num_workers,
            views=views, transform=transform, checkpoint=None if checkpoint is None else Path(checkpoint), label=label,
            random_state=random_state,
        )  # fmt: skip
        objective = ModuleObjective(
            *settings.of_a_record(), relation=relation, autocast=autocast, unit=settings.unit, independence=independence
        )
        budget = Budget(epsilon, delta, noise_multiplier, tuple(certificate.event for certificate in settings.spent))
        if isinstance(budget.epsilon, float):
            remind_of_budget(budget.epsilon, budget.delta, stacklevel=2)
        planner = Planner(
            plan, budget, public_size=public_size,
            epochs=epochs, expected_batch_size=expected_batch_size, clipping_norm=clipping_norm,
        )  # fmt: skip
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.settings, self._planner = settings, planner
        self._session = self._new_session(FitOptions())

    # What a run left

    @property
    def certificate(self) -> Certificate | None:
        """What the run costs and on what assumptions; None before the charge."""
        return self._session.certificate

    @property
    def total_certificate(self) -> Certificate:
        """The certificate of this run and of what was `spent` before it: what all of it costs."""
        spent, budget, run = self.settings.spent, self._planner.budget, self._session.run
        if self.certificate is None:
            raise ValueError("Expected a run: nothing is charged yet.")
        if not spent:
            return self.certificate
        # what had to be paid for again may exceed what was asked for: the sum is stated, and no target
        again = run is not None and len(run.charged.events) > 1
        target = budget.epsilon if isinstance(budget.epsilon, float) and not again else None
        return Certificate.of_all([*spent, self.certificate], budget.delta, target)

    @property
    def epsilon_spent(self) -> float:
        """ε of the steps so far and of what they rest on, at `delta`: what `history` has by epoch, also in a loop of your own.

        The charge is `certificate`'s, whatever ran; by a Rényi filter both are the same from the first step on. What was
        `spent` before is not in it.
        """
        return 0.0 if (run := self._session.run) is None else run.epsilon

    @property
    def remaining(self) -> Remaining | None:
        """What is left of the steps that were charged, and what those taken and those left cost alone; None before the
        charge. A run that stopped may go on with them by ``resume=True``, at no further charge."""
        return None if (run := self._session.run) is None else remaining_of(run)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One dict per expected epoch: epoch, step, epsilon so far, validation scores."""
        return [] if (run := self._session.run) is None else run.history

    @property
    def plan(self) -> Policy | None:
        """What runs, with its noise and its update; None before the run."""
        return None if (run := self._session.run) is None else run.plan

    @property
    def trace(self) -> list[dict[str, Any]]:
        """What an adaptive plan chose in each of its epochs: rates, noise, clipping norms. Public; empty for other plans."""
        return [] if (run := self._session.run) is None else run.gradients.trace()

    @property
    def private_trace(self) -> dict[str, Any]:
        """What some plans tell the data holder alone, such as what each record has spent, as arrays by name. Not private."""
        return {} if (run := self._session.run) is None else run.gradients.private()

    @property
    def steps_lost(self) -> int:
        """Steps that were paid for and reserved before an interruption, and will not run."""
        return 0 if (run := self._session.run) is None else run.lost

    # Training

    def planned(self) -> Certificate:
        """What a run will be certified as, for a stated number of records: nothing is charged, and no records are needed."""
        return self._session.planned()

    def preview(self, records: int | None = None) -> PlannedRun:
        """Steps, expected batch, noise, ε and what would be charged, of the run that these settings plan: nothing is charged, and
        no records are needed. ``print(trainer.preview())`` says all of it.

        Parameters
        ----------
        records : int, optional
            The number of records, or of persons, to plan for where `public_size` is left out. Under add/remove a run releases
            that number with noise first, and its noise follows from what was released: this is what it would be for `records`.

        Raises
        ------
        ValueError
            Where no number of records is known, and for settings that a run would refuse.
        """
        return self._session.preview(records)

    def fit(
        self,
        dataset: Any,
        validation: Any = None,
        *,
        groups: Any = None,
        metrics: dict[str, Callable[[Any, Any], Tensor]] | None = None,
        scheduler: Any = None,
        scheduler_interval: str = "epoch",
        ema_decay: float | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
        show_private: bool = False,
        checkpoint_every: int | None = None,
        resume: bool = False,
        sharded: bool = False,
    ) -> Self:
        """Train on `dataset`: (inputs, targets) tensors or a map-style dataset of such pairs; or of records with named
        entries, such as Hugging Face's, one called "labels" or "label". What is said here costs nothing.

        Parameters
        ----------
        groups : with `max_rows_per_unit`, whose each record of `dataset` is, (n,) in its order: persons are drawn then, and their
            mean gradients bounded. Neighbours differ in all of one person's.
        validation : of the same kind, scored without noise after every expected epoch: keep it public or apart.
        metrics : name → function(outputs, targets) → (b,), averaged over it. None: loss, and accuracy where targets are classes.
        scheduler, scheduler_interval : a torch learning-rate scheduler, stepped every "epoch" or "step".
        ema_decay : average the weights exponentially, and leave the average in the model.
        callbacks, progress : `Callback`s; a progress bar (None: on a terminal).
        show_private : also show each batch's loss and clipped share, which are not private; of several ranks, each its own
            share's.
        checkpoint_every : steps between checkpoints. None: an expected epoch.
        resume : of a trainer whose run stopped early, by a callback or an interruption between two steps: go on with the same
            records, up to the steps that were charged. Of a new trainer: continue from the newest checkpoint, with fresh noise;
            steps lost since then are skipped, not drawn again. Nothing is charged again. Going on, too, is decided by what was
            released, or by public records, never by exact scores of protected ones.
        sharded : on several ranks (`torchrun`), `dataset` is this rank's own part of the records, not all of them.
        """
        given = (callbacks,) if isinstance(callbacks, Callback) else tuple(callbacks)
        options = FitOptions(
            metrics=metrics, scheduler=scheduler, scheduler_interval=scheduler_interval, ema_decay=ema_decay,
            callbacks=given, show_private=show_private, checkpoint_every=checkpoint_every,
        )  # fmt: skip
        session = self._session = self._next_session(options, resume)
        loop = FitLoop(session, validation, progress)
        try:
            with contextlib.closing(session.steps(dataset, groups, resume=resume, sharded=sharded)) as steps:
                for step in steps:
                    loop.after(step)
                    if loop.stops(step):
                        break
            loop.finish()
        finally:
            loop.close()
        return self

    def steps(
        self, dataset: Any, *, groups: Any = None, show_private: bool = False, resume: bool = False, sharded: bool = False
    ) -> Generator[PrivateStep, None, None]:
        """Private steps for a loop of your own: each has put its noisy gradient into `.grad`; call `optimizer.step()`.

        The charge is made, for the whole plan, when the first step is asked for. Schedules, averages, validation and
        checkpoints are yours in such a loop; `save` writes a checkpoint, and the last one is written by itself. Leave it by
        `break` to stop early, by what was released. The rest as in `fit`.
        """
        options = FitOptions(show_private=show_private, own_loop=True)
        session = self._session = self._next_session(options, resume)
        yield from session.steps(dataset, groups, resume=resume, sharded=sharded)

    def settle(self, *, public_validation: bool = False) -> Settlement:
        """Give back to the data set's budget the steps that were charged and not taken, of a run that stopped early. No step of
        the run is released afterwards, by this trainer or from its checkpoints.

        **It holds only where the run stopped by what was released**, or by public held-out records: never by exact scores of
        protected records. The certificate states that as an assumption of yours, and keeps the ε of the whole charge, also
        for ``spent=``: only the budget's own sum, and its (ε, δ) for all releases together, are proved of a run that stops by
        what it released (docs/budgets.md).

        Parameters
        ----------
        public_validation : bool
            The `validation` that `fit` scored without noise is public, and holds no record that is protected.

        Returns
        -------
        Settlement
            What was given back, and the budget after that.

        Raises
        ------
        ValueError
            Where nothing is given back, and why: the spend log has no budget for the data set by a filter that was fixed before
            its first charge, a step failed, private numbers were shown, the run was continued from a checkpoint, or nothing is
            left.
        OSError
            Where the spend log cannot be written. The run is closed then; settle again once it can be.
        """
        return self._session.settle(public_validation=public_validation)

    def public_step(self, function: Callable[[nn.Module], T]) -> T:
        """Call `function` with a copy of the model as it is released, and return what it returns: for a generator that learns
        from a private discriminator, say. Costs no privacy.

        To be called between steps: in a loop over `steps`, or in a callback's `on_step`. The copy's parameters have no gradients
        of their own, and gradients flow through it to its inputs; what is changed in it goes nowhere. The function may use that
        copy, public values and what it draws, and change what is its own, such as a generator that is no part of the model. That
        it uses no record, and nothing made of records, is an assumption of yours from the first call on, which the certificate
        states.

        Raises ValueError without a run; RuntimeError for a function that leads to the records (by names, closures, attributes),
        hands a tensor of theirs to a function of torch, or changes the private model, its gradients or its optimiser, which are
        put back.
        """
        return self._session.public_step(function)

    def save(self) -> None:
        """Write a checkpoint now. Needs `checkpoint`."""
        self._session.save()

    def certify_as(self, certificate: Certificate) -> None:
        """State another certificate than the run's own: of a search whose event has the run among its `tries`. ValueError
        otherwise."""
        self._session.certify_as(certificate)

    def _new_session(self, options: FitOptions) -> TrainingSession:
        return TrainingSession(TrainingSpec(self.objective, self._planner, self.settings, options))

    def _next_session(self, options: FitOptions, resume: bool) -> TrainingSession:
        """The session of a run: a new one, or one that goes on with the run that stopped."""
        if self.certificate is None:
            return self._new_session(options)
        if not resume:
            raise ValueError(
                "A trainer runs once: its certificate speaks of one run from weights that do not depend on these records. "
                "resume=True goes on with a run that stopped early. For another run make a new trainer on a new model; training "
                "this one further would add to what was spent."
            )
        return self._session.going_on(options)
