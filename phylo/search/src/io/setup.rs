//! A run of the command line: its files read, its options checked, its identity.
//!
//! Must stay true: two runs whose results may differ differ in a setting; the numbers of searches
//! and bootstraps are none, since a later run may ask for more.

use super::checkpoint::Settings;
use super::data::{At, Data, DataError, Reader, linkage, model_name};
use super::input;
use crate::analysis::job::Starts;
use crate::analysis::plan::{Bootstraps, Outcome};
use crate::analysis::setup::{Request, Setup};
use crate::likelihood::{Lengths, PartOptions};
use crate::model::ModelError;
use crate::msa::{Alignment, Findings};
use crate::search::Constraint;
use sidecore_bare::width::ToU64;
use std::path::Path;

/// Options of a run, as a user gives them.
#[derive(Debug, Clone, Copy)]
pub struct Choices<'c> {
    /// The alignment.
    pub msa: &'c Path,
    /// A model, a file of partitions, or `auto`.
    pub model: &'c str,
    /// Frequencies of sites in place of the model's own: the text of a file.
    pub site_frequencies: Option<&'c str>,
    /// Linkage of the partitions' branch lengths.
    pub lengths: Option<Lengths>,
    /// Searches.
    pub starts: Option<u32>,
    /// Kind of starting trees, or a file of them.
    pub start_trees: &'c str,
    /// Bootstraps.
    pub bootstraps: Bootstraps,
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
}

/// A run, and what its files and messages need.
#[derive(Debug)]
pub struct RunSetup {
    /// The run.
    pub run: Setup,
    /// Its identity.
    pub settings: Settings,
    /// Oddities of the alignment.
    pub findings: Findings,
    /// Names of the partitions.
    pub part_names: Vec<String>,
}

impl RunSetup {
    /// Reads the files of a run; `choose` gives the partition of the model `auto`.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn read<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        reader: Reader,
        choices: &Choices<'_>,
        choose: impl FnOnce(&Alignment) -> Result<PartOptions, E>,
    ) -> Result<Self, DataError> {
        let Data {
            alignment,
            partitions,
            findings,
        } = reader.data(choices.msa, choices.model, choose)?;
        let partitions = match choices.site_frequencies {
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
        if let Some(text) = choices.site_frequencies {
            settings.add("--pmsf", text);
        }
        let trees = start_trees(reader, choices.start_trees, &alignment, &mut settings)?;
        let constraint = match choices.constraint {
            Some(path) => Some(constraint(reader, path, &alignment, &mut settings)?),
            None => None,
        };
        let request = Request {
            starts: choices.starts,
            trees,
            bootstraps: choices.bootstraps,
            bootstraps_max: choices.bootstraps_max,
            rapid: choices.rapid,
            jackknife: choices.jackknife,
            constraint,
            lengths,
            seed: choices.seed,
        };
        Ok(Self {
            run: Setup::new(&alignment, parts, request)?,
            settings,
            findings,
            part_names: partitions.names,
        })
    }
}

impl RunSetup {
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
    reader.trees_of(path, alignment.names()).map(Starts::Given)
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
    use crate::io::input::Memory;

    fn identity(msa: &Path) -> String {
        let reader = Reader {
            memory: Memory::new(None),
            warn: |_| {},
        };
        let choices = Choices {
            msa,
            model: "MULTI3_MK",
            site_frequencies: None,
            lengths: None,
            starts: None,
            start_trees: "parsimony",
            bootstraps: Bootstraps::Exactly(0),
            bootstraps_max: 1_000,
            rapid: false,
            jackknife: None,
            constraint: None,
            seed: 1,
        };
        let auto = |_: &Alignment| Err::<PartOptions, _>("not asked for");
        let read = RunSetup::read(reader, &choices, auto).unwrap();
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
