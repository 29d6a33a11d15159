"""Maximum-likelihood phylogenies: searches, bootstraps, likelihoods, with NumPy in and out."""

from ._native import (
    Alignment,
    Evaluation,
    PhyloError,
    SearchResult,
    __version__,
    compare,
    evaluate,
    search,
    simulate,
)

__all__ = [
    "Alignment",
    "Evaluation",
    "PhyloError",
    "SearchResult",
    "__version__",
    "compare",
    "evaluate",
    "search",
    "simulate",
]
