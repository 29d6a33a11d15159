//! `sidecore spe document`: the two programs that the document on the Cell's address translation
//! prints in full, built and run.

use crate::{Outcome, output};
use anyhow::Result;
use serde::Serialize;
use sidecore_spe_tools::{DocumentRow, document_rows};
use sidecore_terminal::Text;
use std::path::PathBuf;

/// Arguments of `spe document`.
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
        let kit = || super::kit().map_err(|error| output::chain(&error));
        let runs = if self.quick { 1 } else { 9 };
        let rows = document_rows(folder.as_deref(), kit, runs);
        if self.json {
            output::json(&Report { rows })?;
            return Ok(Outcome::Done);
        }
        let mut text = Text::new();
        for row in rows {
            let said = match (row.here, row.note) {
                (Some(value), _) => format!("{value:.1} {}", row.unit),
                (None, note) => note.unwrap_or_default(),
            };
            text.fact(row.name, said);
        }
        output::show(&text)?;
        Ok(Outcome::Done)
    }
}
