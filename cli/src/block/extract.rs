//! `sidecore block extract`.

use super::common::parse_owner;
use super::files::{TreeArgs, missing, stdout};
use crate::Outcome;
use crate::output::{self, Timed};
use anyhow::{Context, Result};
use sidecore_files::listing::write_wanted;
use sidecore_files::walk::Wanted;
use sidecore_files::{Options, Tree, archive, extract_watched};
use sidecore_sys::folder::Folder;
use sidecore_terminal::progress::watched;
use sidecore_terminal::quantity;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    tree: TreeArgs,
    /// Files and directories in the image, from its root; patterns as in `block ls` [default: all]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Directory to extract to; made if it is not there
    #[arg(short = 'C', long, value_name = "DIR")]
    #[arg(required_unless_present_any = ["to_stdout", "tar"])]
    directory: Option<PathBuf>,
    /// Write the contents of all files to standard output, one after the other
    #[arg(long, conflicts_with_all = ["directory", "tar", "json", "owner", "overwrite"])]
    to_stdout: bool,
    /// Write a tar to standard output
    #[arg(long, conflicts_with_all = ["directory", "json", "overwrite"])]
    tar: bool,
    /// Replace files that are there already, each when the new one is whole
    #[arg(long)]
    overwrite: bool,
    /// Give all files this owner and group, by their numbers
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
    /// Write at most this many bytes, holes not counted, and end with an error where there are more
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "1TiB")]
    limit: u64,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let tree = self.tree.open()?;
        let mut wanted = Wanted::of(&self.paths)?;
        if let Some(directory) = &self.directory {
            let folder = std::fs::create_dir_all(directory)
                .and_then(|()| Folder::open(directory))
                .with_context(|| format!("cannot extract to {}", directory.display()))?;
            return self.extract(&*tree, &mut wanted, &folder);
        }
        let mut stdout = stdout();
        match self.to_stdout {
            true => write_wanted(&*tree, &mut wanted, &mut stdout),
            false => archive(&*tree, &mut wanted, self.owner, &mut stdout).map(drop),
        }?;
        stdout.flush()?;
        Ok(missing(wanted.missing()))
    }

    fn extract(&self, tree: &dyn Tree, wanted: &mut Wanted, into: &Folder) -> Result<Outcome> {
        let began = Instant::now();
        let mut options = Options::new(self.tree.open.engines.count());
        options.overwrite = self.overwrite;
        options.owner = self.owner;
        options.bytes_max = self.limit;
        let report = watched(None, "extracting", |on_bytes| {
            extract_watched(tree, wanted, into, options, on_bytes)
        })?;
        let timed = Timed {
            report,
            engines: None,
            seconds: began.elapsed().as_secs_f64(),
        };
        for remark in timed.report.remarks() {
            output::note!("{remark}");
        }
        output::report(self.json, &timed, |timed| {
            timed.report.line(into.path(), timed.seconds).into()
        })?;
        let found = missing(wanted.missing());
        Ok(Outcome::of(
            found == Outcome::Done && timed.report.failed == 0,
        ))
    }
}
