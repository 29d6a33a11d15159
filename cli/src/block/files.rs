//! `sidecore block ls`, `cat` and `find`: files of an image without a mount.
//!
//! Why here: the three open an image alike and name files alike, as `extract` does. The file
//! systems are read by `sidecore_files`.

use super::common::OpenArgs;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::device::Device;
use sidecore_block::format::Index;
use sidecore_files::listing::{Choice, Listing, concatenate, find, find_used, write_path};
use sidecore_files::walk::{Visit, Wanted};
use sidecore_files::{FilesError, Tree};
use sidecore_remote::access::name;
use sidecore_remote::read_trace;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
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

/// Frames of an image in the order of a trace.
struct Used<'i> {
    index: &'i Index,
    order: HashMap<u64, usize>,
}

impl<'i> Used<'i> {
    fn read(trace: &Path, index: &'i Index) -> io::Result<Self> {
        let frames = read_trace(trace, index)?;
        Ok(Self {
            index,
            order: frames.into_iter().zip(0..).collect(),
        })
    }

    /// Bytes of a range that are in the trace, and the place there of the first of them.
    fn of(&self, range: Range<u64>) -> Option<(u64, usize)> {
        let end = range.end.min(self.index.raw_bytes());
        let mut found: Option<(u64, usize)> = None;
        if range.start < end {
            let frames = self.index.frame_at(range.start)..self.index.frame_at(end - 1) + 1;
            for number in self.index.stored_in(frames) {
                let Some(&order) = self.order.get(&number) else {
                    continue;
                };
                let frame = self.index.frame(number);
                let frame_end = frame.raw_offset + u64::from(frame.raw_bytes);
                let bytes = frame_end.min(end) - frame.raw_offset.max(range.start);
                let (all, first) = found.unwrap_or((0, usize::MAX));
                found = Some((all + bytes, first.min(order)));
            }
        }
        found
    }
}

/// Walks over the chosen files of a tree; over those of a trace, where there is one.
fn each(
    (tree, choice, used): (&dyn Tree, &Choice, Option<&Used<'_>>),
    wanted: &mut Wanted,
    found: &mut dyn FnMut(Visit<'_>) -> Result<(), FilesError>,
) -> Result<(), FilesError> {
    match used {
        Some(used) => find_used(tree, wanted, choice, &|range| used.of(range), found),
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
            let read = Used::read(path, device.index());
            read.with_context(|| format!("cannot read {}", path.display()))
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
