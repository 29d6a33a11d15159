//! `sidecore block ls`, `cat`, `find` and `extract`: files of an image without a mount.
//!
//! Why here: they open an image alike and name files alike. The file systems are read by
//! `sidecore_files`.

use super::common::ContentsArgs;
use crate::output::{JsonArgs, Timed};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::device::Device;
use sidecore_files::listing::{Choice, Listing, Used, concatenate, find, write_path, write_wanted};
use sidecore_files::walk::Wanted;
use sidecore_files::{Options, Tree, archive, extract_watched};
use sidecore_remote::access::name;
use sidecore_remote::read_trace;
use sidecore_sys::folder::Folder;
use sidecore_terminal::progress::watched;
use sidecore_terminal::quantity;
use sidecore_terminal::values::owner;
use std::ffi::OsString;
use std::io::{BufWriter, StdoutLock, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

impl ContentsArgs {
    /// Opens the file system inside; also the image's device.
    fn tree(&self) -> Result<(Arc<Device>, Box<dyn Tree>)> {
        let (device, source) = self.source()?;
        let name = name(&self.open.image);
        let tree = sidecore_files::open(source);
        let tree = tree.with_context(|| format!("cannot read the files in {name}"))?;
        Ok((device, tree))
    }
}

#[derive(clap::Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    contents: ContentsArgs,
    /// Files and directories in the image, from its root [default: /]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Also permissions, owners, sizes and times (UTC)
    #[arg(short, long)]
    long: bool,
    #[command(flatten)]
    form: JsonArgs,
}

#[derive(clap::Args)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    contents: ContentsArgs,
    /// Files in the image, from its root; patterns as in `block ls`
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

#[derive(clap::Args)]
pub(crate) struct FindArgs {
    #[command(flatten)]
    contents: ContentsArgs,
    /// Starting points, from the root of the image [default: /]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Only files whose name matches this pattern
    #[arg(long, value_name = "GLOB")]
    name: Option<OsString>,
    /// Only files of this kind: f, d, l (symbolic link), c, b, p, s, as in find(1)
    #[arg(long = "type", value_name = "KIND", value_parser = ["f", "d", "l", "c", "b", "p", "s"])]
    kind: Option<String>,
    /// Only regular files of which a trace (`--trace` of this or another command) has at least
    /// half, in the order of their first use: `block pack --first` takes such a list
    #[arg(long, value_name = "TRACE")]
    in_trace: Option<PathBuf>,
    /// End each path with a zero byte, and escape nothing, for `xargs -0`
    #[arg(long, conflicts_with = "json")]
    print0: bool,
    #[command(flatten)]
    form: JsonArgs,
}

/// Reports what is not in the image.
pub(super) fn missing<'p>(paths: impl IntoIterator<Item = &'p str>) -> Outcome {
    let mut outcome = Outcome::Done;
    for path in paths {
        output::note!("sidecore: {path} is not in the image; `sidecore block find` lists what is");
        outcome = Outcome::Problem;
    }
    outcome
}

/// Standard output, written many lines at a time.
pub(super) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(256 << 10, std::io::stdout().lock())
}

impl LsArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let listing = Listing::of(&*self.contents.tree()?.1, &self.paths)?;
        let mut stdout = stdout();
        match self.form.json {
            true => output::json(&listing)?,
            false => listing.write_to(&mut stdout, self.long)?,
        }
        stdout.flush()?;
        Ok(missing(listing.absent.iter().map(|path| &**path)))
    }
}

impl CatArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (_, tree) = self.contents.tree()?;
        let mut stdout = std::io::stdout().lock();
        let absent = concatenate(&*tree, &self.paths, &mut stdout)?;
        stdout.flush()?;
        Ok(missing(absent.iter().map(|path| &**path)))
    }
}

impl FindArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (device, tree) = self.contents.tree()?;
        let choice = Choice::of(self.name.as_ref(), self.kind.as_deref())?;
        let trace = self.in_trace.as_ref().map(|path| {
            let frames = read_trace(path, device.index());
            frames.with_context(|| format!("cannot read {}", path.display()))
        });
        let used = trace.transpose()?;
        let used = used.map(|frames| Used::new(device.index(), frames));
        let mut wanted = Wanted::of(&self.paths)?;
        let (tree, mut listing, mut stdout) = (&*tree, Listing::new(&*tree), stdout());
        find(
            tree,
            &mut wanted,
            &choice,
            used.as_ref(),
            &mut |found| match self.form.json {
                true => listing.add(tree, found.path, found.node),
                false => write_path(&mut stdout, found.path, self.print0),
            },
        )?;
        stdout.flush()?;
        if self.form.json {
            output::json(&listing)?;
        }
        Ok(missing(wanted.missing()))
    }
}

#[derive(clap::Args)]
pub(crate) struct ExtractArgs {
    #[command(flatten)]
    contents: ContentsArgs,
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
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    owner: Option<(u32, u32)>,
    /// Write at most this many bytes, holes not counted, and end with an error where there are more
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "1TiB")]
    limit: u64,
    #[command(flatten)]
    form: JsonArgs,
}

impl ExtractArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (_, tree) = self.contents.tree()?;
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
        let mut options = Options::new(self.contents.open.engines.count());
        options.overwrite = self.overwrite;
        options.owner = self.owner;
        options.bytes_max = self.limit;
        let report = watched(None, "extracting", |on_bytes| {
            extract_watched(tree, wanted, into, options, on_bytes)
        })?;
        let timed = Timed::since(began, None, report);
        for remark in timed.report.remarks() {
            output::note!("{remark}");
        }
        self.form.report(&timed, |timed| {
            timed.report.line(into.path(), timed.seconds).into()
        })?;
        let found = missing(wanted.missing());
        Ok(Outcome::of(
            found == Outcome::Done && timed.report.failed == 0,
        ))
    }
}
