//! `sidecore phylo bench`.

mod beagle;
mod grain;

use super::common;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use clap::Subcommand;
use sidecore_bench::phylo::{KernelRow, kernels, traversal};
use sidecore_phylo::kernel::Isa;
use sidecore_phylo::msa::{Alphabet, Patterns};
use std::path::PathBuf;

/// Arguments of `phylo bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Runs the command.
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

/// Arguments of `phylo bench kernels`.
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
        let args = match self {
            Self::Kernels(args) => args,
            Self::Grain(args) => return args.run(),
            Self::Beagle(args) => return args.run(),
        };
        let isa = if args.portable {
            Isa::PORTABLE
        } else {
            Isa::detect()
        };
        let rows = match (&args.msa, &args.tree) {
            (Some(msa), Some(tree)) => {
                let alignment = common::reader().alignment(msa)?;
                let alphabet = if args.protein {
                    Alphabet::Protein
                } else {
                    Alphabet::Dna
                };
                let patterns = Patterns::new(&alignment, alphabet)
                    .with_context(|| msa.display().to_string())?;
                let file = common::reader().trees(tree)?;
                file.only()?;
                let tree = file.of_taxa(alignment.names())?.remove(0);
                traversal(isa, args.quick, &tree, &patterns)?
            }
            _ => kernels(isa, args.quick)?,
        };
        if args.json {
            output::json(&Json {
                isa: isa.name().to_owned(),
                rows,
            })?;
            return Ok(Outcome::Done);
        }
        output::show(&sidecore_bench::phylo::text(&rows))?;
        Ok(Outcome::Done)
    }
}

#[derive(serde::Serialize)]
struct Json {
    isa: String,
    rows: Vec<KernelRow>,
}
