"""Maximum-likelihood phylogenies: models, searches, bootstraps, likelihoods, pictures, with NumPy in and out."""

from ._native import (
    Alignment,
    Evaluation,
    ModelFit,
    PhyloError,
    Picture,
    SearchResult,
    __version__,
    compare,
    draw,
    evaluate,
    models,
    search,
    simulate,
)

__all__ = [
    "Alignment",
    "Evaluation",
    "ModelFit",
    "PhyloError",
    "Picture",
    "SearchResult",
    "__version__",
    "compare",
    "draw",
    "evaluate",
    "models",
    "search",
    "simulate",
]
