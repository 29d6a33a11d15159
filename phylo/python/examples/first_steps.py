"""A first session, in cells (`# %%`) that notebooks and editors run one by one."""

# %% An alignment whose tree we know
import numpy as np

import sidecore_phylo as phylo

truth_model = "GTR{1/2/1/1/2/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}"
alignment, truth = phylo.simulate(truth_model, sites=600, taxa=12, seed=7)
print(alignment)

# %% It is an array of characters, and any such array is an alignment
characters = alignment.to_numpy()
print(characters.shape, characters.dtype, characters[0, :10].tobytes().decode())
first_half = phylo.Alignment(alignment.names, characters[:, :300])
assert np.array_equal(first_half.to_numpy(), characters[:, :300])

# %% Which model does it ask for?
best = phylo.models(alignment)[0]
print(best.name, round(best.bic, 1))

# %% The best tree of two searches, with support
found = phylo.search(alignment, "GTR+G", starts=2, bootstraps=10, seed=1)
print(found)
assert found.tree is not None  # there were searches
print(found.support)
assert found.support is not None  # there were bootstraps
picture = phylo.draw(found.support, root="midpoint")  # a notebook shows it
print("distance from the truth:", phylo.compare(found.tree, truth)["rf"])

# %% Which sites speak for it, and which for the true tree?
fitted = phylo.evaluate(alignment, found.tree, "GTR+G")
against = phylo.evaluate(alignment, truth, "GTR+G")
gain = fitted.site_log_likelihoods - against.site_log_likelihoods
print(f"{(gain > 0).sum()} sites for it, {(gain < 0).sum()} for the truth, {gain.sum():.3f} in all")
