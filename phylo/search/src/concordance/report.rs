//! Concordance of all inner branches of a tree: collected, as labels and as a table.
//!
//! Must stay true: rows stand in the order of the tree's branches, whichever values they have.

use super::{GeneFactors, SiteFactors, by_genes, by_likelihood, by_sites, labelled};
use crate::evaluation::Fit;
use crate::likelihood::{Lengths, LikelihoodError, PartOptions};
use crate::msa::Patterns;
use crate::newick::Newick;
use crate::quartets::{Around, GeneTrees, branches};
use crate::runner::Runner;
use crate::tree::Tree;
use serde::ser::{Serialize, SerializeStruct as _, Serializer};
use sidecore_offload::OffloadError;

/// Values of an inner branch.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(super) struct BranchFactors {
    #[serde(skip)]
    node: usize,
    /// Tips at one of its ends.
    clade: Vec<String>,
    /// Its label in the tree.
    label: String,
    /// Its length there.
    length: Option<f64>,
    /// Shares of gene trees.
    genes: Option<GeneFactors>,
    /// Shares of sites, by parsimony.
    sites: Option<SiteFactors>,
    /// Shares of sites, by likelihood.
    likelihood: Option<SiteFactors>,
}

/// The branches of a tree, with the values that were added.
#[derive(Debug, Clone)]
pub struct Concordance<'t> {
    tree: &'t Newick,
    labels: Vec<String>,
    branches: Vec<BranchFactors>,
    /// Gene trees, where their values were added.
    gene_trees: Option<usize>,
    /// Kinds of values that were added, for the labels: genes, sites, likelihood.
    added: [bool; 3],
}

impl<'t> Concordance<'t> {
    /// The branches of a tree, without values.
    #[must_use]
    pub fn new(tree: &'t Newick) -> Self {
        let labels = tree.tip_labels();
        let branches = around(tree, &labels).into_iter().map(|at| {
            let node = &tree.nodes()[at.node];
            let side = at.side(0);
            BranchFactors {
                node: at.node,
                clade: side.taxa().map(|taxon| labels[taxon].clone()).collect(),
                label: node.label.clone(),
                length: node.length,
                genes: None,
                sites: None,
                likelihood: None,
            }
        });
        Self {
            branches: branches.collect(),
            tree,
            labels,
            gene_trees: None,
            added: [false; 3],
        }
    }

    /// Adds the shares of gene trees, whose taxa are numbered as the tree's tips. Blocks.
    ///
    /// # Errors
    /// [`OffloadError`] when an engine failed.
    pub fn add_genes(
        &mut self,
        genes: &GeneTrees,
        runner: &impl Runner,
    ) -> Result<(), OffloadError> {
        let found = by_genes(genes, &around(self.tree, &self.labels), runner)?;
        self.added[0] = true;
        self.gene_trees = Some(genes.trees());
        self.each(found, |branch, own| branch.genes = own);
        Ok(())
    }

    /// Adds the shares of sites by parsimony; `names` are the alignment's. Blocks.
    ///
    /// # Errors
    /// As [`Self::add_genes`].
    pub fn add_sites(
        &mut self,
        names: &[String],
        parts: &[PartOptions],
        (quartets, seed): (u32, u64),
        runner: &impl Runner,
    ) -> Result<(), OffloadError> {
        let parts: Vec<&Patterns> = parts.iter().map(|part| &part.patterns).collect();
        let found = by_sites(&parts, &around(self.tree, names), quartets, seed, runner)?;
        self.added[1] = true;
        self.each(found, |branch, own| branch.sites = own);
        Ok(())
    }

    /// Adds the shares of sites by likelihood, on the tree as `own`, whose lengths and the models'
    /// free parameters are fitted. Blocks.
    ///
    /// # Errors
    /// [`LikelihoodError`].
    pub fn add_likelihood(
        &mut self,
        names: &[String],
        own: Tree,
        parts: (Vec<PartOptions>, Lengths),
        runner: impl Runner + Copy,
    ) -> Result<(), LikelihoodError> {
        let (fitted, _) = Fit::All.likelihood(own, parts, EPSILON, runner)?;
        let (tree, parts) = (fitted.tree(), fitted.parts());
        let found = by_likelihood(tree, parts, &around(self.tree, names), &runner)?;
        self.added[2] = true;
        self.each(found, |branch, own| branch.likelihood = own);
        Ok(())
    }

    fn each<T>(&mut self, found: Vec<T>, set: impl Fn(&mut BranchFactors, T)) {
        for (branch, own) in self.branches.iter_mut().zip(found) {
            set(branch, own);
        }
    }

    /// The tree with all values in its labels.
    #[must_use]
    pub fn labelled(&self) -> Newick {
        let values = |row: &BranchFactors| {
            let all = [
                row.genes.map(|own| own.gcf),
                row.sites.map(|own| own.scf),
                row.likelihood.map(|own| own.scf),
            ];
            let added = all.into_iter().zip(self.added).filter(|(_, added)| *added);
            // Where nothing is decisive nothing speaks for the branch.
            added.map(|(value, _)| value.unwrap_or(0.0)).collect()
        };
        let values: Vec<_> = (self.branches.iter())
            .map(|row| (row.node, values(row)))
            .collect();
        labelled(self.tree, &values)
    }

    /// All values as a table: a heading, then a line a branch, with tabs between; `NA` where there
    /// is no value.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("{}\n", COLUMNS.join("\t"));
        for row in &self.branches {
            let length = row.length.map_or("NA".into(), |length| length.to_string());
            let genes = row.genes.map_or([f64::NAN; 5], |own| {
                [own.gcf, own.gdf1, own.gdf2, own.gdfp, own.decisive.into()]
            });
            let of_sites = |own: Option<SiteFactors>| {
                own.map_or([f64::NAN; 4], |own| {
                    [own.scf, own.sdf1, own.sdf2, own.decisive]
                })
            };
            let values = genes.into_iter().chain(of_sites(row.sites));
            let values = values.chain(of_sites(row.likelihood));
            let values = values.map(|value| match value.is_nan() {
                true => "NA".to_owned(),
                false => format!("{value:.4}"),
            });
            let cells: Vec<String> = [row.clade.join(","), row.label.clone(), length]
                .into_iter()
                .chain(values)
                .collect();
            text.push_str(&format!("{}\n", cells.join("\t")));
        }
        text
    }
}

impl Serialize for Concordance<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut object = to.serialize_struct("Concordance", 3)?;
        object.serialize_field("trees", &self.gene_trees)?;
        object.serialize_field("branches", &self.branches)?;
        object.serialize_field("tree", &self.labelled().to_string())?;
        object.end()
    }
}

/// The inner branches of a tree, their taxa numbered as `labels`.
fn around(tree: &Newick, labels: &[String]) -> Vec<Around> {
    branches(tree, labels.len(), |label| {
        labels.iter().position(|own| own == label)
    })
}

/// Gain in log-likelihood below which the fit ends.
const EPSILON: f64 = 0.01;
const COLUMNS: [&str; 16] = [
    "clade", "label", "length", "gcf", "gdf1", "gdf2", "gdfp", "gn", "scf", "sdf1", "sdf2", "sn",
    "scfl", "sdfl1", "sdfl2", "snl",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Serial;

    #[test]
    fn labels_and_table_have_what_was_added() {
        let tree = Newick::parse("((a:1,b:1)90:2,c:1,(d:1,e:1):1);").unwrap();
        let texts = ["((a,b),c,(d,e));", "((a,c),b,(d,e));"];
        let genes: Vec<Newick> = (texts.iter())
            .map(|text| Newick::parse(text).unwrap())
            .collect();
        let genes = GeneTrees::new(tree.tip_labels(), &genes, None).unwrap();
        let mut found = Concordance::new(&tree);
        found.add_genes(&genes, &Serial).unwrap();
        let labelled = found.labelled().to_string();
        assert_eq!(labelled, "((a:1,b:1)90/50:2,c:1,(d:1,e:1)100:1);");
        let table = found.table();
        let lines: Vec<Vec<&str>> = table.lines().map(|it| it.split('\t').collect()).collect();
        assert!(lines.iter().all(|cells| cells.len() == COLUMNS.len()));
        let row = lines.iter().find(|cells| cells[1] == "90").unwrap();
        assert_eq!(&row[2..6], ["2", "50.0000", "50.0000", "0.0000"]);
        assert_eq!(row[8], "NA");
    }
}
