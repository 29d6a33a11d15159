//! `sidecore block ls`, `cat` and `find`: files of an image without a mount.
//!
//! Why here: the three open an image alike and name files alike, as `extract` does. The file
//! systems are read by `sidecore_files`.

use super::common::OpenArgs;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_files::Tree;
use sidecore_files::listing::{Choice, Listing, concatenate, find, write_path};
use sidecore_files::walk::Wanted;
use sidecore_remote::access::name;
use std::ffi::OsString;
use std::io::{BufWriter, StdoutLock, Write};
use std::path::PathBuf;

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
        let (_, source) = self.open.source(self.overlay.as_deref())?;
        let name = name(&self.open.image);
        sidecore_files::open(source).with_context(|| format!("cannot read the files in {name}"))
    }
}

#[derive(clap::Args)]
#[command(after_help = "\
Reads erofs, squashfs and ext2 to ext4, as any user and without a mount. `*`, `?`, `[...]`, \
`{a,b}` and `**` in PATH stand for names in the image: quote them for the shell.

Exit status: 0 listed, 1 a PATH is not in the image, 2 could not read it.")]
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
#[command(after_help = "\
Writes the files one after the other, those of a pattern in the order of a walk. Symbolic links in \
the image are followed inside of it.

Exit status: 0 written, 1 a PATH is not in the image or no regular file, 2 could not read it.")]
pub(crate) struct CatArgs {
    #[command(flatten)]
    tree: TreeArgs,
    /// Files in the image, from its root; patterns as in `block ls`
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

#[derive(clap::Args)]
#[command(after_help = "\
Lists what PATH means and all that lies below, one path a line. Patterns as in `block ls`.

Exit status: 0 listed, 1 a PATH is not in the image, 2 could not read it.")]
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
    /// End each path with a zero byte, and escape nothing, for `xargs -0`
    #[arg(long, conflicts_with = "json")]
    print0: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
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
        let tree = self.tree.open()?;
        let choice = Choice::of(self.name.as_ref(), self.kind.as_deref())?;
        let mut wanted = Wanted::of(&self.paths)?;
        if self.json {
            let mut listing = Listing::new(&*tree);
            find(&*tree, &mut wanted, &choice, &mut |found| {
                listing.add(&*tree, found.path, found.node)
            })?;
            output::json(&listing)?;
        } else {
            let mut stdout = stdout();
            find(&*tree, &mut wanted, &choice, &mut |found| {
                write_path(&mut stdout, found.path, self.print0)
            })?;
            stdout.flush()?;
        }
        Ok(missing(wanted.missing()))
    }
}
