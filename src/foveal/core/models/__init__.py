"""Models: windows, prices, the token budget of a request, and cost."""

from foveal.core.models.budget import Caps, plan_budget, thresholds
from foveal.core.models.catalogue import (
    WINDOW_PATTERNS,
    CatalogueSnapshot,
    ModelLimits,
    ModelPrices,
    ModelRow,
    canonical_name,
    catalogue_snapshot,
    find_row,
    name_forms,
    window_pattern,
)
from foveal.core.models.model import DEFAULT_MAX_OUTPUT, DEFAULT_WINDOW, Model

__all__ = [
    "DEFAULT_MAX_OUTPUT",
    "DEFAULT_WINDOW",
    "WINDOW_PATTERNS",
    "Caps",
    "CatalogueSnapshot",
    "Model",
    "ModelLimits",
    "ModelPrices",
    "ModelRow",
    "canonical_name",
    "catalogue_snapshot",
    "find_row",
    "name_forms",
    "plan_budget",
    "thresholds",
    "window_pattern",
]
