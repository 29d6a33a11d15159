//! The search for the tree of the highest score: candidates for clades, dynamic programming over
//! these, and neighbouring trees (NNI) as long as they score better.
//!
//! Must stay true: of equal scores the first cut and the first branch stay, in the order of the
//! sets alone.

use super::distances::Distances;
use super::{Found, Score, around_all, numbers};
use crate::newick::Newick;
use crate::quartets::{Around, GeneTrees};
use crate::runner::{Runner, Work};
use crate::taxa::{TaxonSet, clades};
use sidecore_offload::OffloadError;
use std::collections::{HashMap, HashSet};

/// Up to this number of taxa all trees are compared.
const EXACT_TAXA: usize = 11;

/// The tree of the highest score among the candidates' and those near it.
pub(super) fn searched<S: Score>(
    genes: &GeneTrees,
    score: &S,
    runner: &impl Runner,
) -> Result<Found<S::Sum>, OffloadError> {
    let is_exact = genes.taxa() <= EXACT_TAXA;
    let sets = match is_exact {
        true => all_clades(genes.taxa()),
        false => candidates(genes),
    };
    let candidates = sets.len();
    let mut tree = best_tree(genes, score, sets, runner)?;
    loop {
        let around = around_all(genes, score, &tree, runner)?;
        let better = around.iter().filter_map(|(at, quartets)| {
            let [own, second, third] = quartets.counts;
            // Of equal gains the first pairing: one input, one result.
            let (way, gain) = if second >= third {
                (1, second)
            } else {
                (2, third)
            };
            // Strictly more, so the shared quartets grow with each swap and the loop ends.
            S::is_more(gain, own).then(|| (gain - own, at, way))
        });
        // The largest gain first; of equals the first branch.
        let best = better.reduce(|best, other| if other.0 > best.0 { other } else { best });
        let Some((_, at, way)) = best else {
            return Ok(Found {
                tree,
                around,
                is_exact,
                candidates,
            });
        };
        tree = swapped(genes, &tree, at, way);
    }
}

/// All clades without taxon 0.
fn all_clades(taxa: usize) -> HashSet<TaxonSet> {
    // Bit k stands for taxon k + 1: no clade has taxon 0.
    let clade = |bits: usize| {
        let mut set = TaxonSet::empty(taxa);
        let members = (1..taxa).filter(|taxon| bits >> (taxon - 1) & 1 == 1);
        members.for_each(|taxon| set.insert(taxon));
        set
    };
    (1..1_usize << (taxa - 1)).map(clade).collect()
}

/// The gene trees' clades and those of a tree of mean distances, as the sides without taxon 0.
pub(super) fn candidates(genes: &GeneTrees) -> HashSet<TaxonSet> {
    let taxa = genes.taxa();
    let distances = Distances::of(genes);
    let mut sets = HashSet::new();
    let all = TaxonSet::all(taxa);
    let mut add = |side: TaxonSet| {
        // A branch has two sides; the one without taxon 0 stands for both.
        let side = match side.has(0) {
            true => all.without(&side),
            false => side,
        };
        if !side.is_empty() {
            sets.insert(side);
        }
    };
    for taxon in 0..taxa {
        let mut one = TaxonSet::empty(taxa);
        one.insert(taxon);
        // For taxon 0 this adds all others: the root of the search.
        add(one);
    }
    for gene in &genes.genes {
        // A taxon that the gene tree lacks stands where the nearest one that it has stands.
        let missing: Vec<(usize, Option<usize>)> = (all.without(&gene.taxa).taxa())
            .map(|taxon| (taxon, distances.nearest(taxon, &gene.taxa)))
            .collect();
        for split in gene.splits() {
            let mut side = split.clone();
            for &(taxon, nearest) in &missing {
                if nearest.is_some_and(|nearest| split.has(nearest)) {
                    side.insert(taxon);
                }
            }
            add(side);
        }
        // Taxa that were put in one place are a clade, with the taxon that stands there.
        for &(_, nearest) in &missing {
            let mut side = TaxonSet::empty(taxa);
            let same = missing.iter().filter(|(_, other)| *other == nearest);
            same.for_each(|&(taxon, _)| side.insert(taxon));
            nearest.into_iter().for_each(|nearest| side.insert(nearest));
            add(side);
        }
    }
    distances.clusters().into_iter().for_each(add);
    sets
}

/// A clade with the cuts in two that its candidates allow.
struct Cuts<S> {
    clade: usize,
    /// Numbers of the two sets, and the quartets at the node.
    cuts: Vec<(usize, usize, S)>,
}

/// Quartets of the best tree of a clade, and the two parts of its root.
type Best<S> = (S, Option<(usize, usize)>);

/// The best tree whose clades are candidates.
pub(super) fn best_tree<S: Score>(
    genes: &GeneTrees,
    score: &S,
    sets: HashSet<TaxonSet>,
    runner: &impl Runner,
) -> Result<Newick, OffloadError> {
    let mut sets: Vec<TaxonSet> = sets.into_iter().collect();
    // Small before large: a clade's parts come before it. The order is that of the sets alone.
    sets.sort_unstable_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    let places: HashMap<&TaxonSet, usize> = sets.iter().zip(0..).collect();
    let all = TaxonSet::all(genes.taxa());
    let mut items: Vec<Cuts<S::Sum>> = (0..sets.len())
        .map(|clade| Cuts {
            clade,
            cuts: Vec::new(),
        })
        .collect();
    // Large clades have the most cuts: they go first.
    items.reverse();
    runner.run(Work::Support, &mut items, |item| {
        let own = &sets[item.clade];
        let len = own.len();
        let outside = all.without(own);
        for (number, part) in sets[..item.clade].iter().enumerate() {
            // Each cut once: from its smaller side, of equals the first.
            let size = part.len();
            if 2 * size > len {
                break;
            }
            if !part.is_within(own) {
                continue;
            }
            let rest = own.without(part);
            if let Some(&other) = places.get(&rest)
                && (2 * size < len || number < other)
            {
                let shared = score.at_node([part, &rest, &outside]);
                item.cuts.push((number, other, shared));
            }
        }
    })?;
    items.reverse();
    let mut best: Vec<Option<Best<S::Sum>>> = vec![None; sets.len()];
    for item in items {
        if sets[item.clade].len() == 1 {
            best[item.clade] = Some((S::Sum::default(), None));
            continue;
        }
        for (a, b, shared) in item.cuts {
            // A part that no candidates cut down to single taxa has no tree.
            let (Some((left, _)), Some((right, _))) = (best[a], best[b]) else {
                continue;
            };
            let score = left + right + shared;
            // Of equal scores the first cut stays: the order of cuts is that of the sets.
            if best[item.clade].is_none_or(|(known, _)| score > known) {
                best[item.clade] = Some((score, Some((a, b))));
            }
        }
    }
    // The root: taxon 0 next to the largest clade, which has all others.
    let mut tree = Newick::root(String::new());
    tree.push(0, genes.labels[0].clone(), None);
    let mut path = vec![(sets.len() - 1, None)];
    while let Some((clade, parent)) = path.pop() {
        match best[clade].and_then(|(_, cut)| cut) {
            Some((a, b)) => {
                // The clade of all others has no node of its own: the root has three branches.
                let node = parent.map_or(0, |parent| tree.push(parent, String::new(), None));
                path.extend([(b, Some(node)), (a, Some(node))]);
            }
            None => {
                for taxon in sets[clade].taxa() {
                    tree.push(parent.unwrap_or(0), genes.labels[taxon].clone(), None);
                }
            }
        }
    }
    Ok(tree)
}

/// The tree with the four neighbours of a branch paired in another way. It has its root at the
/// first taxon again.
fn swapped(genes: &GeneTrees, tree: &Newick, at: &Around, way: usize) -> Newick {
    let numbers = numbers(genes);
    let taxa = genes.taxa();
    let clades = clades(tree, taxa, |label| numbers.get(label).copied());
    let all = TaxonSet::all(taxa);
    let without_first = |side: TaxonSet| match side.has(0) {
        true => all.without(&side),
        false => side,
    };
    let old = without_first(at.side(0));
    let sides = clades.into_iter().skip(1).map(without_first);
    let kept = sides.filter(|side| *side != old && side.len() > 1);
    let mut sets: Vec<TaxonSet> = kept.collect();
    sets.push(without_first(at.side(way)));
    sets.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    sets.dedup();
    // Large sets first: each is below the last one that has all of it.
    let mut made = Newick::root(String::new());
    made.push(0, genes.labels[0].clone(), None);
    let mut nodes: Vec<(TaxonSet, usize)> = vec![(all.clone(), 0)];
    let above = |nodes: &[(TaxonSet, usize)], set: &TaxonSet| {
        let found = nodes.iter().rev().find(|(other, _)| set.is_within(other));
        found.map_or(0, |&(_, node)| node)
    };
    // The set of all taxa but the first is the root itself.
    for set in sets.into_iter().filter(|set| set.len() + 1 < taxa) {
        let node = made.push(above(&nodes, &set), String::new(), None);
        nodes.push((set, node));
    }
    for taxon in 1..taxa {
        let mut one = TaxonSet::empty(taxa);
        one.insert(taxon);
        made.push(above(&nodes, &one), genes.labels[taxon].clone(), None);
    }
    made
}
