"""Least noise for a target ε or risk, or most steps for a given noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from dperm.cli.command_files import JsonFlag
from dperm.cli.printing import say, say_json
from dperm.jobs.options import BudgetOptions, Relation, stated_relation


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(BudgetOptions):
    epsilon: Annotated[float | None, "Target ε."] = None
    rate: Annotated[float, "Poisson sampling rate."] = 1.0
    steps: Annotated[int | None, "Number of steps [default: 1]."] = None
    noise: Annotated[float | None, "Fix the noise multiplier and find the largest number of steps."] = None
    relation: Relation = "add_or_remove_one"
    as_json: JsonFlag = False


def calibrate(asked: CalibrateOptions) -> None:
    """Least noise for a target ε, or for what an attacker may achieve at most; or most steps for a given noise.

    \b
    Examples:
      dperm calibrate --epsilon 1 --rate 0.01 --steps 5000
      dperm calibrate --epsilon 1 --rate 0.01 --noise 1.1
      dperm calibrate --advantage 0.1 --rate 0.01 --steps 5000
      dperm calibrate --true-positive-rate 0.05 --false-positive-rate 0.01 --rate 0.01 --steps 5000
    """
    from dperm.privacy import Gaussian, PoissonSampled, Risk, SelfComposed
    from dperm.privacy import calibrate as least_noise
    from dperm.privacy.accountants.accounting import best_epsilon
    from dperm.privacy.accountants.calibration import calibrate_steps

    kind = stated_relation(asked.relation)
    budget = asked.budget()

    def event(multiplier: float, count: int) -> Any:
        return SelfComposed(PoissonSampled(asked.rate, Gaussian(multiplier, kind)), count)

    if asked.noise is not None and asked.steps is not None:
        raise ValueError("Expected --noise or --steps, got both: one of them is what calibration finds.")
    if (noise := asked.noise) is not None:
        count = calibrate_steps(lambda number: event(noise, number), budget, asked.delta)
        if count == 0:
            wanted = str(budget) if isinstance(budget, Risk) else f"epsilon={budget:g}"
            raise ValueError(f"Expected a noise multiplier that allows one step at {wanted}, got {noise:g}.")
        settings: dict[str, Any] = {"steps": count, "noise_multiplier": noise}
    else:
        settings = {
            "noise_multiplier": least_noise(lambda x: event(x, asked.steps or 1), budget, asked.delta),
            "steps": asked.steps or 1,
        }
    value, accountant = best_epsilon(event(settings["noise_multiplier"], settings["steps"]), asked.delta)
    risk = budget if isinstance(budget, Risk) else None
    if asked.as_json:
        stated = {"epsilon": value, "delta": asked.delta, "accountant": accountant}
        say_json({**settings, **stated, **({"risk": risk.to_dict()} if risk else {})})
    else:
        if risk is not None:
            say(f"Keeps {risk}, whoever the attacker is and whatever it knows of others.")
        shown = f"noise multiplier {settings['noise_multiplier']:.6g}, {settings['steps']} steps"
        say(f"{shown}: ε = {value:.6g} at δ = {asked.delta:g} ({accountant})")
