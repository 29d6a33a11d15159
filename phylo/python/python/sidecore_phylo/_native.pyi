"""Types of the extension module. Trees are Newick text, or objects of DendroPy, Biopython, ETE and others that have it;
models are named as RAxML-NG names them, or are the text of a file of partitions (lines `MODEL, NAME = 1-500`)."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict, final

import numpy as np
from numpy.typing import NDArray

__version__: str

class _ToNewick(Protocol):
    def to_newick(self) -> str: ...

class _AsString(Protocol):
    def as_string(self, schema: str) -> str: ...

class _Terminals(Protocol):
    def get_terminals(self) -> Any: ...

class _Write(Protocol):
    def write(self) -> Any: ...

# A tree that a call is given.
_Tree = str | _ToNewick | _AsString | _Terminals | _Write

class PhyloError(ValueError):
    """Something that is given cannot be read, or does not go together."""

@final
class Alignment:
    """Aligned sequences, at least four, with different names."""

    def __new__(cls, names: Sequence[str], characters: NDArray[Any]) -> Alignment:
        """From names and characters (taxa, sites), of dtype uint8 (ASCII) or S1."""
    @staticmethod
    def read(path: str | os.PathLike[str]) -> Alignment:
        """Reads a file in any format that the command line reads; plain or packed. OSError, PhyloError."""
    @staticmethod
    def parse(text: str) -> Alignment:
        """Parses the text of such a file."""
    @property
    def names(self) -> list[str]: ...
    @property
    def sites(self) -> int: ...
    def to_numpy(self) -> NDArray[np.uint8]:
        """The characters: a new array (taxa, sites)."""
    def to_phylip(self) -> str: ...
    def __getnewargs__(self) -> tuple[list[str], NDArray[np.uint8]]: ...
    def __len__(self) -> int: ...

@final
class Counts:
    """Counts of bases in populations, site by site: the data of models of populations (`HKY+P`)."""

    def __new__(cls, text: str) -> Counts:
        """Parses the text of a counts file."""
    @staticmethod
    def read(path: str | os.PathLike[str]) -> Counts:
        """Reads such a file, plain or packed. OSError, PhyloError."""
    @property
    def names(self) -> list[str]: ...
    @property
    def sites(self) -> int: ...
    def __getnewargs__(self) -> tuple[str]: ...
    def __len__(self) -> int: ...

@final
class Evaluation:
    """A tree's likelihood, and what was fitted."""

    def __new__(cls, state: tuple[Any, ...]) -> Evaluation:
        """From the parts that pickle keeps."""
    def __getnewargs__(self) -> tuple[tuple[Any, ...]]: ...
    def to_newick(self) -> str: ...
    @property
    def root_frequencies(self) -> NDArray[np.float64] | None:
        """Frequencies of the root's states under a nonreversible model or one of populations. None under others."""
    @property
    def log_likelihood(self) -> float: ...
    @property
    def tree(self) -> str:
        """The tree with the branch lengths used; of unlinked lengths the first partition's."""
    @property
    def trees(self) -> list[str]:
        """One for each partition with unlinked lengths; else that tree alone."""
    @property
    def tree_length(self) -> float: ...
    @property
    def models(self) -> list[str]:
        """Each partition's model with all values; each can be given as a model again."""
    @property
    def site_log_likelihoods(self) -> NDArray[np.float64]:
        """One value for each column; 0 where no taxon has a character. A new array."""
    @property
    def site_rates(self) -> NDArray[np.float64] | None:
        """The mean rate of each column; NaN where no taxon has a character. None unless asked for."""

@final
class SearchResult:
    """The trees of a run."""

    def __new__(cls, state: tuple[Any, ...]) -> SearchResult:
        """From the parts that pickle keeps."""
    def __getnewargs__(self) -> tuple[tuple[Any, ...]]: ...
    def to_newick(self) -> str:
        """The best tree, with support where there is some. PhyloError without searches."""
    @property
    def tree(self) -> str | None:
        """The best search's tree; None without searches."""
    @property
    def log_likelihood(self) -> float | None: ...
    @property
    def models(self) -> list[str] | None: ...
    @property
    def trees(self) -> list[str]: ...
    @property
    def log_likelihoods(self) -> NDArray[np.float64]: ...
    @property
    def start_trees(self) -> list[str]: ...
    @property
    def bootstraps(self) -> list[str]: ...
    @property
    def support(self) -> str | None:
        """The best tree with the bootstraps' support in per cent; None without bootstraps."""
    @property
    def converged(self) -> bool | None:
        """Verdict of the last convergence test; None where none was made."""

@final
class ModelFit:
    """A model that was fitted, and its scores: the least is the best."""

    def __new__(
        cls, name: str, log_likelihood: float, parameters: int, bic: float, aicc: float | None, aic: float
    ) -> ModelFit: ...
    def __getnewargs__(self) -> tuple[str, float, int, float, float | None, float]: ...
    @property
    def name(self) -> str:
        """The model's name, which can be given as a model."""
    @property
    def log_likelihood(self) -> float: ...
    @property
    def parameters(self) -> int:
        """Free parameters, branch lengths among them."""
    @property
    def bic(self) -> float: ...
    @property
    def aicc(self) -> float | None:
        """None where the alignment is too short for it."""
    @property
    def aic(self) -> float: ...

@final
class Picture:
    """A picture of a tree, which notebooks show."""

    def __new__(cls, svg: str) -> Picture: ...
    def __getnewargs__(self) -> tuple[str]: ...
    @property
    def svg(self) -> str: ...
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file. OSError."""
    def _repr_svg_(self) -> str: ...

class Distances(TypedDict):
    rf: int
    rf_relative: float
    branch_score: float | None

def evaluate(
    alignment: Alignment | Counts,
    tree: _Tree,
    model: str,
    *,
    opt: Literal["none", "branches", "all"] = "all",
    brlen: Literal["linked", "scaled", "unlinked"] | None = None,
    epsilon: float = 1e-3,
    site_rates: bool = False,
    engines: int | None = None,
) -> Evaluation:
    """The likelihood of a tree, after `opt` was fitted. A nonreversible model (`UNREST`, `NONREV{FILE}`) takes a rooted
    tree, a model of populations (`HKY+P`) takes Counts. Other threads run meanwhile; Ctrl-C ends it."""

def search(
    alignment: Alignment,
    model: str,
    *,
    starts: int = 10,
    bootstraps: int | Literal["auto"] = 0,
    bootstraps_max: int = 1000,
    rapid: bool = False,
    jackknife: float | None = None,
    brlen: Literal["linked", "scaled", "unlinked"] | None = None,
    seed: int = 1,
    start_trees: Literal["mixed", "parsimony", "random"] | Sequence[_Tree] = "mixed",
    constraint: _Tree | None = None,
    engines: int | None = None,
    policy: str = "equi",
    progress: Callable[[int, int], object] | None = None,
) -> SearchResult:
    """Searches for the tree of the highest likelihood, and bootstraps it. The result depends on the seed, not on the
    engines. `progress` is called with how many results there are, and how many are needed, on the calling thread; an
    error in it ends the search. Other threads run meanwhile; Ctrl-C ends it."""

def models(
    alignment: Alignment,
    *,
    data: Literal["auto", "dna", "protein", "binary", "multistate", "codon"] = "auto",
    criterion: Literal["bic", "aicc", "aic"] = "bic",
    free_rates_max: int = 8,
    classes_max: int = 0,
    tree: _Tree | None = None,
    seed: int = 1,
    engines: int | None = None,
    code: int = 1,
) -> list[ModelFit]:
    """Fits models on `tree`, or on one by parsimony, and returns those that were fitted, the best first. Others cannot
    win. `code` is the genetic code of codons, as NCBI numbers them. Other threads run meanwhile; Ctrl-C ends it."""

def partition_models(
    loci: Alignment | Mapping[str, Alignment],
    lines: str | None = None,
    *,
    merge: Literal["none", "greedy", "rcluster", "rclusterf"] = "none",
    rcluster: float = 10.0,
    rcluster_max: int | None = None,
    criterion: Literal["bic", "aicc", "aic"] = "bic",
    free_rates_max: int = 8,
    classes_max: int = 0,
    tree: _Tree | None = None,
    seed: int = 1,
    engines: int | None = None,
) -> dict[str, Any]:
    """Chooses a model for each partition that `lines` name, or each locus of a dict, and with `merge` joins those that
    score better together. `subsets` and `score`; `lines` are a model for the other calls. Other threads run meanwhile;
    Ctrl-C ends it."""

def genes(
    loci: Alignment | Mapping[str, Alignment],
    model: str = "auto",
    *,
    starts: int = 1,
    bootstraps: int = 0,
    support: Sequence[Literal["sh-alrt", "abayes", "lbp", "ufboot"]] | None = None,
    seed: int = 1,
    engines: int | None = None,
    policy: str = "equi",
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """A tree for each locus, of a dict of alignments, or of the parts that the lines `model` name in one: `loci` with
    `name`, `tree`, `model` and `lnl`, and `skipped`. `progress` as of search. Ctrl-C ends it."""

def draw(
    tree: _Tree,
    *,
    form: Literal["rectangular", "circular"] = "rectangular",
    theme: Literal["auto", "light", "dark"] = "auto",
    root: Literal["midpoint", "mad"] | Sequence[str] | None = None,
    cladogram: bool = False,
    keep_order: bool = False,
) -> Picture:
    """Draws a tree; labels of its inner nodes are supports. `root` may be the tips of an outgroup."""

def simulate(
    model: str,
    sites: int,
    *,
    taxa: int | None = None,
    tree: _Tree | None = None,
    seed: int = 1,
    branch_mean: float = 0.1,
) -> tuple[Alignment, str]:
    """An alignment that evolved along `tree`, or along a random one of `taxa` taxa, and that tree."""

def compare(a: _Tree, b: _Tree) -> Distances:
    """Distances of two trees with the same taxa."""

# The dicts below are what the command line prints with --json (docs/commands.md).

def test(
    alignment: Alignment,
    trees: Sequence[_Tree],
    model: str,
    *,
    replicates: int = 50_000,
    seed: int = 1,
    engines: int | None = None,
) -> list[dict[str, float]]:
    """Tests which of the trees the alignment excludes: `lnl`, `p_au` and so on of each."""

def ancestors(
    alignment: Alignment,
    tree: _Tree,
    model: str,
    *,
    opt: Literal["none", "branches", "all"] = "all",
    engines: int | None = None,
) -> dict[str, Any]:
    """States of the inner nodes (`nodes`), the tree with their names, and `mutations`: tuples of parent, child, site
    (from 1), and the states at both ends."""

def support(
    tree: _Tree,
    *,
    bootstraps: Sequence[_Tree] | None = None,
    alignment: Alignment | None = None,
    model: str | None = None,
    kind: Literal["fbp", "tbe", "sh-alrt", "abayes", "lbp", "ufboot"] = "fbp",
    replicates: int = 1000,
    seed: int = 1,
    engines: int | None = None,
    bnni: bool = False,
) -> dict[str, Any]:
    """Supports of the tree's branches: `values` from 0 to 1, and the `tree` with labels. fbp and tbe are of
    `bootstraps`, the others of an alignment and a model. With `bnni` ultrafast bootstraps refine their trees."""

def place(
    alignment: Alignment,
    tree: _Tree,
    model: str,
    *,
    opt: Literal["none", "branches", "all"] = "all",
    keep: int = 7,
    engines: int | None = None,
) -> dict[str, Any]:
    """Places the sequences of the alignment that the tree lacks on it: jplace."""

def root(
    tree: _Tree,
    by: Literal["midpoint", "mad"] | Sequence[str] | None = None,
    *,
    alignment: Alignment | None = None,
    model: str | None = None,
    replicates: int = 10_000,
    seed: int = 1,
    engines: int | None = None,
) -> dict[str, Any]:
    """Roots a tree; `by` may be the tips of an outgroup. `tree`, and with MAD `deviation` and `ambiguity`. Without `by`
    each branch is tried as the root under a nonreversible `model`: `roots`, the best one first."""

def rootstrap(tree: _Tree, replicates: Sequence[_Tree]) -> dict[str, Any]:
    """The shares of rooted replicates whose root is on each branch of the tree: `branches`, `root`, `elsewhere`."""

def compare_all(trees: Sequence[_Tree]) -> dict[str, Any]:
    """The distances of all pairs of trees: `rf_matrix`, and the means `rf_mean` and `rf_relative_mean`. Other threads
    run meanwhile; Ctrl-C ends it."""

def consensus(
    trees: Sequence[_Tree],
    *,
    rule: Literal["strict", "majority", "extended"] = "majority",
    above: float | None = None,
    skip: int = 0,
) -> dict[str, Any]:
    """The consensus: `tree`, and `shares` of the trees that have its branches."""

def species(
    genes: Sequence[_Tree],
    *,
    contract: float | None = None,
    score: _Tree | None = None,
    engines: int | None = None,
    weights: Literal["support", "lengths", "both"] | None = None,
    support_range: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """The tree of the species of gene trees, or the fit of `score` to them. `weights` count quartets by the gene trees'
    supports, whose labels range over `support_range`, and lengths."""

def concordance(
    tree: _Tree,
    *,
    genes: Sequence[_Tree] | None = None,
    alignment: Alignment | None = None,
    model: str | None = None,
    likelihood: bool = False,
    quartets: int = 1000,
    seed: int = 1,
    engines: int | None = None,
) -> dict[str, Any]:
    """Shares of gene trees and of sites that agree with the tree's branches."""

def date(
    tree: _Tree,
    sites: int,
    *,
    dates: Mapping[str, float | str] | str | None = None,
    outgroup: Sequence[str] | None = None,
    rate: float | None = None,
    replicates: int = 0,
    spread: float = 0.2,
    seed: int = 1,
    engines: int | None = None,
) -> dict[str, Any]:
    """Dates the nodes of a rooted tree; its lengths are of an alignment of `sites` columns. A date is a number, a day
    ("2013-05-31"), a month, or a range ("b(2012,2013)"). `dates` may be the text of a file; without it they are taken
    from the tips' names. Intervals come from `replicates`."""
