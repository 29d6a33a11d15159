//! `sidecore phylo bench`.

mod beagle;
mod grain;

use super::common;
use crate::{Outcome, output, run_each};
use anyhow::{Context, Result};
use clap::Subcommand;
use sidecore_bench::phylo::{KernelRow, kernels, traversal};
use sidecore_phylo::kernel::Isa;
use sidecore_phylo::msa::{Alphabet, Patterns};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        self.command.run()
    }
}

/// The benchmarks.
#[derive(Subcommand)]
enum Command {
    /// The likelihood kernels on one core.
    Kernels(Kernels),
    /// Bootstraps in numbers that do and do not suit the engines, under each policy
    Grain(grain::Args),
    /// Sidecore's library of BEAGLE's interface against an installed BEAGLE
    Beagle(beagle::Args),
}

#[derive(clap::Args)]
struct Kernels {
    /// Measure full traversals of this alignment only (DNA; proteins with --protein)
    #[arg(long, value_name = "FILE", requires = "tree")]
    msa: Option<PathBuf>,
    /// The alignment's tree
    #[arg(long, value_name = "FILE", requires = "msa")]
    tree: Option<PathBuf>,
    /// The alignment is one of proteins
    #[arg(long, requires = "msa")]
    protein: bool,
    /// Measure for a second or two only
    #[arg(long)]
    quick: bool,
    /// Use no AVX2 even where it is there
    #[arg(long)]
    portable: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Command {
    fn run(self) -> Result<Outcome> {
        run_each!(self; Kernels Grain Beagle)
    }
}

impl Kernels {
    fn run(self) -> Result<Outcome> {
        let isa = if self.portable {
            Isa::PORTABLE
        } else {
            Isa::detect()
        };
        let rows = match (&self.msa, &self.tree) {
            (Some(msa), Some(tree)) => {
                let alignment = common::reader().alignment(msa)?;
                let alphabet = if self.protein {
                    Alphabet::Protein
                } else {
                    Alphabet::Dna
                };
                let patterns = Patterns::new(&alignment, alphabet)
                    .with_context(|| msa.display().to_string())?;
                let file = common::reader().trees(tree)?;
                file.only()?;
                let tree = file.of_taxa(alignment.names())?.remove(0);
                traversal(isa, self.quick, &tree, &patterns)?
            }
            _ => kernels(isa, self.quick)?,
        };
        let isa = isa.name().to_owned();
        output::report(self.json, &Json { isa, rows }, |report| {
            sidecore_bench::phylo::text(&report.rows)
        })
    }
}

#[derive(serde::Serialize)]
struct Json {
    isa: String,
    rows: Vec<KernelRow>,
}
