//! `sidecore ui`: one page in the browser with all live servers, and trees.
//!
//! Why here: it only connects the command line, the reader of trees and `sidecore_ui`.
//! Must stay true: `ready` and the address are on standard output only once the page can be opened;
//! a signal ends the command with status 0, with the socket removed.

use crate::{Outcome, output, phylo, signals};
use anyhow::{Context, Result};
use sidecore_ui::{Address, Options, Page};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address of the page: 127.0.0.1:PORT or another address of the loopback, or unix:PATH, a
    /// socket for this user and root alone; port 0 is a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: Address,
    /// Tree to show, in Newick or NEXUS; `-` is standard input
    #[arg(long, value_name = "FILE")]
    tree: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let tree = self.tree.as_deref().map(phylo::trees_as_text).transpose()?;
        let signals = signals::begin_server()?;
        let options = Options {
            address: self.listen,
            tree,
            ..Options::default()
        };
        let page = Page::start(options).context("no page")?;
        let stopper = page.stopper();
        signals.stop_with(move || stopper.stop());
        match page.address() {
            Address::Socket(path) => {
                output::ready(&format!("unix:{} {}", path.display(), page.url()))?;
            }
            _ => output::ready(page.url())?,
        }
        page.wait();
        signals.end();
        Ok(Outcome::Done)
    }
}
