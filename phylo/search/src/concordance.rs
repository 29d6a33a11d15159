//! Concordance of a tree's branches with gene trees (gCF) and with the sites of an alignment (sCF).
//!
//! An inner branch joins four clades A, B | C, D. A gene tree with a taxon of each is decisive; it
//! is concordant where it parts A and B from C and D, discordant in the first way with A and C,
//! in the second with A and D together, and else paraphyletic. A site is decisive for four taxa,
//! one of each clade, where two have one state and two another. By parsimony the shares are means
//! over quartets of taxa: over all where these are few, else over random ones. By likelihood (sCFL)
//! the taxa are replaced by the states at the four clades' roots: by each clade's own tips, with
//! their probabilities. The published method draws states; here sums over all of them are used,
//! which is where many draws end.
//!
//! Must stay true: one seed, one result, on any number of engines; shares are per cent, and those
//! of a branch sum to 100.
//! Sources: Minh, Hahn and Lanfear, "New methods to calculate concordance factors for phylogenomic
//! datasets", Molecular Biology and Evolution 37 (2020), 2727-2733; Mo, Lanfear, Hahn and Minh,
//! "Updated site concordance factors minimize effects of homoplasy and taxon sampling",
//! Bioinformatics 39 (2023), btac741.

mod report;

pub use report::Concordance;

use crate::ancestors::subtree_states;
use crate::likelihood::Part;
use crate::msa::Patterns;
use crate::newick::Newick;
use crate::quartets::{Around, GeneTrees, PAIRINGS};
use crate::random::Random;
use crate::runner::{Runner, Work};
use crate::taxa::TaxonSet;
use crate::tree::{HalfId, Tree};
use serde::Serialize;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_offload::OffloadError;
use std::collections::HashMap;

/// Shares of gene trees at a branch, in per cent of the decisive ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct GeneFactors {
    /// Gene trees with the branch.
    gcf: f64,
    /// With the first other pairing: A and C against B and D.
    gdf1: f64,
    /// With the second: A and D against B and C.
    gdf2: f64,
    /// With none of the three.
    gdfp: f64,
    /// Decisive gene trees.
    decisive: u32,
}

/// Shares of sites at a branch, in per cent of the decisive ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct SiteFactors {
    /// Sites that pair A with B.
    scf: f64,
    /// A with C.
    sdf1: f64,
    /// A with D.
    sdf2: f64,
    /// Decisive sites: the mean over quartets, or the expected number.
    decisive: f64,
}

/// The gene trees' shares of each branch; `None` where no gene tree is decisive. Blocks.
///
/// # Errors
/// [`OffloadError`] when an engine failed.
fn by_genes(
    genes: &GeneTrees,
    branches: &[Around],
    runner: &impl Runner,
) -> Result<Vec<Option<GeneFactors>>, OffloadError> {
    each(branches, runner, |around| of_genes(genes, around))
}

fn of_genes(genes: &GeneTrees, around: &Around) -> Option<GeneFactors> {
    let sides = [0, 1, 2].map(|pairing| around.side(pairing));
    let (mut decisive, mut counts) = (0_u32, [0_u32; 3]);
    for gene in &genes.genes {
        if around
            .each()
            .iter()
            .any(|set| set.and(&gene.taxa).is_empty())
        {
            continue;
        }
        decisive += 1;
        // No tree has two of them.
        if let Some(way) = sides.iter().position(|side| gene.has_split(side)) {
            counts[way] += 1;
        }
    }
    // No number without decisive trees; it is dropped below.
    let share = |count: u32| 100.0 * f64::from(count) / f64::from(decisive);
    let [gcf, gdf1, gdf2] = counts.map(share);
    let others = decisive - counts.iter().sum::<u32>();
    (decisive > 0).then(|| GeneFactors {
        gcf,
        gdf1,
        gdf2,
        gdfp: share(others),
        decisive,
    })
}

/// The sites' shares of each branch by parsimony, over at most `quartets` quartets of taxa. The
/// branches' taxa are numbered as the patterns'. `None` where no site is decisive. Blocks.
///
/// # Errors
/// [`OffloadError`] when an engine failed.
fn by_sites(
    parts: &[&Patterns],
    branches: &[Around],
    quartets: u32,
    seed: u64,
    runner: &impl Runner,
) -> Result<Vec<Option<SiteFactors>>, OffloadError> {
    let columns: Vec<Columns> = parts
        .iter()
        .map(|patterns| Columns::new(patterns))
        .collect();
    each(branches, runner, |around| {
        // Random numbers of its own for each branch: its result does not depend on the others.
        let mut random = Random::new(sidecore_random::mix(seed) ^ around.node.to_u64());
        let sets = around.each().map(|set| set.taxa().collect::<Vec<usize>>());
        let mut sums = SiteSums::default();
        for quartet in Quartets::new(&sets, quartets, &mut random) {
            let mut counts = [0_u64; 3];
            for own in &columns {
                let found = own.count(quartet);
                add(&mut counts, found);
            }
            sums.add(counts.map(|count| count as f64));
        }
        sums.factors()
    })
}

/// The sites' shares of each branch by likelihood, with the parts' models and the tree's lengths as
/// they are. `None` where no site is decisive. Blocks.
///
/// # Errors
/// [`OffloadError`] when an engine failed.
fn by_likelihood(
    tree: &Tree,
    parts: &[Part],
    branches: &[Around],
    runner: &impl Runner,
) -> Result<Vec<Option<SiteFactors>>, OffloadError> {
    let roots = roots(tree);
    // Those of the four clades around each branch, one after the other.
    let halves: Vec<HalfId> = branches
        .iter()
        .flat_map(|around| around.each().map(|set| roots.get(set).copied()))
        // Every clade around a branch is a subtree, so the default is never used.
        .map(|half| half.unwrap_or(HalfId(0)))
        .collect();
    let mut items: Vec<(usize, &Part, Vec<[f64; 3]>)> = parts
        .iter()
        .enumerate()
        .map(|(number, part)| (number, part, vec![[0.0; 3]; branches.len()]))
        .collect();
    runner.run(Work::Support, &mut items, |(number, part, sums)| {
        let (patterns, model) = (part.patterns(), part.model());
        let own = tree.of_part(*number, part.scale());
        let states = part.process().shape.states;
        subtree_states(&own, patterns, model, &halves, |pattern, values| {
            let weight = f64::from(patterns.weights()[pattern]);
            for (sum, four) in sums.iter_mut().zip(values.chunks(4 * states)) {
                let found = expected(four, states);
                add(sum, found.map(|more| weight * more));
            }
        });
    })?;
    let of_branch = |at: usize| {
        let mut counts = [0.0; 3];
        for (_, _, sums) in &items {
            add(&mut counts, sums[at]);
        }
        let mut sums = SiteSums::default();
        sums.add(counts);
        sums.factors()
    };
    Ok((0..branches.len()).map(of_branch).collect())
}

/// Adds the values of three pairings to sums of each.
fn add<T: std::ops::AddAssign>(sums: &mut [T; 3], more: [T; 3]) {
    sums.iter_mut()
        .zip(more)
        .for_each(|(sum, more)| *sum += more);
}

/// The chances that four clades' roots have two states, for each of the three pairings.
fn expected(four: &[f64], states: usize) -> [f64; 3] {
    let at = |clade: usize| &four[clade * states..][..states];
    let both = |a: usize, b: usize| -> f64 {
        at(a)
            .iter()
            .zip(at(b))
            .map(|(one, other)| one * other)
            .sum()
    };
    // All four the same decides nothing.
    let same: f64 = (0..states)
        .map(|state| (0..4).map(|clade| at(clade)[state]).product::<f64>())
        .sum();
    // Rounding may take the difference a little below 0.
    PAIRINGS.map(|[a, b, c, d]| (both(a, b) * both(c, d) - same).max(0.0))
}

/// For each subtree of a tree its taxa and the half-edge of its root.
fn roots(tree: &Tree) -> HashMap<TaxonSet, HalfId> {
    let mut sets: Vec<Option<TaxonSet>> = vec![None; tree.halves()];
    for (tip, set) in sets.iter_mut().enumerate().take(tree.taxa()) {
        let mut one = TaxonSet::empty(tree.taxa());
        one.insert(tip);
        *set = Some(one);
    }
    // Each branch is a root from both of its sides.
    for start in (tree.taxa()..tree.halves()).map(HalfId::new) {
        for half in tree.post_order(start, |half| sets[half.index()].is_none()) {
            let mut all = TaxonSet::empty(tree.taxa());
            for below in tree.others(half).map(|other| tree.back(other)) {
                if let Some(set) = &sets[below.index()] {
                    all.add(set);
                }
            }
            sets[half.index()] = Some(all);
        }
    }
    let all = sets.into_iter().enumerate();
    all.filter_map(|(half, set)| Some((set?, HalfId::new(half))))
        .collect()
}

/// A partition's characters that are one state, taxon by taxon.
struct Columns {
    states: Vec<Vec<u8>>,
    weights: Vec<u32>,
}

impl Columns {
    fn new(patterns: &Patterns) -> Self {
        let state = |&code: &u8| {
            let mask = patterns.masks()[usize::from(code)];
            match mask.count_ones() {
                // Below 64, as masks have that many bits.
                1 => mask.trailing_zeros() as u8,
                _ => UNKNOWN,
            }
        };
        let taxa = 0..patterns.taxa();
        Self {
            states: taxa
                .map(|taxon| patterns.codes(taxon).iter().map(state).collect())
                .collect(),
            weights: patterns.weights().to_vec(),
        }
    }

    /// Decisive sites of four taxa, for each of the three pairings.
    fn count(&self, quartet: [usize; 4]) -> [u64; 3] {
        let [a, b, c, d] = quartet.map(|taxon| &self.states[taxon][..]);
        let mut counts = [0; 3];
        for (site, &weight) in self.weights.iter().enumerate() {
            let four = [a[site], b[site], c[site], d[site]];
            if four.contains(&UNKNOWN) {
                continue;
            }
            for (count, [a, b, c, d]) in counts.iter_mut().zip(PAIRINGS) {
                if four[a] == four[b] && four[c] == four[d] && four[a] != four[c] {
                    *count += u64::from(weight);
                }
            }
        }
        counts
    }
}

/// Quartets with one taxon of each of four sets: all, or as many random ones.
struct Quartets<'q> {
    sets: &'q [Vec<usize>; 4],
    random: Option<&'q mut Random>,
    next: u64,
    end: u64,
}

impl<'q> Quartets<'q> {
    fn new(sets: &'q [Vec<usize>; 4], most: u32, random: &'q mut Random) -> Self {
        // A product that overflows is more than `most`, too.
        let all = sets
            .iter()
            .try_fold(1_u64, |all, set| all.checked_mul(set.len().to_u64()));
        let all = all.filter(|&all| all <= u64::from(most));
        Self {
            sets,
            random: all.is_none().then_some(random),
            next: 0,
            end: all.unwrap_or(most.into()),
        }
    }
}

impl Iterator for Quartets<'_> {
    type Item = [usize; 4];

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.end {
            return None;
        }
        let mut at = self.next.to_usize();
        self.next += 1;
        let random = &mut self.random;
        // The number's digits, to the bases of the sets' sizes, are a quartet.
        Some(self.sets.each_ref().map(|set| match random {
            Some(random) => set[random.index(set.len())],
            None => {
                let taxon = set[at % set.len()];
                at /= set.len();
                taxon
            }
        }))
    }
}

/// Sums over quartets.
#[derive(Debug, Default)]
struct SiteSums {
    quartets: f64,
    /// Quartets with decisive sites.
    decided: f64,
    sites: f64,
    shares: [f64; 3],
}

impl SiteSums {
    fn add(&mut self, counts: [f64; 3]) {
        let all: f64 = counts.iter().sum();
        self.quartets += 1.0;
        self.sites += all;
        if all > 0.0 {
            self.decided += 1.0;
            // Shares, not counts: each quartet of taxa weighs the same,
            // however many sites it decides.
            let pairs = self.shares.iter_mut().zip(counts);
            pairs.for_each(|(share, count)| *share += 100.0 * count / all);
        }
    }

    fn factors(&self) -> Option<SiteFactors> {
        let [scf, sdf1, sdf2] = self.shares.map(|share| share / self.decided);
        (self.decided > 0.0).then(|| SiteFactors {
            scf,
            sdf1,
            sdf2,
            decisive: self.sites / self.quartets,
        })
    }
}

/// Calls `unit` for each branch, spread by `runner`.
fn each<T: Send>(
    branches: &[Around],
    runner: &impl Runner,
    unit: impl Fn(&Around) -> Option<T> + Sync,
) -> Result<Vec<Option<T>>, OffloadError> {
    let mut items: Vec<(&Around, Option<T>)> = branches.iter().map(|at| (at, None)).collect();
    runner.run(Work::Support, &mut items, |(around, value)| {
        *value = unit(around)
    })?;
    Ok(items.into_iter().map(|(_, value)| value).collect())
}

/// A tree whose inner nodes' labels get more values, after a `/`; per cent, one digit after the
/// point at most.
fn labelled(tree: &Newick, values: &[(usize, Vec<f64>)]) -> Newick {
    let mut tree = tree.clone();
    for (node, values) in values {
        let mut label = tree.nodes()[*node].label.clone();
        for value in values {
            if !label.is_empty() {
                label.push('/');
            }
            label.push_str(&format!("{}", (10.0 * value).round() / 10.0));
        }
        tree.set_label(*node, label);
    }
    tree
}

/// Of a character that is not one state.
const UNKNOWN: u8 = u8::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::likelihood::{Likelihood, Options, PartOptions};
    use crate::model::ModelName;
    use crate::msa::{Alignment, Alphabet};
    use crate::quartets::branches;
    use crate::runner::Serial;

    #[test]
    fn gene_trees_are_sorted_into_four_kinds() {
        let parsed = |text: &str| Newick::parse(text).unwrap();
        let tree = parsed("((a,b),c,(d,(e,f)));");
        let texts = [
            "((a,b),c,(d,(e,f)));",
            "((a,c),b,(d,(e,f)));",
            "((a,d),c,(b,(e,f)));",
            // Without `c`, which decides something at ef alone.
            "((a,b),d,(e,f));",
            "(a,b,c,(d,e,f));",
        ];
        let trees: Vec<Newick> = texts.iter().map(|text| parsed(text)).collect();
        let genes = GeneTrees::new(tree.tip_labels(), &trees, None).unwrap();
        let number = |label: &str| genes.labels.iter().position(|own| own == label);
        let around = branches(&tree, genes.taxa(), number);
        let found = by_genes(&genes, &around, &Serial).unwrap();
        let found: Vec<GeneFactors> = found.into_iter().map(Option::unwrap).collect();
        let shares = |one: &GeneFactors| [one.gcf, one.gdf1, one.gdf2, one.gdfp];
        assert_eq!(shares(&found[0]), [25.0, 25.0, 0.0, 50.0]);
        assert_eq!(
            found.iter().map(|one| one.decisive).collect::<Vec<_>>(),
            [4, 4, 5]
        );
        assert_eq!(shares(&found[1]), [75.0, 0.0, 0.0, 25.0]);
        assert_eq!(shares(&found[2]), [80.0, 0.0, 0.0, 20.0]);
        for one in &found {
            assert_eq!(shares(one).iter().sum::<f64>(), 100.0);
        }
    }

    #[test]
    fn sites_are_counted_and_four_tips_need_no_ancestors() {
        let text = b">a\nAAACGT-RA\n>b\nAATCGTAAC\n>c\nCTACGAAAA\n>d\nCTTCCAAAC\n";
        let alignment = Alignment::parse(text).unwrap();
        let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
        let newick = Newick::parse("((a:0.1,b:0.1):0.1,c:0.1,d:0.1);").unwrap();
        let number = |label: &str| alignment.names().iter().position(|own| own == label);
        let around = branches(&newick, 4, number);
        let sites = by_sites(&[&patterns], &around, 100, 1, &Serial).unwrap()[0].unwrap();
        // ab|cd at sites 1, 2 and 6, ac|bd at 3 and 9.
        assert_eq!(
            [sites.scf, sites.sdf1, sites.sdf2, sites.decisive],
            [60.0, 40.0, 0.0, 5.0]
        );
        let tree = Tree::from_newick(&newick, alignment.names()).unwrap();
        let model = ModelName::parse("JC+G4m{0.5}", &mut |_| unreachable!()).unwrap();
        let parts = vec![PartOptions::new(model, patterns)];
        let own = Likelihood::partitioned(tree, parts, Serial, Options::default()).unwrap();
        let found = by_likelihood(own.tree(), own.parts(), &around, &Serial).unwrap();
        let found = found[0].unwrap();
        // The `R` is an A or a G: with the As it decides nothing.
        for (one, other) in [
            (found.scf, sites.scf),
            (found.sdf1, sites.sdf1),
            (found.sdf2, sites.sdf2),
            (found.decisive, sites.decisive),
        ] {
            assert!((one - other).abs() < 1e-9, "{found:?} {sites:?}");
        }
    }

    #[test]
    fn few_quartets_are_all_taken_and_many_are_drawn() {
        let sets = [vec![0, 1], vec![2], vec![3, 4, 5], vec![6]];
        let mut random = Random::new(1);
        let mut all: Vec<_> = Quartets::new(&sets, 6, &mut random).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 6);
        let drawn: Vec<_> = Quartets::new(&sets, 5, &mut random).collect();
        assert_eq!(drawn.len(), 5);
        assert!(drawn.iter().all(|four| all.contains(four)));
    }
}
