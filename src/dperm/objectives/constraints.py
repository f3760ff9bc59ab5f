"""Constraint sets. A projection is a function of θ alone, so it is free post-processing."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace


def project_l2_ball(theta: Any, radius: float | None) -> Any:
    """The nearest point with ‖θ‖ ≤ radius, θ (p,) or (m, p); θ itself where radius is None."""
    if radius is None:
        return theta
    xp = array_namespace(theta)
    return theta * (radius / xp.clip(xp.linalg.vector_norm(theta, axis=-1, keepdims=True), radius, None))
