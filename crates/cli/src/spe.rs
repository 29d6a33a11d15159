//! `sidecore spe`: programs of the Cell, unchanged. And this program under the name of a driver.
//!
//! Must stay true: under a driver's name nothing but the tool's own output is printed, and the exit
//! status is the tool's.

use crate::Outcome;
use anyhow::{Context, Result};
use clap::Subcommand;
use sidecore_spe_tools::{Driver, Kit, Parts, driver_named};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print shell lines that put the drivers (spu-gcc, ppu-gcc, ...), headers and libspe2 where
    /// compilers look: eval "$(sidecore spe env)".
    Env(Env),
}

/// Arguments of `spe env`.
#[derive(clap::Args)]
pub(crate) struct Env {}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Env(Env {}) => {
                let text = kit()?.environment();
                std::io::stdout()
                    .write_all(text.as_bytes())
                    .context("cannot print")?;
                Ok(Outcome::Done)
            }
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
        eprintln!("{}: {}", driver.name(), crate::output::chain(&error));
        ExitCode::from(2)
    })
}

fn kit() -> Result<Kit> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let library = library(&program);
    Ok(Kit::open(&Parts {
        program,
        headers: spe2::HEADERS,
        library,
    })?)
}

/// libspe2, beside this program or where it is installed.
fn library(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    let places = [
        "libspe2.so",
        "deps/libspe2.so",
        "../lib/sidecore/libspe2.so.2",
    ];
    places
        .iter()
        .map(|place| folder.join(place))
        .find(|place| place.is_file())
}
