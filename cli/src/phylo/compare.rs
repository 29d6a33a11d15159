//! `sidecore phylo compare`.

use super::common::reader;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_phylo::compare::compare;
use std::path::PathBuf;

/// Arguments of `phylo compare`.
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
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let (first, second) = (reader().trees(&self.first)?, reader().trees(&self.second)?);
        let distance = compare(first.only()?, second.only()?)?;
        if self.json {
            output::json(&distance)?;
            return Ok(Outcome::Done);
        }
        output::line(&format!("Robinson-Foulds  {}", distance.rf))?;
        output::line(&format!("relative         {:.6}", distance.rf_relative))?;
        match distance.branch_score {
            Some(score) => output::line(&format!("branch score     {score:.6}"))?,
            None => output::line("branch score     none: a branch has no length")?,
        }
        Ok(Outcome::Done)
    }
}
