//! `sidecore doctor`.
//!
//! Why here: arguments and printing; `offers` probes the machine. Must stay true:
//! nothing is changed, and a machine that lacks something is not an error: exit status 0.

mod offers;

use crate::{Outcome, output};
use anyhow::Result;
use offers::Offer;
use serde::Serialize;

/// Arguments of `doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json {
    offers: Vec<Offer>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let offers = offers::ask();
        if self.json {
            output::json(&Json { offers })?;
            return Ok(Outcome::Done);
        }
        let width = offers.iter().map(|offer| offer.name.len()).max();
        let width = width.unwrap_or(0);
        for offer in &offers {
            let mark = if offer.there { "yes" } else { "no " };
            let (name, found) = (offer.name, &offer.found);
            output::line(&format!("{mark}  {name:width$}  {found}"))?;
            if !offer.there {
                let indent = width + 7;
                let used_for = offer.used_for;
                output::line(&format!("{:indent$}wanted for: {used_for}", ""))?;
            }
            if let Some(remedy) = offer.remedy {
                let indent = width + 7;
                output::line(&format!("{:indent$}to have it: {remedy}", ""))?;
            }
        }
        Ok(Outcome::Done)
    }
}
