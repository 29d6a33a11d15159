//! Trees of an analysis: read from files, and checked against an alignment's taxa.

use super::{At, DataError, Reader};
use crate::dating::{ClockOptions, Dated, Dates, date, dating_bytes};
use crate::io::input::{self, Input};
use crate::likelihood::LENGTH_MIN;
use crate::msa::{Alignment, Patterns, Warning};
use crate::newick::Newick;
use crate::parsimony::parsimony_tree;
use crate::quartets::{GeneTrees, gene_trees_bytes};
use crate::random::Random;
use crate::species::{GeneWeights, Weighting};
use crate::tree::Tree;
use sidecore_bare::width::ToU64;
use sidecore_offload::Pool;
use std::path::{Path, PathBuf};

/// Refuses branches of negative length, where lengths are used as they are.
///
/// # Errors
/// [`DataError::NegativeLengths`].
pub fn check_lengths(tree: &Tree) -> Result<(), DataError> {
    match tree.edges().filter(|&edge| tree.length(edge) < 0.0).count() {
        0 => Ok(()),
        count => Err(DataError::NegativeLengths { count }),
    }
}

/// Trees of a file, in Newick or NEXUS.
#[derive(Debug)]
pub struct TreeFile {
    path: PathBuf,
    /// One or more.
    pub newicks: Vec<Newick>,
    /// Bytes of memory that working with them may take.
    pub memory: u64,
}

impl TreeFile {
    /// Those of an alignment's taxa.
    ///
    /// # Errors
    /// [`DataError`]: other taxa.
    pub fn of_taxa(&self, names: &[String]) -> Result<Vec<Tree>, DataError> {
        let tree = |(index, newick)| match self.newicks.len() {
            1 => Tree::from_newick(newick, names).at(self.path.display()),
            _ => {
                let place = format_args!("{}, tree {}", self.path.display(), index + 1);
                Tree::from_newick(newick, names).at(place)
            }
        };
        self.newicks.iter().enumerate().map(tree).collect()
    }

    /// The file's only tree.
    ///
    /// # Errors
    /// [`DataError::OneTree`].
    pub fn only(&self) -> Result<&Newick, DataError> {
        match self.newicks.as_slice() {
            [tree] => Ok(tree),
            all => Err(DataError::OneTree {
                path: self.path.clone(),
                count: all.len(),
            }),
        }
    }

    /// The same as a tree of an alignment's taxa.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn only_of(&self, names: &[String]) -> Result<Tree, DataError> {
        Tree::from_newick(self.only()?, names).at(self.path.display())
    }

    /// Warns of branches without a length, where lengths count.
    pub fn warn_of_lengths(&self, reader: Reader) {
        if let Some(warning) = Warning::no_length(&self.newicks) {
            (reader.warn)(&format!("{}: {warning}", self.path.display()));
        }
    }
}

impl Reader {
    /// Reads gene trees, of which branches with a support below `contract` are left out; of the
    /// taxa `labels` alone where there are some.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn gene_trees(
        self,
        path: &Path,
        labels: Vec<String>,
        contract: Option<f64>,
    ) -> Result<GeneTrees, DataError> {
        let (genes, _) = self.genes_of(path, labels, contract)?;
        Ok(genes)
    }

    /// As [`Reader::gene_trees`], with weights of their quartets. `range` are the labels of
    /// branches without support and with full support.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn weighted_gene_trees(
        self,
        path: &Path,
        labels: Vec<String>,
        contract: Option<f64>,
        (weighting, range): (Weighting, Option<[f64; 2]>),
    ) -> Result<(GeneTrees, GeneWeights), DataError> {
        let (genes, trees) = self.genes_of(path, labels, contract)?;
        let weights = GeneWeights::new(&genes, &trees, contract, weighting, range);
        Ok((genes, weights.at(path.display())?))
    }

    /// Gene trees, and the trees that they are made of.
    fn genes_of(
        self,
        path: &Path,
        labels: Vec<String>,
        contract: Option<f64>,
    ) -> Result<(GeneTrees, Vec<Newick>), DataError> {
        let file = self.trees(path)?;
        let nodes: usize = file.newicks.iter().map(|tree| tree.nodes().len()).sum();
        let taxa = labels.len();
        let most = file.newicks.iter().map(|tree| tree.tips().count()).max();
        let need = gene_trees_bytes(nodes, taxa.max(most.unwrap_or(0)));
        self.memory.check_work("the gene trees", need)?;
        let genes = GeneTrees::new(labels, &file.newicks, contract).at(path.display())?;
        match genes.labels.get(taxa) {
            Some(label) if taxa > 0 => Err(DataError::ForeignTip {
                path: path.to_owned(),
                label: label.clone(),
            }),
            _ => Ok((genes, file.newicks)),
        }
    }

    /// Reads a file with one tree or more.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn trees(self, path: &Path) -> Result<TreeFile, DataError> {
        // Bounds of size first, then of the nodes that the text claims.
        let input = Input::read(path, self.memory)?;
        let memory = input.memory;
        let text = input.into_text(path)?;
        let shown = path.display();
        // Refused before they are parsed: a file may have nothing but brackets.
        let need = Newick::parsed_bytes(&text);
        input::check(&format!("{shown}: reading the trees"), need, memory)?;
        let newicks = Newick::parse_file(&text).at(&shown)?;
        if newicks.is_empty() {
            let path = path.to_owned();
            return Err(DataError::NoTree { path });
        }
        // `[&W 1/3]`: a comment that gives the tree a weight in programs that read it.
        let weighted = text.match_indices("[&").filter(|(at, mark)| {
            // By bytes: the two after the mark may be half of a character.
            let word = text.as_bytes().get(at + mark.len()..at + mark.len() + 2);
            word.is_some_and(|word| word[0].eq_ignore_ascii_case(&b'W') && word[1] == b' ')
        });
        let weighted = weighted.count();
        if weighted > 0 {
            (self.warn)(&format!(
                "{shown}: trees with weights, `[&W …]`: {weighted}, all count alike"
            ));
        }
        Ok(TreeFile {
            path: path.to_owned(),
            newicks,
            memory,
        })
    }

    /// Reads a file of dates.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn dates(self, path: &Path) -> Result<Dates, DataError> {
        Dates::parse(&self.text(path)?).at(path.display())
    }

    /// Dates a rooted tree, of the file `of`; warns of dates that are of none of its nodes. Blocks.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn dated(
        self,
        (tree, of): (&Newick, &Path),
        known: &Dates,
        options: &ClockOptions,
        pool: &Pool,
    ) -> Result<Dated, DataError> {
        let need = dating_bytes(tree, pool.engines().to_u64(), options.replicates);
        self.memory.check_work("dating the tree", need)?;
        let found = date(tree, known, options, pool).at(of.display())?;
        if found.dates_unused > 0 {
            let count = found.dates_unused;
            (self.warn)(&format!(
                "dates of names that the tree does not have: {count}"
            ));
        }
        Ok(found)
    }

    /// The tree to fit models on: the file's, or else one by parsimony.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn tree_to_fit_on(
        self,
        path: Option<&Path>,
        alignment: &Alignment,
        patterns: &[&Patterns],
        seed: u64,
    ) -> Result<Tree, DataError> {
        let Some(path) = path else {
            return Ok(parsimony_tree(patterns, None, &mut Random::new(seed)));
        };
        self.trees(path)?.only_of(alignment.names())
    }

    /// Reads a file of trees of an alignment's taxa; warns of missing lengths where `is_measured`:
    /// where lengths count as they are.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn trees_of(
        self,
        path: &Path,
        names: &[String],
        is_measured: bool,
    ) -> Result<Vec<Tree>, DataError> {
        let file = self.trees(path)?;
        let trees = file.of_taxa(names)?;
        if is_measured {
            file.warn_of_lengths(self);
        }
        Ok(trees)
    }

    /// Trees of an alignment's taxa to be evaluated, as [`Reader::trees_of`] reads them. Warns of
    /// branches below the least length. With `sites`, also checks the memory for the log-likelihood
    /// of as many columns under each tree.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn trees_to_evaluate(
        self,
        path: &Path,
        names: &[String],
        is_measured: bool,
        sites: Option<usize>,
    ) -> Result<Vec<Tree>, DataError> {
        let trees = self.trees_of(path, names, is_measured)?;
        if let Some(sites) = sites {
            let cells = trees.len().to_u64().saturating_mul(sites.to_u64());
            let need = cells.saturating_mul(SITE_BYTES);
            self.memory.check_work("each tree's sites", need)?;
        }
        let is_short = |tree: &Tree, edge| tree.length(edge) < LENGTH_MIN;
        let short = |tree: &Tree| tree.edges().filter(|edge| is_short(tree, *edge)).count();
        let short: usize = trees.iter().map(short).sum();
        if short > 0 {
            (self.warn)(&format!(
                "{short} branches are shorter than {LENGTH_MIN}: set to that"
            ));
        }
        Ok(trees)
    }
}

/// Bytes of a site's log-likelihood and its text.
const SITE_BYTES: u64 = 8 + 20;
