//! Output files and output forms of a measuring command.
//!
//! Why here: every measuring command takes the same options. Must stay true: results alone go to
//! standard output; a file that cannot be written is reported before minutes are spent. Source:
//! own.

use crate::output;
use anyhow::Result;
use serde::Serialize;
use sidecore_terminal::Text;
use std::path::PathBuf;

/// Output files of a bench.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Files {
    /// Write every sample to this file (TSV)
    #[arg(long, value_name = "FILE")]
    tsv: Option<PathBuf>,
    /// Draw the figures to this file (SVG)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Files {
    /// Creates the files, empty; call it before anything is measured.
    pub(crate) fn begin(&self) -> Result<()> {
        self.tsv.as_deref().map_or(Ok(()), output::check_file)?;
        self.svg.as_deref().map_or(Ok(()), output::check_picture)
    }

    /// Writes the files' contents.
    pub(crate) fn write(
        &self,
        tsv: impl FnOnce() -> String,
        svg: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        if let Some(path) = &self.tsv {
            output::file(path, &tsv())?;
        }
        if let Some(path) = &self.svg {
            output::picture(path, &svg()?)?;
        }
        Ok(())
    }
}

/// Output form of a bench's report.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Outputs {
    /// Report in JSON on standard output
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Report as Markdown tables on standard output
    #[arg(long)]
    markdown: bool,
    #[command(flatten)]
    pub(crate) files: Files,
}

impl Outputs {
    /// Prints a report in the requested form.
    pub(crate) fn print<R: Serialize>(
        &self,
        report: &R,
        markdown: impl FnOnce(&R) -> String,
        people: impl FnOnce(&R) -> Text,
    ) -> Result<()> {
        if self.json {
            output::json(report)?;
        } else if self.markdown {
            output::text(markdown(report).trim_end())?;
        } else {
            output::show(&people(report))?;
        }
        Ok(())
    }
}
