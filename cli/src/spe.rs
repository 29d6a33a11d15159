//! `sidecore spe`: programs of the Cell, unchanged. And this program under the name of a driver.
//!
//! Must stay true: under a driver's name nothing but the tool's own output is printed, and the exit
//! status is the tool's. A program that `spe run` runs has its own standard input and output, and
//! its exit status is the command's; the table goes to standard error. A signal that would end the
//! command ends the program, and the terminal is left as it was.

use crate::output::JsonArgs;
use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use sidecore_spe_tools::{
    DocumentReport, Driver, Kit, Parts, Traced, document_report, driver_named, table, timeline,
};
use sidecore_sys::preload::Library;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print shell lines that put the drivers (spu-gcc, ppu-gcc, ...), headers and libspe2 where
    /// compilers look: eval "$(sidecore spe env)".
    Env(Env),
    /// Run a host program; say what its contexts ran, waited for and moved by DMA.
    Run(Run),
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
pub(crate) struct Document {
    /// Folder that holds the document's text [default: the one that SIDECORE_DOCUMENTS names]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// One run of each instead of nine
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    form: JsonArgs,
}

impl Document {
    pub(crate) fn run(self) -> Result<Outcome> {
        let named = std::env::var_os("SIDECORE_DOCUMENTS").filter(|name| !name.is_empty());
        let folder = self.folder.or(named.map(PathBuf::from));
        let kit = || kit().map_err(|error| output::chain(&error));
        let runs = if self.quick { 1 } else { 9 };
        let report = document_report(folder.as_deref(), kit, runs);
        self.form.report(&report, DocumentReport::text)
    }
}

#[derive(clap::Args)]
pub(crate) struct Run {
    /// Draw an SVG timeline of the contexts: on which engine each ran, and what it waited for.
    #[arg(long, value_name = "FILE.svg")]
    timeline: Option<PathBuf>,
    /// Engines that contexts share [default: the processors, at least 6].
    #[arg(long, value_name = "N")]
    engines: Option<u16>,
    /// Show nothing while the program runs.
    #[arg(long)]
    no_live: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(self) -> Result<Outcome> {
        let kit = kit()?;
        let folder = tempfile::tempdir().context("cannot make a folder for the trace")?;
        let (program, arguments) = self.program.split_first().context("no program")?;
        let mut command = process::Command::new(program);
        command.args(arguments);
        let signals = raise_on(&[SIGINT, SIGTERM, SIGHUP])?;
        let traced = Traced::start(&kit, command, &folder.path().join("trace"), self.engines)?;
        let waited = traced.watched(&signals, !self.no_live);
        let (status, trace) = waited.context("cannot wait for the program")?;
        output::error_show(&table(&trace));
        if let Some(path) = &self.timeline {
            output::picture(path, &timeline(&trace)?)?;
        }
        drop(folder);
        match status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
        {
            0 => Ok(Outcome::Done),
            code => process::exit(code),
        }
    }
}

const LIBRARY: Library = Library {
    name: "libspe2.so",
    installed_name: Some("libspe2.so.2"),
    variable: "SIDECORE_SPE_LIBRARY",
};
