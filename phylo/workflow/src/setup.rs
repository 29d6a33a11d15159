//! A run of the command line: its files read, its options checked, its identity.
//!
//! Must stay true: two runs whose results may differ differ in a setting; the numbers of searches
//! and bootstraps are none, since a later run may ask for more.

use crate::{WorkflowError, refuse};
use sidecore_bare::width::ToU64;
use sidecore_phylo::analysis::job::Starts;
use sidecore_phylo::analysis::plan::{Bootstraps, Outcome};
use sidecore_phylo::analysis::setup::{Request, Setup};
use sidecore_phylo::analysis::supports::{AlignmentKind, Support};
use sidecore_phylo::io::checkpoint::Settings;
use sidecore_phylo::io::data::{At, Data, DataError, Reader, linkage, model_name};
use sidecore_phylo::io::input;
use sidecore_phylo::likelihood::{Lengths, PartOptions};
use sidecore_phylo::model::ModelError;
use sidecore_phylo::msa::{Alignment, Findings};
use sidecore_phylo::search::Constraint;
use std::path::Path;

/// Effort of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Until no move gains.
    Full,
    /// One quick climb.
    Fast,
}

impl Effort {
    /// Names of efforts, with a line about each.
    #[rustfmt::skip] // a line each
    pub const NAMED: [(&str, &str, Self); 2] = [
        ("full", "Until no move gains anything", Self::Full),
        ("fast", "One quick climb, for thousands of sequences", Self::Fast),
    ];
}

/// Options of a run, as a user gives them.
#[derive(Debug, Clone, Copy)]
pub struct Choices<'c> {
    /// The alignment.
    pub msa: &'c Path,
    /// A model, a file of partitions, or `auto`.
    pub model: &'c str,
    /// Linkage of the partitions' branch lengths.
    pub lengths: Option<Lengths>,
    /// Effort of the searches.
    pub effort: Effort,
    /// Searches.
    pub starts: Option<u32>,
    /// Kind of starting trees, or a file of them.
    pub start_trees: &'c str,
    /// Bootstraps; none unless given, and with `all` until they have converged.
    pub bootstraps: Option<Bootstraps>,
    /// True for searches, bootstraps and support.
    pub all: bool,
    /// The most of them until they have converged.
    pub bootstraps_max: u32,
    /// Makes them rapid.
    pub rapid: bool,
    /// Share of the sites that a replicate keeps, each once.
    pub jackknife: Option<f64>,
    /// A file with a tree whose branches every tree must have.
    pub constraint: Option<&'c Path>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Kinds of support of the best tree.
    pub supports: &'c [Support],
    /// Refines ultrafast bootstraps by NNI moves.
    pub bnni: bool,
    /// Writes the best tree without its inner branches of no length, too.
    pub polytomies: bool,
}

/// Kind of starting trees unless given.
pub const START_TREES: &str = "mixed";

/// Refuses `--bnni` where it would do nothing.
pub(crate) fn check_bnni(bnni: bool, supports: &[Support]) -> Result<(), WorkflowError> {
    match bnni && !supports.contains(&Support::Alignment(AlignmentKind::Ufboot)) {
        true => refuse("--bnni refines ultrafast bootstraps: give --support ufboot"),
        false => Ok(()),
    }
}

/// Kinds of support by a locus' alignment; refuses those of bootstraps.
///
/// # Errors
/// [`WorkflowError::Options`].
pub fn alignment_kinds(supports: &[Support]) -> Result<Vec<AlignmentKind>, WorkflowError> {
    let kinds = supports.iter().map(|support| match support {
        Support::Alignment(kind) => Ok(*kind),
        Support::Replicates(_) => refuse(format!(
            "--support {}: of bootstraps, which --bootstraps N writes on the trees; give sh-alrt, \
             abayes, lbp or ufboot",
            support.name()
        )),
    });
    kinds.collect()
}

impl Choices<'_> {
    /// Refuses options that do not go together.
    ///
    /// # Errors
    /// [`WorkflowError::Options`].
    pub fn check(&self) -> Result<(), WorkflowError> {
        check_bnni(self.bnni, self.supports)?;
        let given = [
            ("--starts", self.starts.is_some()),
            ("--start-trees", self.start_trees != START_TREES),
            ("--bootstraps", self.bootstraps.is_some()),
            ("--rapid", self.rapid),
            ("--jackknife", self.jackknife.is_some()),
            ("--all", self.all),
            ("--constraint", self.constraint.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if self.effort == Effort::Fast => refuse(format!(
                "--effort fast is one search from one tree: leave {option} out, or --effort"
            )),
            _ => Ok(()),
        }
    }
}

/// A run, and what its files and messages need.
#[derive(Debug)]
pub struct RunSetup<'c> {
    /// The options.
    pub(crate) choices: Choices<'c>,
    /// The run.
    pub run: Setup,
    /// Its identity.
    pub settings: Settings,
    /// Oddities of the alignment.
    pub findings: Findings,
    /// Names of the partitions.
    pub part_names: Vec<String>,
}

impl<'c> RunSetup<'c> {
    /// Reads the files of a run. `site_frequencies` are the text of a file, in place of the model's
    /// own; `choose` gives the partition of the model `auto`.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn read<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        reader: Reader,
        choices: Choices<'c>,
        site_frequencies: Option<&str>,
        choose: impl FnOnce(&Alignment) -> Result<PartOptions, E>,
    ) -> Result<Self, WorkflowError> {
        choices.check()?;
        let Data {
            alignment,
            partitions,
            findings,
        } = reader.data(choices.msa, choices.model, choose)?;
        let partitions = match site_frequencies {
            Some(text) => partitions.with_site_frequencies(text)?,
            None => partitions,
        };
        let parts = partitions.parts;
        let lengths = linkage(choices.lengths, &parts).at(choices.model)?;
        let mut settings = Settings::default();
        settings.add("version of sidecore", env!("CARGO_PKG_VERSION"));
        let text = alignment.to_phylip();
        settings.add("alignment", &String::from_utf8_lossy(&text));
        // A file's content, not its name: it may be edited, or moved.
        let model = match Path::new(choices.model).is_file() {
            true => reader.text(Path::new(choices.model))?,
            false => choices.model.to_owned(),
        };
        settings.add("--model", &model);
        // The values include the files that a model's braces name.
        let values: Vec<String> = parts.iter().map(|part| part.model.to_string()).collect();
        settings.add("model's values at the start", &values.join(" "));
        settings.add("branch lengths", &format!("{lengths:?}"));
        settings.add("--seed", &choices.seed.to_string());
        settings.add("--rapid", &choices.rapid.to_string());
        // Only where it is used: older checkpoints do not have it.
        if let Some(share) = choices.jackknife {
            settings.add("--jackknife", &share.to_string());
        }
        if let Some(text) = site_frequencies {
            settings.add("--pmsf", text);
        }
        let trees = start_trees(reader, choices.start_trees, &alignment, &mut settings)?;
        let constraint = match choices.constraint {
            Some(path) => Some(constraint(reader, path, &alignment, &mut settings)?),
            None => None,
        };
        // The same.
        if choices.effort == Effort::Fast {
            settings.add("--effort", "fast");
        }
        let request = Request {
            starts: match choices.effort {
                Effort::Full => choices.starts,
                Effort::Fast => Some(1),
            },
            trees,
            bootstraps: choices.bootstraps.unwrap_or(match choices.all {
                true => Bootstraps::UntilConverged,
                false => Bootstraps::Exactly(0),
            }),
            bootstraps_max: choices.bootstraps_max,
            rapid: choices.rapid,
            jackknife: choices.jackknife,
            constraint,
            lengths,
            seed: choices.seed,
        };
        Ok(Self {
            choices,
            run: Setup::new(&alignment, parts, request).map_err(DataError::from)?,
            settings,
            findings,
            part_names: partitions.names,
        })
    }

    /// The partitions under the models of a search's result, with all their values.
    ///
    /// # Errors
    /// [`ModelError`], of a damaged result.
    pub fn parts_of(&self, outcome: &Outcome) -> Result<Vec<PartOptions>, ModelError> {
        let parts = outcome.models.iter().zip(self.run.parts());
        let under = |(model, part): (&String, &PartOptions)| {
            Ok(PartOptions::new(model_name(model)?, part.patterns.clone()))
        };
        parts.map(under).collect()
    }
}

fn start_trees(
    reader: Reader,
    text: &str,
    alignment: &Alignment,
    settings: &mut Settings,
) -> Result<Starts, DataError> {
    if let Some(kind) = Starts::named(text) {
        settings.add("--start-trees", text);
        return Ok(kind);
    }
    let path = Path::new(text);
    if !path.is_file() {
        return Err(DataError::StartTrees {
            text: text.to_owned(),
        });
    }
    settings.add("--start-trees", &reader.text(path)?);
    let trees = reader.trees_of(path, alignment.names(), false);
    trees.map(Starts::Given)
}

fn constraint(
    reader: Reader,
    path: &Path,
    alignment: &Alignment,
    settings: &mut Settings,
) -> Result<Constraint, DataError> {
    let file = reader.trees(path)?;
    let newick = file.only()?;
    let inner = newick
        .nodes()
        .iter()
        .filter(|node| !node.children.is_empty());
    // Each inner node may be a split: a byte for each taxon, and as many for its complement.
    let splits = alignment.names().len().saturating_mul(inner.count());
    let need = splits.to_u64().saturating_mul(2);
    input::check("the constraint", need, file.memory)?;
    settings.add("--constraint", &newick.to_string());
    Constraint::from_newick(newick, alignment.names()).at(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_phylo::io::input::Memory;

    fn identity(msa: &Path) -> String {
        let reader = Reader {
            memory: Memory::new(None),
            warn: |_| {},
        };
        let choices = Choices {
            msa,
            model: "MULTI3_MK",
            lengths: None,
            effort: Effort::Full,
            starts: None,
            start_trees: "parsimony",
            bootstraps: None,
            all: false,
            bootstraps_max: 1_000,
            rapid: false,
            jackknife: None,
            constraint: None,
            seed: 1,
            supports: &[],
            bnni: false,
            polytomies: false,
        };
        let auto = |_: &Alignment| Err::<PartOptions, _>("not asked for");
        let read = RunSetup::read(reader, choices, None, auto).unwrap();
        read.settings.identity()
    }

    /// A resumed run must not go on with other data: the states of a cell that has several are
    /// data, too.
    #[test]
    fn other_states_of_a_cell_are_another_run() {
        let folder = tempfile::tempdir().unwrap();
        let run = |cell: &str| {
            let text = format!(
                "#NEXUS\nbegin data;\ndimensions ntax=4 nchar=3;\n\
                 format datatype=standard symbols=\"012\";\n\
                 matrix\na 0{cell}2\nb 012\nc 110\nd 201\n;\nend;\n"
            );
            let path = folder.path().join("a.nex");
            std::fs::write(&path, text).unwrap();
            identity(&path)
        };
        assert_eq!(run("{01}"), run("{0 1}"));
        assert_ne!(run("{01}"), run("{12}"));
        assert_ne!(run("{01}"), run("0"));
    }
}
