//! Simulated alignments, and what is done with trees alone: distances, consensus, species,
//! concordance, dates, pictures.

use crate::alignment::Alignment;
use crate::interrupt::{interruptible, on_engines};
use crate::parts::{self, PhyloError, TreeText, choose, refuse, refuse_with};
use pyo3::prelude::*;
use sidecore_phylo::concordance::Concordance;
use sidecore_phylo::consensus::{Rule, consensus as agreed};
use sidecore_phylo::dating::{ClockOptions, Dates, DatingError, date as dated, without_outgroup};
use sidecore_phylo::io::data::{check_lengths, model_name};
use sidecore_phylo::likelihood::LikelihoodError;
use sidecore_phylo::model::Model;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::quartets::GeneTrees;
use sidecore_phylo::rooting::Method;
use sidecore_phylo::species::{
    GeneWeights, Weighting, score_tree, species_tree, weighted_species_tree,
};
use sidecore_phylo::{compare as trees, simulate as evolve};
use sidecore_plot::{TreeForm, TreeOptions, TreeTheme};
use sidecore_sys::folder::Folder;
use sidecore_workflow::picture;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Evolves an alignment along `tree`, or along a random tree of `taxa` taxa; returns it and the
/// tree. The model must have all its values.
#[pyfunction]
#[pyo3(signature = (model, sites, *, taxa=None, tree=None, seed=1, branch_mean=0.1))]
pub(crate) fn simulate(
    py: Python<'_>,
    model: &str,
    sites: usize,
    taxa: Option<usize>,
    tree: Option<TreeText>,
    seed: u64,
    branch_mean: f64,
) -> PyResult<(Alignment, String)> {
    if sites > SITES_MAX || !(1e-6..=10.0).contains(&branch_mean) {
        return Err(PhyloError::new_err(format!(
            "sites must be at most {SITES_MAX}, branch_mean from 1e-6 to 10"
        )));
    }
    let name = model_name(model).map_err(refuse_with(format!("model {model}")))?;
    let (tree, names) = match (tree, taxa) {
        (Some(text), None) => {
            let newick = Newick::parse(&text).map_err(refuse_with("tree"))?;
            let names = newick.tip_labels();
            parts::warn_of_lengths(py, &text)?;
            let tree = parts::tree(&text, &names)?;
            check_lengths(&tree).map_err(refuse_with("tree"))?;
            (tree, names)
        }
        (None, Some(taxa @ 4..)) => {
            let tree = evolve::tree_of_seed(taxa, branch_mean, seed);
            (tree, evolve::numbered_names(taxa))
        }
        _ => {
            return Err(PhyloError::new_err(
                "give taxa=N (4 or more), or tree=NEWICK",
            ));
        }
    };
    // Long alignments take seconds, in which other threads of Python run.
    py.detach(|| {
        let model = Model::without_alignment(name);
        let inner = evolve::simulate(&tree, &names, &model, sites, seed).map_err(refuse)?;
        Ok((Alignment { inner }, tree.to_newick(&names)))
    })
}

/// Distances of two trees with the same taxa: Robinson-Foulds, the same relative to its most, and
/// branch scores.
#[pyfunction]
pub(crate) fn compare(py: Python<'_>, a: TreeText, b: TreeText) -> PyResult<Bound<'_, PyAny>> {
    let found = trees::compare(&parts::newick(&a)?, &parts::newick(&b)?);
    parts::report(py, &found.map_err(refuse)?)
}

/// The Robinson-Foulds distances of all pairs of trees with the same taxa, and their means. A dict.
#[pyfunction]
pub(crate) fn compare_all(py: Python<'_>, trees: Vec<TreeText>) -> PyResult<Bound<'_, PyAny>> {
    let all = parts::newicks(&trees)?;
    let work = |stop: &AtomicBool| {
        // Relaxed: a flag alone.
        trees::compare_until(&all, u64::MAX, || stop.load(Ordering::Relaxed))
    };
    let found = interruptible(py, work, || Ok(()))?;
    parts::report(py, &found.map_err(refuse)?)
}

/// The consensus of trees, as a dict; the first `skip` of them are left out.
#[pyfunction]
#[pyo3(signature = (trees, *, rule="majority", above=None, skip=0))]
pub(crate) fn consensus<'py>(
    py: Python<'py>,
    trees: Vec<TreeText>,
    rule: &str,
    above: Option<f64>,
    skip: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let named = choose("rule", rule, &Rule::NAMED)?;
    let rule = match above {
        Some(share) if (0.5..1.0).contains(&share) => Rule::Above(share),
        Some(share) => {
            return Err(PhyloError::new_err(format!(
                "above={share}: at least 0.5 and below 1"
            )));
        }
        None => named,
    };
    let all = parts::newicks(&trees)?;
    let kept = all.get(skip..).unwrap_or_default();
    let found = py.detach(|| agreed(kept, rule)).map_err(refuse)?;
    parts::report(py, &found)
}

/// The tree of the species of gene trees, or with `score` that tree's fit to them. `weights` are
/// "support", "lengths" or "both". A dict.
#[pyfunction]
#[pyo3(signature = (
    genes, *, contract=None, score=None, engines=None, weights=None, support_range=None
))]
pub(crate) fn species<'py>(
    py: Python<'py>,
    genes: Vec<TreeText>,
    contract: Option<f64>,
    score: Option<TreeText>,
    engines: Option<usize>,
    weights: Option<&str>,
    support_range: Option<[f64; 2]>,
) -> PyResult<Bound<'py, PyAny>> {
    let tree = score.map(|text| parts::newick(&text)).transpose()?;
    let labels = tree.as_ref().map(Newick::tip_labels);
    let texts = parts::newicks(&genes)?;
    let genes = gene_trees(labels.unwrap_or_default(), &texts, contract)?;
    let by = weights.map(|name| choose("weights", name, &Weighting::NAMED));
    let weights = by
        .transpose()?
        .map(|by| GeneWeights::new(&genes, &texts, contract, by, support_range).map_err(refuse));
    let weights = weights.transpose()?;
    if weights.is_none() && support_range.is_some() {
        return Err(PhyloError::new_err("support_range is for weights=…"));
    }
    let found = on_engines(py, engines, |runner| match (&weights, &tree) {
        (Some(weights), tree) => weighted_species_tree(&genes, weights, tree.as_ref(), &runner),
        (None, Some(tree)) => score_tree(&genes, tree, &runner),
        (None, None) => species_tree(&genes, &runner),
    })?;
    parts::report(py, &found)
}

/// Shares of gene trees and of sites that agree with a tree's branches. A dict.
#[pyfunction]
#[pyo3(signature = (
    tree, *, genes=None, alignment=None, model=None, likelihood=false, quartets=1000, seed=1,
    engines=None
))]
#[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
pub(crate) fn concordance<'py>(
    py: Python<'py>,
    tree: TreeText,
    genes: Option<Vec<TreeText>>,
    alignment: Option<&Alignment>,
    model: Option<&str>,
    likelihood: bool,
    quartets: u32,
    seed: u64,
    engines: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let newick = parts::newick(&tree)?;
    let mut found = Concordance::new(&newick);
    if let Some(texts) = &genes {
        let genes = gene_trees(newick.tip_labels(), &parts::newicks(texts)?, None)?;
        on_engines(py, engines, |runner| found.add_genes(&genes, &runner))?;
    }
    match (alignment, model) {
        (None, None) if genes.is_some() => {}
        (Some(alignment), Some(model)) => {
            let names = alignment.inner.names();
            let own = parts::tree(&tree, names)?;
            let (parts, lengths) = parts::parts(py, &alignment.inner, model, None)?;
            on_engines(py, engines, |runner| -> Result<(), LikelihoodError> {
                found.add_sites(names, &parts, (quartets.max(1), seed), &runner)?;
                match likelihood {
                    true => found.add_likelihood(names, own, (parts, lengths), runner),
                    false => Ok(()),
                }
            })?;
        }
        _ => {
            return Err(PhyloError::new_err(
                "give genes=[…], or alignment=… with model=…, or all of them",
            ));
        }
    }
    parts::report(py, &found)
}

/// A date: a number, or a text such as "2013-05-31" or "b(2012,2013)".
#[derive(FromPyObject)]
pub(crate) enum Stamp {
    Number(f64),
    Text(String),
}

/// Dates by name, or the text of a file of dates.
#[derive(FromPyObject)]
pub(crate) enum Known {
    Text(String),
    Table(BTreeMap<String, Stamp>),
}

impl Known {
    fn dates(self) -> Result<Dates, DatingError> {
        let table = match self {
            Self::Text(text) => return Dates::parse(&text),
            Self::Table(table) => table,
        };
        // A heading, so that a first line without a date is an error like the others.
        let mut text = "name\tdate\n".to_owned();
        for (name, stamp) in table {
            // Else the line of such a name would be a comment.
            let name = match name.starts_with('#') {
                true => format!("'{name}'"),
                false => name,
            };
            let date = match stamp {
                Stamp::Number(date) => date.to_string(),
                Stamp::Text(date) => date,
            };
            text.push_str(&format!("{name}\t{date}\n"));
        }
        Dates::parse(&text)
    }
}

/// Dates the nodes of a rooted tree; its lengths are of an alignment of `sites` columns. Without
/// `dates` they are taken from the ends of the tips' names. A dict.
#[pyfunction]
#[pyo3(signature = (
    tree, sites, *, dates=None, outgroup=None, rate=None, replicates=0, spread=0.2, seed=1,
    engines=None
))]
#[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
pub(crate) fn date<'py>(
    py: Python<'py>,
    tree: TreeText,
    sites: usize,
    dates: Option<Known>,
    outgroup: Option<Vec<String>>,
    rate: Option<f64>,
    replicates: u32,
    spread: f64,
    seed: u64,
    engines: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut newick = parts::newick(&tree)?;
    if let Some(tips) = outgroup {
        newick = without_outgroup(&newick, tips).map_err(refuse)?;
    }
    if rate.is_some_and(|rate| !(1e-15..=1e9).contains(&rate)) || !(0.0..=10.0).contains(&spread) {
        return Err(PhyloError::new_err(
            "rate must be from 1e-15 to 1e9, spread from 0 to 10",
        ));
    }
    if sites == 0 || replicates > REPLICATES_MAX {
        return Err(PhyloError::new_err(format!(
            "sites must be at least 1, replicates at most {REPLICATES_MAX}"
        )));
    }
    let known = match dates {
        Some(known) => known.dates(),
        None => Dates::of_names(&newick),
    };
    let known = known.map_err(refuse)?;
    let options = ClockOptions {
        rate,
        replicates,
        spread,
        seed,
        ..ClockOptions::new(sites)
    };
    let found = on_engines(py, engines, |runner| {
        dated(&newick, &known, &options, &runner)
    })?;
    parts::report(py, &found)
}

/// A picture of a tree, which notebooks show.
#[pyclass(frozen, module = "sidecore_phylo")]
pub(crate) struct Picture {
    /// The picture as SVG.
    #[pyo3(get)]
    svg: String,
}

#[pymethods]
impl Picture {
    /// From SVG, as pickle makes it again.
    #[new]
    fn new(svg: String) -> Self {
        Self { svg }
    }

    fn __getnewargs__(&self) -> (&str,) {
        (&self.svg,)
    }

    /// Writes it to a file: all of it, or, where that fails, none.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        // A bare name has an empty parent, which cannot be opened.
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let name = path.file_name();
        let name = name.ok_or_else(|| Error::from(ErrorKind::InvalidFilename))?;
        let folder = Folder::open(folder.unwrap_or(Path::new(".")))?;
        Ok(folder.replace(name, 0o666, |file| file.write_all(self.svg.as_bytes()))?)
    }

    fn _repr_svg_(&self) -> &str {
        &self.svg
    }

    fn __repr__(&self) -> String {
        format!("Picture({} bytes of SVG)", self.svg.len())
    }
}

/// Draws a tree in Newick; labels of inner nodes are supports. `root` is "midpoint", "mad" or the
/// tips of an outgroup.
#[pyfunction]
#[pyo3(signature = (
    tree, *, form="rectangular", theme="auto", root=None, cladogram=false, keep_order=false
))]
pub(crate) fn draw(
    tree: TreeText,
    form: &str,
    theme: &str,
    root: Option<Root>,
    cladogram: bool,
    keep_order: bool,
) -> PyResult<Picture> {
    let options = TreeOptions {
        form: choose("form", form, &TreeForm::NAMED)?,
        theme: choose("theme", theme, &TreeTheme::NAMED)?,
        cladogram,
        keep_order,
        ..TreeOptions::default()
    };
    let method = root.map(Root::method).transpose()?;
    let svg = picture::draw(&parts::newick(&tree)?, method.as_ref(), options);
    let svg = svg.map_err(refuse)?;
    Ok(Picture { svg })
}

/// A way to root a tree.
#[derive(FromPyObject)]
pub(crate) enum Root {
    By(String),
    Outgroup(Vec<String>),
}

impl Root {
    /// The same for the functions of trees.
    pub(crate) fn method(self) -> PyResult<Method> {
        match self {
            Self::Outgroup(tips) => Ok(Method::Outgroup(tips)),
            Self::By(name) => match name.as_str() {
                "midpoint" => Ok(Method::Midpoint),
                "mad" => Ok(Method::Mad),
                _ => Err(PhyloError::new_err(format!(
                    "root={name:?}: \"midpoint\", \"mad\" or a list of tips"
                ))),
            },
        }
    }
}

/// Gene trees of the taxa `labels` alone, where there are some.
fn gene_trees(labels: Vec<String>, trees: &[Newick], contract: Option<f64>) -> PyResult<GeneTrees> {
    let taxa = labels.len();
    let genes = GeneTrees::new(labels, trees, contract).map_err(refuse)?;
    match genes.labels.get(taxa) {
        Some(label) if taxa > 0 => Err(PhyloError::new_err(format!(
            "a gene tree has the tip {label:?}, which the tree does not have"
        ))),
        _ => Ok(genes),
    }
}

/// As the command line has them: more would not end, or need more memory than there is.
const SITES_MAX: usize = 100_000_000;
const REPLICATES_MAX: u32 = 100_000;
