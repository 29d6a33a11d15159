//! `sidecore phylo compare`.

use super::common::reader;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_phylo::compare::{Distance, compare};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
rf: splits that only one of the trees has (Robinson and Foulds); rf_relative: of all inner splits; \
branch_score: root of the summed squared differences of lengths (Kuhner and Felsenstein). Exit \
status: 0 compared, 2 a tree cannot be read or the tips differ.")]
pub(crate) struct Args {
    /// One tree, in Newick or NEXUS
    #[arg(value_name = "TREE")]
    first: PathBuf,
    /// The other
    #[arg(value_name = "TREE")]
    second: PathBuf,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (first, second) = (reader().trees(&self.first)?, reader().trees(&self.second)?);
        let distance = compare(first.only()?, second.only()?)?;
        output::report(self.json, &distance, Distance::text)
    }
}
