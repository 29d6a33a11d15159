//! `sidecore block ls`, `cat` and `find`: files of an image without a mount.
//!
//! Why here: the three open an image alike and name files alike, as `extract` does. The file
//! systems are read by `sidecore_files`.

use super::common::OpenArgs;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::device::Device;
use sidecore_files::listing::{Choice, Listing, Used, concatenate, find, find_used, write_path};
use sidecore_files::walk::{Visit, Wanted};
use sidecore_files::{FilesError, Tree};
use sidecore_remote::access::name;
use sidecore_remote::read_trace;
use std::ffi::OsString;
use std::io::{BufWriter, StdoutLock, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// The image whose files are meant.
#[derive(clap::Args)]
pub(super) struct TreeArgs {
    #[command(flatten)]
    pub(super) open: OpenArgs,
    /// Contents with the writes in this overlay
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
}

impl TreeArgs {
    /// Opens the file system inside.
    pub(super) fn open(&self) -> Result<Box<dyn Tree>> {
        Ok(self.open_with_device()?.1)
    }

    /// The same, with the image's device.
    fn open_with_device(&self) -> Result<(Arc<Device>, Box<dyn Tree>)> {
        let (device, source) = self.open.source(self.overlay.as_deref())?;
        let name = name(&self.open.image);
        let tree = sidecore_files::open(source);
        let tree = tree.with_context(|| format!("cannot read the files in {name}"))?;
        Ok((device, tree))
    }
}

#[derive(clap::Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    tree: TreeArgs,
    /// Files and directories in the image, from its root [default: /]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Also permissions, owners, sizes and times (UTC)
    #[arg(short, long)]
    long: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    tree: TreeArgs,
    /// Files in the image, from its root; patterns as in `block ls`
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

#[derive(clap::Args)]
pub(crate) struct FindArgs {
    #[command(flatten)]
    tree: TreeArgs,
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
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Walks over the chosen files of a tree; over those of a trace, where there is one.
fn each(
    (tree, choice, used): (&dyn Tree, &Choice, Option<&Used<'_>>),
    wanted: &mut Wanted,
    found: &mut dyn FnMut(Visit<'_>) -> Result<(), FilesError>,
) -> Result<(), FilesError> {
    match used {
        Some(used) => find_used(tree, wanted, choice, used, found),
        None => find(tree, wanted, choice, found),
    }
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
        let listing = Listing::of(&*self.tree.open()?, &self.paths)?;
        if self.json {
            output::json(&listing)?;
        } else {
            let mut stdout = stdout();
            listing.write_to(&mut stdout, self.long)?;
            stdout.flush()?;
        }
        Ok(missing(listing.absent.iter().map(|path| &**path)))
    }
}

impl CatArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let tree = self.tree.open()?;
        let mut stdout = std::io::stdout().lock();
        let absent = concatenate(&*tree, &self.paths, &mut stdout)?;
        stdout.flush()?;
        Ok(missing(absent.iter().map(|path| &**path)))
    }
}

impl FindArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (device, tree) = self.tree.open_with_device()?;
        let choice = Choice::of(self.name.as_ref(), self.kind.as_deref())?;
        let trace = self.in_trace.as_ref().map(|path| {
            let read = read_trace(path, device.index());
            let frames = read.with_context(|| format!("cannot read {}", path.display()))?;
            Ok::<_, anyhow::Error>(Used::new(device.index(), frames))
        });
        let used = trace.transpose()?;
        let mut wanted = Wanted::of(&self.paths)?;
        let chosen = (&*tree, &choice, used.as_ref());
        if self.json {
            let mut listing = Listing::new(&*tree);
            each(chosen, &mut wanted, &mut |found| {
                listing.add(&*tree, found.path, found.node)
            })?;
            output::json(&listing)?;
        } else {
            let mut stdout = stdout();
            each(chosen, &mut wanted, &mut |found| {
                write_path(&mut stdout, found.path, self.print0)
            })?;
            stdout.flush()?;
        }
        Ok(missing(wanted.missing()))
    }
}
