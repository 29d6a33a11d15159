//! `sidecore spe`: programs of the Cell, unchanged. And this program under the name of a driver.
//!
//! Must stay true: under a driver's name nothing but the tool's own output is printed, and the exit
//! status is the tool's.

mod run;

use crate::{Outcome, output};
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use serde::Serialize;
use sidecore_spe_tools::{DocumentRow, Driver, Kit, Parts, document_rows, driver_named};
use sidecore_sys::preload::Library;
use sidecore_terminal::Text;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print shell lines that put the drivers (spu-gcc, ppu-gcc, ...), headers and libspe2 where
    /// compilers look: eval "$(sidecore spe env)".
    Env(Env),
    /// Run a host program; say what its contexts ran, waited for and moved by DMA.
    Run(run::Run),
    /// Build and run the programs that the document on the Cell's address translation prints.
    Document(Document),
}

#[derive(clap::Args)]
pub(crate) struct Env {
    /// Also make gcc, cc, g++ and c++ the host's drivers: for Makefiles that ran on the Cell and
    /// name these compilers in their recipes.
    #[arg(long)]
    native: bool,
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Env(Env { native }) => {
                let text = kit()?.environment(native);
                std::io::stdout()
                    .write_all(text.as_bytes())
                    .context("cannot print")?;
                Ok(Outcome::Done)
            }
            Self::Run(run) => run.run(),
            Self::Document(document) => document.run(),
        }
    }
}

/// The driver that this program was called as, if it was.
pub(crate) fn driver(name: Option<OsString>) -> Option<Driver> {
    driver_named(Path::new(&name?))
}

/// Does a driver's work; its errors begin with its name.
pub(crate) fn drive(driver: Driver, arguments: Vec<OsString>) -> ExitCode {
    let ended = kit().and_then(|kit| driver.run(&kit, arguments).map_err(Into::into));
    ended.unwrap_or_else(|error| {
        output::note!("{}: {}", driver.name(), output::chain(&error));
        ExitCode::from(2)
    })
}

fn kit() -> Result<Kit> {
    if !cfg!(target_arch = "x86_64") {
        bail!("programs of the Cell run on x86-64 machines alone: a store's code is x32 code");
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let library = LIBRARY.locate();
    if let Err(why) = &library {
        output::note!("sidecore: host programs will not link: {why}");
    }
    Ok(Kit::open(&Parts {
        program,
        headers: spe2::HEADERS,
        library: library.ok(),
    })?)
}

#[derive(clap::Args)]
#[command(after_help = "\
The programs count the time base's ticks times 40: cycles of 3.19 GHz. Rows that cannot be \
measured say why.

Exit status: 0 printed, also where rows say why they have no figure; 2 could not run.")]
pub(crate) struct Document {
    /// Folder that holds the document's text [default: the one that SIDECORE_DOCUMENTS names]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// One run of each instead of nine
    #[arg(long)]
    quick: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    rows: Vec<DocumentRow>,
}

impl Document {
    pub(crate) fn run(self) -> Result<Outcome> {
        let named = std::env::var_os("SIDECORE_DOCUMENTS").filter(|name| !name.is_empty());
        let folder = self.folder.or(named.map(PathBuf::from));
        let kit = || kit().map_err(|error| output::chain(&error));
        let runs = if self.quick { 1 } else { 9 };
        let rows = document_rows(folder.as_deref(), kit, runs);
        output::report(self.json, &Report { rows }, |report| {
            let mut text = Text::new();
            for row in &report.rows {
                text.fact(&row.name, row.said());
            }
            text
        })
    }
}

const LIBRARY: Library = Library {
    name: "libspe2.so",
    installed_name: Some("libspe2.so.2"),
    variable: "SIDECORE_SPE_LIBRARY",
};
