//! `sidecore block ls`, `cat` and `find`: files of an image without a mount.
//!
//! Why here: the three open an image alike and name files alike, as `extract` does. The file
//! systems are read by `sidecore_files`.

use super::common::{OpenArgs, open_device};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::overlay::open_to_read;
use sidecore_block::source::BlockSource;
use sidecore_files::listing::{Listed, kind_name};
use sidecore_files::walk::{Visit, Wanted, resolve, walk};
use sidecore_files::{FilesError, Kind, Node, Tree};
use sidecore_sys::text::printable;
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
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
        let device = open_device(&self.open)?;
        let source: Arc<dyn BlockSource> = match &self.overlay {
            Some(path) => Arc::new(open_to_read(device, path)?),
            None => device,
        };
        let name = super::image::name(&self.open.image);
        sidecore_files::open(source).with_context(|| format!("cannot read the files in {name}"))
    }
}

/// Arguments of `block ls`.
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

/// Arguments of `block cat`.
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

/// Arguments of `block find`.
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

#[derive(serde::Serialize)]
struct Json {
    filesystem: &'static str,
    entries: Vec<Listed>,
}

/// Patterns out of arguments.
pub(super) fn wanted(paths: &[OsString]) -> Result<Wanted> {
    let patterns: Vec<&[u8]> = paths.iter().map(|path| path.as_bytes()).collect();
    Ok(Wanted::new(&patterns)?)
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

fn is_pattern(path: &OsString) -> bool {
    path.as_bytes().iter().any(|byte| b"*?[{\\".contains(byte))
}

impl LsArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let tree = self.tree.open()?;
        let mut entries = Vec::new();
        let mut absent = Vec::new();
        let root = [OsString::from("/")];
        let paths = match self.paths.is_empty() {
            true => &root[..],
            false => &self.paths[..],
        };
        for path in paths {
            let before = entries.len();
            if is_pattern(path) {
                let mut wanted = wanted(std::slice::from_ref(path))?;
                walk(&*tree, &mut wanted, &mut |visit: Visit<'_>| {
                    if visit.wanted {
                        entries.push(Listed::new(&*tree, visit.path, visit.node)?);
                    }
                    Ok(())
                })?;
            } else if let Some((path, node)) = resolve(&*tree, path.as_bytes())? {
                list(&*tree, path, &node, &mut entries)?;
                continue;
            }
            if entries.len() == before {
                absent.push(path.to_string_lossy().into_owned());
            }
        }
        if self.json {
            let filesystem = tree.name();
            output::json(&Json {
                filesystem,
                entries,
            })?;
        } else {
            // Names alone are enough where one directory is listed.
            let is_one = paths.len() == 1 && !is_pattern(&paths[0]);
            let lines = entries.iter().map(|entry| {
                let name = match entry.path.rsplit_once('/') {
                    Some((_, name)) if is_one => name,
                    _ => entry.path.as_str(),
                };
                if self.long {
                    entry.line(name)
                } else {
                    name.to_owned()
                }
            });
            lines_of(lines)?;
        }
        Ok(missing(absent.iter().map(|path| &**path)))
    }
}

/// Lists a directory's files, or the file itself.
fn list(
    tree: &dyn Tree,
    path: Vec<u8>,
    node: &Node,
    entries: &mut Vec<Listed>,
) -> Result<(), FilesError> {
    if node.kind != Kind::Directory {
        entries.push(Listed::new(tree, &path, node)?);
        return Ok(());
    }
    let mut names = Vec::new();
    tree.list(node, &mut |name, id| {
        names.push((name.to_vec(), id));
        Ok(())
    })?;
    names.sort_unstable();
    for (name, id) in names {
        let parts = [&*path, &*name];
        let parts = if path.is_empty() {
            &parts[1..]
        } else {
            &parts[..]
        };
        entries.push(Listed::new(tree, &parts.join(&b'/'), &tree.node(id)?)?);
    }
    Ok(())
}

/// Writes lines to standard output, many at a time; foreign bytes in them are escaped.
fn lines_of(lines: impl Iterator<Item = String>) -> Result<()> {
    let mut stdout = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    for line in lines {
        stdout.write_all(printable(&line).as_bytes())?;
        stdout.write_all(b"\n")?;
    }
    Ok(stdout.flush()?)
}

/// Writes a file's contents.
fn write(tree: &dyn Tree, node: &Node, output: &mut dyn Write) -> Result<(), FilesError> {
    tree.contents(node, 0..node.size_bytes, &mut |piece| {
        piece.write_to(output)
    })
}

/// Writes the contents of all regular files that are wanted, in the tree's order.
pub(super) fn write_wanted(
    tree: &dyn Tree,
    wanted: &mut Wanted,
    output: &mut dyn Write,
) -> Result<(), FilesError> {
    walk(
        tree,
        wanted,
        &mut |visit: Visit<'_>| match visit.wanted && visit.node.kind == Kind::File {
            true => write(tree, visit.node, output),
            false => Ok(()),
        },
    )
}

impl CatArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let tree = self.tree.open()?;
        let mut stdout = std::io::stdout().lock();
        let mut absent = Vec::new();
        for path in &self.paths {
            let shown = path.to_string_lossy();
            if is_pattern(path) {
                let mut wanted = wanted(std::slice::from_ref(path))?;
                write_wanted(&*tree, &mut wanted, &mut stdout)?;
                absent.extend(wanted.missing().map(str::to_owned));
                continue;
            }
            match resolve(&*tree, path.as_bytes())? {
                Some((_, node)) if node.kind == Kind::File => {
                    write(&*tree, &node, &mut stdout)?;
                }
                Some((_, node)) => {
                    let kind = kind_name(node.kind);
                    absent.push(format!("{shown} is a {kind}: a regular file of that name"));
                }
                None => absent.push(shown.into_owned()),
            }
        }
        stdout.flush()?;
        Ok(missing(absent.iter().map(|path| &**path)))
    }
}

impl FindArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let tree = self.tree.open()?;
        let mut names = self
            .name
            .iter()
            .map(|name| wanted(std::slice::from_ref(name)));
        let name = names.next().transpose()?;
        let kind = self.kind.as_deref().map(|letter| match letter {
            "f" => Kind::File,
            "d" => Kind::Directory,
            "l" => Kind::Link,
            "c" => Kind::CharacterDevice,
            "b" => Kind::BlockDevice,
            "p" => Kind::Fifo,
            _ => Kind::Socket,
        });
        let mut wanted = wanted(&self.paths)?;
        let mut entries = Vec::new();
        let mut stdout = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
        walk(&*tree, &mut wanted, &mut |visit: Visit<'_>| {
            let is_named = name.as_ref().is_none_or(|name| name.matches(visit.name()));
            let is_kind = kind.is_none_or(|kind| kind == visit.node.kind);
            if !(visit.wanted && is_named && is_kind) {
                return Ok(());
            }
            if self.json {
                entries.push(Listed::new(&*tree, visit.path, visit.node)?);
                return Ok(());
            }
            let written = match self.print0 {
                true => (stdout.write_all(b"/"))
                    .and_then(|()| stdout.write_all(visit.path))
                    .and_then(|()| stdout.write_all(b"\0")),
                false => {
                    let path = String::from_utf8_lossy(visit.path);
                    writeln!(stdout, "/{}", printable(&path))
                }
            };
            written.map_err(FilesError::Output)
        })?;
        stdout.flush()?;
        drop(stdout);
        if self.json {
            let filesystem = tree.name();
            output::json(&Json {
                filesystem,
                entries,
            })?;
        }
        Ok(missing(wanted.missing()))
    }
}
