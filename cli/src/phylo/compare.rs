//! `sidecore phylo compare`.

use super::common::reader;
use super::limits;
use crate::{Outcome, output};
use anyhow::{Context, Result, bail};
use sidecore_phylo::compare::{Distance, TreeSet, compare, compare_all};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// One tree, in Newick or NEXUS; alone, a file of several, which are compared with one another
    #[arg(value_name = "TREE")]
    first: PathBuf,
    /// The other
    #[arg(value_name = "TREE")]
    second: Option<PathBuf>,
    /// Write a line for each pair of a file of trees: their numbers, rf and rf_relative, with tabs
    #[arg(short, long, value_name = "FILE", conflicts_with = "second")]
    output: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let first = reader().trees(&self.first)?;
        let shown = || self.first.display().to_string();
        if let Some(second) = &self.second {
            let second = reader().trees(second)?;
            let distance = compare(first.only()?, second.only()?)?;
            return output::report(self.json, &distance, Distance::text);
        }
        if first.newicks.len() == 1 {
            bail!("{} has one tree: name another file, too", shown());
        }
        // Distances grow with the square of the trees: the bound is not that of the file's size.
        let memory = limits::memory().of_work();
        let set = compare_all(&first.newicks, memory).with_context(shown)?;
        if let Some(path) = &self.output {
            output::file(path, &set.table())?;
            // Standard output is for one result.
            if path == Path::new("-") {
                return Ok(Outcome::Done);
            }
        }
        output::report(self.json, &set, TreeSet::text)
    }
}
