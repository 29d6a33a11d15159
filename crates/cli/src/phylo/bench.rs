//! `sidecore phylo bench`.

use crate::{Outcome, output};
use anyhow::Result;
use clap::Subcommand;
use sidecore_phylo::bench::{KernelRow, kernels};
use sidecore_phylo::kernel::Isa;

/// What can be measured.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// The likelihood kernels on one core.
    Kernels(Kernels),
}

/// Arguments of `phylo bench kernels`.
#[derive(clap::Args)]
pub(crate) struct Kernels {
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
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let Self::Kernels(args) = self;
        let isa = if args.portable {
            Isa::Portable
        } else {
            Isa::detect()
        };
        let rows = kernels(isa, args.quick)?;
        if args.json {
            output::json(&Json {
                isa: format!("{isa:?}").to_lowercase(),
                rows,
            })?;
            return Ok(Outcome::Done);
        }
        output::line(
            "kernel                          model  taxa  patterns  M site-nodes/s  GFLOP/s",
        )?;
        for row in &rows {
            output::line(&format!(
                "{:30}  {:>5}  {:>4}  {:>8}  {:>14.1}  {:>7.1}",
                row.kernel,
                row.model,
                row.taxa,
                row.patterns,
                row.site_nodes_per_s / 1e6,
                row.gflops
            ))?;
        }
        output::line("best of many runs, one core, double precision")?;
        Ok(Outcome::Done)
    }
}

#[derive(serde::Serialize)]
struct Json {
    isa: String,
    rows: Vec<KernelRow>,
}
