//! Work on trees that a file has: roots, supports, tests, states of inner nodes, places of other
//! sequences, and the species tree of gene trees.
//!
//! Must stay true: what takes more memory than is allowed, or longer than is, is refused before the
//! work; an error names the file that is at fault.

use crate::live::support_bar;
use crate::setup::check_bnni;
use crate::{WorkflowError, refuse};
use serde::Serialize;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_offload::Pool;
use sidecore_phylo::analysis::supports::{AlignmentKind, AlignmentSupport, Support, SupportReport};
use sidecore_phylo::ancestors::{AncestralSequences, ancestors_bytes};
use sidecore_phylo::evaluation::Fit;
use sidecore_phylo::io::data::{At, Data, DataError, Reader, TreeFile, linkage};
use sidecore_phylo::io::input::{self, model_file};
use sidecore_phylo::likelihood::{Likelihood, PartOptions};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::placement::{Placements, Queries, place, placement_bytes};
use sidecore_phylo::rooted::{RootedModel, RootedModelName, all_roots_bytes};
use sidecore_phylo::rooting::{
    Method, ModelRoots, Rooted, Rootstrap, by_model, check_steps, root, root_bytes, rootstrap,
};
use sidecore_phylo::species::{
    SpeciesTree, Weighting, score_tree, species_tree, weighted_species_tree,
};
use sidecore_phylo::support::{Kind, Reference};
use sidecore_phylo::topology::{self, SiteTable, TopologyError, Verdict, compare, fitted_sites};
use sidecore_phylo::tree::Tree;
use sidecore_terminal::Text;
use sidecore_terminal::progress::{advance, counted};
use std::path::Path;

/// The tips of an outgroup: names with `,` between, or `@FILE` with a name a line.
///
/// # Errors
/// [`WorkflowError`]: the file, or no name at all.
pub fn outgroup(reader: Reader, names: &str) -> Result<Vec<String>, WorkflowError> {
    let text = match names.strip_prefix('@') {
        Some(path) => reader.text(path.as_ref())?,
        None => names.replace(',', "\n"),
    };
    let names = text.lines().map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    match names.is_empty() {
        true => refuse("--outgroup names no tip"),
        false => Ok(names),
    }
}

/// A file of trees by its name, and its trees as Newick, one a line; `-` is standard input.
///
/// # Errors
/// [`WorkflowError`].
pub fn shown(reader: Reader, path: &Path) -> Result<(String, String), WorkflowError> {
    let (name, path) = match path == Path::new("-") {
        true => ("standard input".into(), Path::new("/dev/stdin")),
        false => {
            let name = path.file_name().unwrap_or(path.as_os_str());
            (name.to_string_lossy(), path)
        }
    };
    let trees = reader.trees(path)?.newicks;
    let lines = trees.iter().map(|tree| format!("{tree}\n")).collect();
    Ok((name.into_owned(), lines))
}

/// Trees of a file that get roots.
#[derive(Debug, Clone, Copy)]
pub struct Roots<'r> {
    /// Reads the files.
    pub reader: Reader,
    /// The trees.
    pub trees: &'r Path,
    /// True where the user has bounded the time: else trees that take long are refused.
    pub is_timed: bool,
}

/// Trees with their roots.
#[derive(Debug, Serialize)]
pub struct RootedTrees {
    trees: Vec<Rooted>,
}

impl RootedTrees {
    /// The trees as Newick.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.trees.iter().map(|it| it.tree.to_string()).collect()
    }
}

impl Roots<'_> {
    /// A root for each tree.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn by(&self, method: &Method) -> Result<RootedTrees, WorkflowError> {
        let file = self.reader.trees(self.trees)?;
        input::check("rooting the trees", root_bytes(&file.newicks), file.memory)?;
        self.check_time(Some(method), &file.newicks)?;
        let each = file.newicks.iter().enumerate();
        let each = each.map(|(index, tree)| {
            let place = format_args!("{}, tree {}", self.trees.display(), index + 1);
            root(tree, method).at(place)
        });
        let trees = each.collect::<Result<_, DataError>>()?;
        Ok(RootedTrees { trees })
    }

    /// Refuses trees that take long, unless the user has said how long it may take.
    pub(crate) fn check_time(
        &self,
        method: Option<&Method>,
        trees: &[Newick],
    ) -> Result<(), DataError> {
        match method == Some(&Method::Mad) && !self.is_timed {
            true => check_steps(trees).at(self.trees.display()),
            false => Ok(()),
        }
    }

    /// Each branch of the file's only tree as the root, under a nonreversible model. Blocks.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn by_model(
        &self,
        model: &str,
        msa: &Path,
        options: &topology::Options,
        pool: &Pool,
    ) -> Result<ModelRoots, WorkflowError> {
        // Models of populations are reversible: they tell no root from another.
        let name = RootedModelName::parse(model, &mut model_file)?;
        let Some(name) = name.filter(|name| !name.is_of_populations()) else {
            return refuse(format!(
                "--model {model}: the place of a root needs a nonreversible model, UNREST or \
                 NONREV{{FILE}}"
            ));
        };
        let (alignment, patterns, _) = self.reader.patterns(msa, name.alphabet())?;
        let file = self.reader.trees(self.trees)?;
        let tree = file.only()?;
        let start = RootedModel::new(name.clone(), &patterns);
        let nodes = tree.nodes().len() + 1;
        let need = all_roots_bytes(nodes, patterns.len(), alignment.sites(), &start);
        let memory = self.reader.memory;
        memory.check_work("the likelihoods of the roots", need)?;
        let names = alignment.names();
        let found = counted(0, "roots", |bar| {
            let progress = |done, all| advance(bar, done, all);
            by_model(tree, names, &patterns, name, options, pool, progress)
        });
        Ok(found.at(self.trees.display())?)
    }

    /// The roots of a file of replicates on the branches of the file's only tree.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn rootstrap(&self, replicates: &Path) -> Result<Rootstrap, WorkflowError> {
        let file = self.reader.trees(self.trees)?;
        let all = self.reader.trees(replicates)?;
        Ok(rootstrap(file.only()?, &all.newicks).at(replicates.display())?)
    }
}

/// A tree whose branches are to be supported.
#[derive(Debug, Clone, Copy)]
pub struct Supported<'s> {
    /// Reads the files.
    pub reader: Reader,
    /// The tree.
    pub tree: &'s Path,
    /// Kind of support.
    pub support: Support,
    /// Replicates' trees.
    pub bootstraps: Option<&'s Path>,
    /// Replicates that are made of the alignment.
    pub replicates: u32,
    /// Their seed.
    pub seed: u64,
    /// Refines ultrafast bootstraps by NNI moves.
    pub bnni: bool,
}

impl Supported<'_> {
    /// The supports, by replicates' trees or by the alignment that `data` reads with its model,
    /// where one is named. Blocks.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn find<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        &self,
        data: Option<impl FnOnce() -> Result<Data, E>>,
        pool: &Pool,
    ) -> Result<SupportReport, WorkflowError> {
        check_bnni(self.bnni, &[self.support])?;
        let file = self.reader.trees(self.tree)?;
        let (tree, name) = (file.only()?, self.support.name());
        match (self.support, self.bootstraps, data) {
            (Support::Replicates(kind), Some(path), _) => {
                self.of_replicates(tree, kind, path, pool)
            }
            (Support::Alignment(kind), None, Some(data)) => {
                let data = data().map_err(|error| WorkflowError::Step(error.into()))?;
                self.of_alignment(tree, kind, data, pool)
            }
            (Support::Replicates(_), None, _) => {
                refuse("--support fbp and tbe need --bootstraps, not --msa")
            }
            (Support::Alignment(_), None, None) => {
                refuse(format!("--support {name} needs --msa and --model"))
            }
            (Support::Alignment(_), Some(_), _) => refuse(format!(
                "--support {name} needs --msa and --model, not --bootstraps"
            )),
        }
    }

    fn of_replicates(
        &self,
        tree: &Newick,
        kind: Kind,
        path: &Path,
        pool: &Pool,
    ) -> Result<SupportReport, WorkflowError> {
        let replicates = self.reader.trees(path)?.newicks;
        let reference = Reference::new(tree).at(self.tree.display())?;
        let tally = reference.tally_all(&replicates, kind, pool);
        let tally = tally.at(path.display())?;
        let values = reference.values(&tally);
        let values = values.into_iter().map(|(_, value)| value).collect();
        let (count, labelled) = (replicates.len(), reference.labelled(&tally));
        Ok(SupportReport::new(self.support, count, values, &labelled))
    }

    fn of_alignment(
        &self,
        tree: &Newick,
        kind: AlignmentKind,
        data: Data,
        pool: &Pool,
    ) -> Result<SupportReport, WorkflowError> {
        let (names, parts) = (data.alignment.names(), data.partitions.parts);
        let options = AlignmentSupport {
            kind,
            replicates: self.replicates,
            seed: self.seed,
            lengths: linkage(None, &parts)?,
            bnni: self.bnni,
        };
        let bar = support_bar(kind, self.reader);
        let labelled = options.on(tree, names, parts, pool, bar);
        let labelled = labelled.at(self.tree.display())?;
        let (values, count) = (kind.values(&labelled), self.replicates.to_usize());
        Ok(SupportReport::new(self.support, count, values, &labelled))
    }
}

/// Tests of a file's trees against one another.
#[derive(Debug, Serialize)]
pub struct Tested {
    trees: Vec<Verdict>,
    sites: usize,
    replicates: usize,
    seed: u64,
}

impl Tested {
    /// Tests which of the trees of a file the data exclude. Blocks.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn new(
        reader: Reader,
        data: Data,
        path: &Path,
        options: &topology::Options,
        pool: &Pool,
    ) -> Result<Self, WorkflowError> {
        let trees = reader.trees_of(path, data.alignment.names(), false)?;
        let (count, shown) = (trees.len(), path.display());
        if count < 2 {
            return Ok(Err(TopologyError::TooFew { trees: count }).at(shown)?);
        }
        let cells = count
            .to_u64()
            .saturating_mul(data.alignment.sites().to_u64());
        let need = cells.saturating_mul(SITE_BYTES);
        reader.memory.check_work("the trees' sites", need)?;
        let parts = data.partitions.parts;
        let lengths = linkage(None, &parts)?;
        let sites = counted(2 * count.to_u64(), "likelihoods", |bar| {
            fitted_sites(parts, lengths, trees, pool, || bar.inc(1))
        })?;
        let table = SiteTable::new(&sites).map_err(|error| WorkflowError::Step(error.into()))?;
        let verdicts = counted(0, "replicates", |bar| {
            compare(&table, options, pool, |done, all| advance(bar, done, all))
        });
        Ok(Self {
            trees: verdicts.at(shown)?,
            sites: table.sites(),
            replicates: options.replicates,
            seed: options.seed,
        })
    }

    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        topology::text(&self.trees)
    }
}

/// Of a site's log-likelihood, kept three times.
const SITE_BYTES: u64 = 24;

/// A tree that is fitted to an alignment before a workflow's own step.
#[derive(Clone, Copy)]
pub struct Fitted<'f> {
    /// Reads the files.
    pub reader: Reader,
    /// The engines.
    pub pool: &'f Pool,
    /// The tree.
    pub tree: &'f Path,
    /// The model's name or the file of partitions; where the data are given, for errors alone.
    pub model: &'f str,
    /// Parameters to fit.
    pub fit: Fit,
}

/// States of a tree's inner nodes.
#[derive(Debug)]
pub struct AncestralStates {
    /// The most probable sequences.
    pub sequences: AncestralSequences,
    /// The probabilities of all states as lines with tabs, if wanted.
    pub table: String,
    /// The changes on each branch as lines with tabs, if wanted.
    pub mutations: String,
}

/// Results that are wanted with the named tree.
#[derive(Debug, Clone, Copy)]
pub struct StatesWanted {
    /// The probabilities of all states.
    pub table: bool,
    /// The most probable sequences.
    pub sequences: bool,
    /// The changes on each branch.
    pub mutations: bool,
}

impl<'f> Fitted<'f> {
    /// The states of the tree's inner nodes. Blocks.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn ancestors(
        &self,
        data: Data,
        wanted: StatesWanted,
    ) -> Result<AncestralStates, WorkflowError> {
        let file = self.reader.trees(self.tree)?;
        let (names, parts) = (data.alignment.names(), data.partitions.parts);
        let tree = file.only_of(names)?;
        let copies = u64::from(wanted.table) + u64::from(wanted.sequences);
        let need = ancestors_bytes(tree.taxa(), &parts, copies);
        let memory = self.reader.memory;
        memory.check_work("the inner nodes' states", need)?;
        let (likelihood, lnl) = self.likelihood(&file, tree, parts)?;
        let mut table = String::new();
        let sequences = AncestralSequences::new(
            (likelihood.tree(), lnl),
            names,
            likelihood.parts(),
            data.alignment.sites(),
            wanted.table.then_some(&mut table),
        );
        let mutations = match wanted.mutations {
            true => sequences.mutations(likelihood.tree(), names, likelihood.parts()),
            false => String::new(),
        };
        Ok(AncestralStates {
            sequences,
            table,
            mutations,
        })
    }

    /// Places the sequences of an alignment that the tree lacks; `keep` is the most places of one.
    /// Blocks.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn place(&self, msa: &Path, keep: usize) -> Result<Placements, WorkflowError> {
        let alignment = self.reader.alignment(msa)?;
        let file = self.reader.trees(self.tree)?;
        let queries = Queries::new(&alignment, file.only()?).at(msa.display())?;
        let reference = &queries.reference;
        let tree = file.only_of(reference.names())?;
        let parts = self.reader.parts(reference, msa, self.model)?;
        let (likelihood, _) = self.likelihood(&file, tree, parts)?;
        let fitted = (likelihood.tree(), likelihood.parts());
        let need = placement_bytes(&queries, fitted.1);
        self.reader.memory.check_work("the places", need)?;
        place(&queries, fitted, keep, self.pool).map_err(|error| WorkflowError::Step(error.into()))
    }

    /// The fitted likelihood of a tree, and its logarithm. Warns of lengths that the file lacks.
    fn likelihood(
        &self,
        file: &TreeFile,
        tree: Tree,
        parts: Vec<PartOptions>,
    ) -> Result<(Likelihood<&'f Pool>, f64), WorkflowError> {
        let lengths = linkage(None, &parts).at(self.model)?;
        if self.fit == Fit::Nothing {
            file.warn_of_lengths(self.reader);
        }
        let parts = (parts, lengths);
        Ok(self.fit.likelihood(tree, parts, EPSILON, self.pool)?)
    }
}

/// Gain in log-likelihood below which the fit ends.
const EPSILON: f64 = 0.001;

/// Gene trees of a file, of which branches with a support below `contract` are left out.
#[derive(Debug, Clone, Copy)]
pub struct Genes<'g> {
    /// Reads the files.
    pub reader: Reader,
    /// The gene trees.
    pub trees: &'g Path,
    /// The least support of a branch that counts.
    pub contract: Option<f64>,
    /// Weights of quartets, with the labels of branches without support and with full support.
    pub weights: Option<(Weighting, Option<[f64; 2]>)>,
}

impl Genes<'_> {
    /// The species tree of all gene trees, or the tree of the file `score` with its score. Blocks.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn species(&self, score: Option<&Path>, pool: &Pool) -> Result<SpeciesTree, WorkflowError> {
        let scored = score.map(|path| self.reader.trees(path)).transpose()?;
        let tree = scored.as_ref().map(TreeFile::only).transpose()?;
        let labels = tree.map(Newick::tip_labels).unwrap_or_default();
        let (path, contract) = (self.trees, self.contract);
        let found = match (self.weights, tree) {
            (Some(by), _) => {
                let read = self.reader.weighted_gene_trees(path, labels, contract, by);
                let (genes, weights) = read?;
                weighted_species_tree(&genes, &weights, tree, pool)
            }
            (None, Some(tree)) => {
                score_tree(&self.reader.gene_trees(path, labels, contract)?, tree, pool)
            }
            (None, None) => species_tree(&self.reader.gene_trees(path, labels, contract)?, pool),
        };
        Ok(found?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use sidecore_phylo::io::input::Memory;

    fn reader() -> Reader {
        Reader {
            memory: Memory::new(None),
            warn: |_| {},
        }
    }

    #[test]
    fn an_outgroup_is_a_list_or_a_file_and_never_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names");
        std::fs::write(&path, "a b\n\n c \n").unwrap();
        assert_eq!(outgroup(reader(), "a, b,").unwrap(), ["a", "b"]);
        let named = format!("@{}", path.display());
        assert_eq!(outgroup(reader(), &named).unwrap(), ["a b", "c"]);
        let refused = outgroup(reader(), " , ").unwrap_err().to_string();
        assert_eq!(refused, "--outgroup names no tip");
    }

    #[test]
    fn a_fault_of_one_tree_names_the_tree() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trees");
        std::fs::write(&path, "((a:1,b:1):1,c:1,d:9);\n((a,b),c,d);\n").unwrap();
        let roots = Roots {
            reader: reader(),
            trees: &path,
            is_timed: false,
        };
        let rooted = roots.by(&Method::Outgroup(vec!["d".to_owned()])).unwrap();
        assert_eq!(rooted.lines().len(), 2);
        let refused = roots.by(&Method::Midpoint).unwrap_err();
        let said = sidecore_bare::text::causes(&refused);
        let expected = format!("{}, tree 2: a branch", path.display());
        assert!(said.starts_with(&expected), "{said}");
    }

    #[test]
    fn supports_ask_for_the_data_of_their_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tree");
        std::fs::write(&path, "((a,b),(c,d),e);").unwrap();
        let pool = Pool::start(sidecore_offload::PoolConfig {
            engines: 1,
            ..sidecore_offload::PoolConfig::default()
        })
        .unwrap();
        let find = |support, bootstraps, bnni| {
            let supported = Supported {
                reader: reader(),
                tree: &path,
                support,
                bootstraps,
                replicates: 100,
                seed: 1,
                bnni,
            };
            let none: Option<fn() -> Result<Data, WorkflowError>> = None;
            supported
                .find(none, &pool)
                .map_err(|error| error.to_string())
        };
        let fbp = Support::Replicates(Kind::Fbp);
        let found = find(fbp, Some(&*path), false).unwrap();
        assert!(found.tree.contains("100"), "{}", found.tree);
        let refused = find(fbp, None, false).unwrap_err();
        assert!(refused.contains("need --bootstraps"), "{refused}");
        let refused = find(Support::Alignment(AlignmentKind::Ufboot), None, false).unwrap_err();
        assert!(refused.contains("needs --msa and --model"), "{refused}");
        let refused = find(fbp, Some(&*path), true).unwrap_err();
        assert!(refused.contains("--bnni"), "{refused}");
    }
}
