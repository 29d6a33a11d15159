//! `sidecore man` and `sidecore completions`: from the one source of flags and help.
//!
//! Why here: packages install these; what they say cannot differ from `--help`.

use crate::{Cli, Outcome, output};
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::path::PathBuf;

/// Arguments of `man`.
#[derive(clap::Args)]
pub(crate) struct Pages {
    /// Directory that gets a page for each command
    directory: PathBuf,
}

/// Arguments of `completions`.
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// Shell to write it for
    shell: clap_complete::Shell,
}

impl Pages {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let shown = self.directory.display();
        std::fs::create_dir_all(&self.directory).with_context(|| format!("cannot make {shown}"))?;
        clap_mangen::generate_to(Cli::command(), &self.directory)
            .with_context(|| format!("cannot write the pages in {shown}"))?;
        Ok(Outcome::Done)
    }
}

impl Completions {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "sidecore", &mut text);
        output::text(String::from_utf8(text)?.trim_end())?;
        Ok(Outcome::Done)
    }
}
