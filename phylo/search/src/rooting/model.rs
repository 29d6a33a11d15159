//! Roots by a nonreversible model: each branch as the root, and tests of all of them against one
//! another. Rootstraps: shares of rooted replicates whose root is on a branch.
//!
//! Lengths are fitted for each root, the model's free parameters at the best one of a first, coarse
//! round. Then roots are compared as trees are by `phylo test`, since each is another hypothesis
//! about the same sites.
//! Sources: Naser-Khdour, Minh and Lanfear, "Assessing confidence in root placement on
//! phylogenies: an empirical study using nonreversible models for mammals", Systematic Biology 71
//! (2022), 959-972, for rootstraps and tests of roots; `topology` has the tests' own.

use super::unrooted::Unrooted;
use super::{Place, RootError, as_text};
use crate::likelihood::LikelihoodError;
use crate::msa::Patterns;
use crate::newick::Newick;
use crate::rooted::{RootedLikelihood, RootedModel, RootedModelName, RootedTree};
use crate::runner::Runner;
use crate::splits::{CompareError, Taxa};
use crate::taxa::{TaxonSet, clades};
use crate::topology::{self, SiteTable, TopologyError, Verdict};
use crate::tree::TreeError;
use sidecore_terminal::{Column, Table, Text};
use std::collections::HashMap;

/// Errors that keep roots from being compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelRootError {
    /// A tree that is no tree of the alignment's taxa.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Too small, or a tip twice.
    #[error(transparent)]
    Root(#[from] RootError),
    /// Replicates of other taxa.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// A replicate without a root.
    #[error("tree {tree} of the replicates has no root of two branches, `(…,…);`")]
    NoRoot {
        /// Its place, from 1.
        tree: usize,
    },
    /// No likelihood.
    #[error(transparent)]
    Likelihood(#[from] LikelihoodError),
    /// No tests.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// A branch as the place of the root.
#[derive(Debug, Clone, serde::Serialize)]
struct RootPlace {
    /// The tree with its root there, with the lengths that fit best. Serialized as its text.
    #[serde(serialize_with = "as_text")]
    tree: Newick,
    /// The taxa on the smaller side of the root.
    outgroup: Vec<String>,
    #[serde(flatten)]
    verdict: Verdict,
}

/// All branches as the place of the root.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ModelRoots {
    /// The model with all its values.
    pub model: String,
    /// The best one first.
    roots: Vec<RootPlace>,
}

impl ModelRoots {
    /// The tree with the best root.
    #[must_use]
    pub fn best(&self) -> Option<&Newick> {
        self.roots.first().map(|place| &place.tree)
    }

    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        text.fact("model", self.model.clone());
        let mut table = Table::new([
            Column::right("root"),
            Column::right("log-likelihood"),
            Column::right("delta").rank(3),
            Column::right("bp-RELL").rank(2),
            Column::right("c-ELW").rank(4),
            Column::right("p-AU"),
            Column::left("outgroup"),
        ]);
        for (at, own) in self.roots.iter().enumerate() {
            let mut cells = vec![(at + 1).to_string()];
            let verdict = own.verdict;
            let figures = [
                verdict.lnl,
                verdict.delta,
                verdict.bp_rell,
                verdict.c_elw,
                verdict.p_au,
            ];
            cells.extend(figures.map(|figure| format!("{figure:.4}")));
            cells.push(own.outgroup.join(","));
            table.row(cells);
        }
        text.table(table);
        if let Some(best) = self.best() {
            text.fact("tree", best.to_string());
        }
        text
    }
}

/// The tree with its root in the middle of each branch in turn.
fn on_each_branch(newick: &Newick) -> Vec<Newick> {
    let tree = Unrooted::new(newick);
    let places = (0..tree.edges()).map(|edge| Place { edge, share: 0.5 });
    places.map(|place| tree.rooted(place)).collect()
}

/// Compares all branches of a tree as the place of its root, whether it has one or not.
/// `progress` receives the number of fits that are done, and of all. Blocks.
///
/// # Errors
/// [`ModelRootError`].
pub fn by_model(
    newick: &Newick,
    names: &[String],
    patterns: &Patterns,
    model: RootedModelName,
    options: &topology::Options,
    runner: &impl Runner,
    mut progress: impl FnMut(usize, usize),
) -> Result<ModelRoots, ModelRootError> {
    let tips = newick.tips().count();
    if tips < 3 {
        return Err(RootError::TooSmall { tips }.into());
    }
    let rooted = |newick: &Newick| {
        let trees = on_each_branch(newick);
        let trees = trees.iter().map(|own| RootedTree::from_newick(own, names));
        trees.collect::<Result<Vec<_>, _>>()
    };
    let mut trees = rooted(newick)?;
    let all = 2 * trees.len() + 2;
    let model = RootedModel::new(model, patterns);
    let first = trees.swap_remove(0);
    let mut likelihood = RootedLikelihood::new(first, patterns, model, runner)?;
    likelihood.optimise(COARSE)?;
    progress(1, all);
    let mut trees = rooted(&likelihood.tree().to_newick())?;
    let (mut best, mut most) = (0, f64::NEG_INFINITY);
    for (at, tree) in trees.iter_mut().enumerate() {
        likelihood.set_tree(tree.clone());
        let lnl = likelihood.optimise_lengths(COARSE, ROUNDS_MAX)?;
        *tree = likelihood.tree().clone();
        if lnl > most {
            (best, most) = (at, lnl);
        }
        progress(at + 2, all);
    }
    likelihood.set_tree(trees[best].clone());
    likelihood.optimise(EPSILON)?;
    progress(trees.len() + 2, all);
    let mut sites = Vec::new();
    for (at, tree) in trees.iter_mut().enumerate() {
        likelihood.set_tree(tree.clone());
        likelihood.optimise_lengths(EPSILON, ROUNDS_MAX)?;
        *tree = likelihood.tree().clone();
        sites.push(likelihood.site_log_likelihoods()?);
        progress(all / 2 + at + 2, all);
    }
    let verdicts = compared(&sites, options, runner)?;
    Ok(ModelRoots {
        model: likelihood.model().to_string(),
        roots: places(&trees, verdicts),
    })
}

/// Each root with its verdict, the best one first.
fn places(trees: &[RootedTree], verdicts: Vec<Verdict>) -> Vec<RootPlace> {
    let places = trees.iter().zip(verdicts).map(|(tree, verdict)| {
        let tree = tree.to_newick();
        RootPlace {
            outgroup: outgroup(&tree),
            tree,
            verdict,
        }
    });
    let mut roots: Vec<RootPlace> = places.collect();
    // A stable sort: the first of equals wins.
    roots.sort_by(|a, b| b.verdict.lnl.total_cmp(&a.verdict.lnl));
    roots
}

/// Tests of the roots' sites, of which those without a character are no draws.
fn compared(
    sites: &[Vec<f64>],
    options: &topology::Options,
    runner: &impl Runner,
) -> Result<Vec<Verdict>, TopologyError> {
    let columns = 0..sites.first().map_or(0, Vec::len);
    let says = |site: &usize| sites.iter().any(|root| root[*site] != 0.0);
    let said: Vec<usize> = columns.filter(says).collect();
    let kept = |root: &Vec<f64>| said.iter().map(|&site| root[site]).collect();
    let kept: Vec<Vec<f64>> = sites.iter().map(kept).collect();
    let table = SiteTable::new(&kept)?;
    topology::compare(&table, options, runner, |_, _| {})
}

/// The tips on the smaller side of a root; of the first branch where both sides are as large.
fn outgroup(tree: &Newick) -> Vec<String> {
    let nodes = tree.nodes();
    // For each node the branch of the root that it is behind; parents come first.
    let mut side = vec![0; nodes.len()];
    let mut tips = vec![Vec::new(); nodes[0].children.len()];
    for (at, node) in nodes.iter().enumerate().skip(1) {
        side[at] = match node.parent {
            Some(parent) if parent > 0 => side[parent],
            _ => nodes[0]
                .children
                .iter()
                .position(|&own| own == at)
                .unwrap_or(0),
        };
        if node.children.is_empty() {
            tips[side[at]].push(node.label.clone());
        }
    }
    tips.into_iter().min_by_key(Vec::len).unwrap_or_default()
}

/// The share of rooted replicates whose root is on a branch.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
struct RootShare {
    /// From 0 to 1.
    share: f64,
    /// The taxa behind the branch, seen from the tree's own root.
    taxa: Vec<String>,
}

/// Rootstraps of a tree's branches.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Rootstrap {
    /// The tree; labels of inner nodes are the shares of the branches above them, in per cent.
    /// Serialized as its text.
    #[serde(serialize_with = "as_text")]
    pub tree: Newick,
    /// That of the tree's own root; none where it has no root of two branches.
    pub root: Option<f64>,
    /// The branches that are the root of a replicate, the most frequent one first.
    branches: Vec<RootShare>,
    /// The share of replicates whose root is on no branch of the tree.
    pub elsewhere: f64,
    /// Number of replicates.
    pub replicates: usize,
}

impl Rootstrap {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        let shown = |share: f64| format!("{:.1} %", 100.0 * share);
        if let Some(share) = self.root {
            text.fact("the tree's root", shown(share));
        }
        text.fact("on no branch of it", shown(self.elsewhere));
        text.fact("replicates", self.replicates.to_string());
        let mut table = Table::new([Column::right("share"), Column::left("taxa")]);
        for own in &self.branches {
            table.row([shown(own.share), own.taxa.join(",")]);
        }
        text.table(table);
        text.fact("tree", self.tree.to_string());
        text
    }
}

/// Counts the roots of replicates on the branches of a tree, whether it has a root or not.
///
/// # Errors
/// [`ModelRootError::Compare`], [`ModelRootError::NoRoot`].
pub fn rootstrap(tree: &Newick, replicates: &[Newick]) -> Result<Rootstrap, ModelRootError> {
    let taxa = Taxa::of(tree)?;
    let counts = roots_of(replicates, &taxa)?;
    let all = replicates.len();
    let share = |count: usize| count as f64 / all.max(1) as f64;
    let nodes = tree.nodes();
    let below = clades(tree, taxa.len(), |label| Some(taxa.number(label)));
    let tips: Vec<&str> = tree.tips().map(|tip| nodes[tip].label.as_str()).collect();
    // The two branches at a root are one: the first stands for both.
    let root = match nodes[0].children[..] {
        [first, second] => Some([first, second]),
        _ => None,
    };
    let (mut labelled, mut branches) = (tree.clone(), Vec::new());
    let (mut of_root, mut found) = (None, 0);
    labelled.set_label(0, String::new());
    for (node, own) in nodes.iter().enumerate().skip(1) {
        let split = without_first(&below[node], taxa.len());
        let count = counts.get(&split).copied().unwrap_or(0);
        if !own.children.is_empty() {
            labelled.set_label(node, format!("{:.0}", 100.0 * share(count)));
        }
        match root {
            Some([_, second]) if node == second => continue,
            Some([first, _]) if node == first => of_root = Some(share(count)),
            _ => {}
        }
        if count > 0 {
            found += count;
            let names = below[node].taxa().map(|taxon| tips[taxon].to_owned());
            branches.push(RootShare {
                share: share(count),
                taxa: names.collect(),
            });
        }
    }
    branches.sort_by(|a, b| b.share.total_cmp(&a.share));
    Ok(Rootstrap {
        tree: labelled,
        root: of_root,
        branches,
        elsewhere: share(all.saturating_sub(found)),
        replicates: all,
    })
}

/// The splits at the replicates' roots, each with its number.
fn roots_of(
    replicates: &[Newick],
    taxa: &Taxa,
) -> Result<HashMap<TaxonSet, usize>, ModelRootError> {
    let mut counts = HashMap::new();
    for (at, own) in replicates.iter().enumerate() {
        taxa.check(own)?;
        let &[child, _] = &own.nodes()[0].children[..] else {
            return Err(ModelRootError::NoRoot { tree: at + 1 });
        };
        let below = clades(own, taxa.len(), |label| Some(taxa.number(label)));
        let split = without_first(&below[child], taxa.len());
        *counts.entry(split).or_default() += 1;
    }
    Ok(counts)
}

/// The side of a split without taxon 0, which stands for both.
fn without_first(side: &TaxonSet, taxa: usize) -> TaxonSet {
    match side.has(0) {
        true => TaxonSet::all(taxa).without(side),
        false => side.clone(),
    }
}

/// Gains in log-likelihood below which fits end: before the best root is known, and after.
const COARSE: f64 = 0.1;
const EPSILON: f64 = 0.001;
const ROUNDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msa::Alignment;
    use crate::runner::Serial;

    fn parse(text: &str) -> Newick {
        Newick::parse(text).unwrap()
    }

    #[test]
    fn rootstraps_are_shares_of_roots() {
        let tree = parse("(((a:1,b:1)x:1,c:1)y:1,(d:1,e:1)z:1);");
        let replicates = [
            "(((a,b),c),(d,e));",
            "((a,b),(c,(d,e)));",
            "((d,e),(c,(a,b)));",
            "(a,(b,(c,(d,e))));",
            "((a,d),(b,(c,e)));",
        ];
        let found = rootstrap(&tree, &replicates.map(parse)).unwrap();
        assert_eq!(found.root, Some(0.4));
        assert!((found.elsewhere - 0.2).abs() < 1e-12);
        assert_eq!(
            found.tree.to_string(),
            "(((a:1,b:1)20:1,c:1)40:1,(d:1,e:1)40:1);"
        );
        let shares: Vec<(f64, String)> = found
            .branches
            .iter()
            .map(|own| (own.share, own.taxa.join("")))
            .collect();
        let expected = [(0.4, "abc"), (0.2, "ab"), (0.2, "a")];
        assert_eq!(
            shares,
            expected.map(|(share, taxa)| (share, taxa.to_owned()))
        );
        let error = rootstrap(&tree, &[parse("((a,b),c,(d,e));")]).unwrap_err();
        assert!(error.to_string().contains("tree 1"), "{error}");
        assert!(rootstrap(&tree, &[parse("((a,b),(c,d));")]).is_err());
        assert_eq!(rootstrap(&parse("(a,b,(c,d));"), &[]).unwrap().root, None);
    }

    #[test]
    fn the_outgroup_is_the_smaller_side() {
        for (text, expected) in [
            ("((a,b),(c,(d,e)));", vec!["a", "b"]),
            ("((a,(b,c)),d);", vec!["d"]),
            ("((a,b),(c,d));", vec!["a", "b"]),
        ] {
            assert_eq!(outgroup(&parse(text)), expected, "{text}");
        }
    }

    #[test]
    fn all_branches_are_tried_and_a_reversible_matrix_tells_none_apart() {
        let rows = [
            "ACGTTACGAACGTTGCAAGT",
            "ACGTAACGAACGTTGCATGT",
            "ACCTTACGATCGTTGGAAGT",
            "AGCTTACCATCGATGGAAGA",
        ];
        let names: Vec<String> = "abcd".chars().map(String::from).collect();
        let rows = rows.map(|row| row.as_bytes().to_vec()).to_vec();
        let alignment = Alignment::new(names.clone(), rows).unwrap();
        let tree = parse("((a:0.1,b:0.1):0.1,c:0.1,d:0.2);");
        let options = topology::Options {
            replicates: 200,
            seed: 1,
        };
        let run = |model: &str| {
            let name =
                RootedModelName::parse(model, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
            let name = name.unwrap().unwrap();
            let patterns = Patterns::new(&alignment, name.alphabet()).unwrap();
            let mut last = (0, 0);
            let found = by_model(
                &tree,
                &names,
                &patterns,
                name,
                &options,
                &Serial,
                |at, all| {
                    assert!(at > last.0 && at <= all);
                    last = (at, all);
                },
            );
            assert_eq!(last, (12, 12));
            found.unwrap()
        };
        // Jukes and Cantor's.
        let found = run("UNREST{1/1/1/1/1/1/1/1/1/1/1/1}");
        assert_eq!(found.roots.len(), 5);
        for own in &found.roots {
            assert!(own.verdict.delta < 0.01, "{own:?}");
            assert_eq!(own.tree.nodes()[0].children.len(), 2);
        }
        let mut outgroups: Vec<String> = found
            .roots
            .iter()
            .map(|own| own.outgroup.join(""))
            .collect();
        outgroups.sort();
        assert_eq!(outgroups, ["a", "b", "c", "cd", "d"]);
        // In a circle, roots differ.
        let found = run("UNREST{9/1/1/1/9/1/1/1/9/9/1/1}");
        let deltas: Vec<f64> = found.roots.iter().map(|own| own.verdict.delta).collect();
        assert!(deltas[0] == 0.0 && deltas[4] > 0.01, "{deltas:?}");
        assert!(deltas.is_sorted());
    }
}
