//! Files as lists show them: a record for JSON, and a line as `ls -l` prints it; and the lists of
//! `ls`, `find` and `cat`.
//!
//! Why here: `block ls` and `block find` list alike. What reads files blocks on the image.

use crate::walk::{ENTRIES_MAX, PATHS_BYTES_MAX, Visit, Wanted, is_pattern, resolve, walk};
use crate::{FilesError, Kind, Node, Tree};
use sidecore_bare::text::printable;
use sidecore_bare::width::ToU64;
use sidecore_format::Index;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// Files of an image in a list.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Listing {
    /// The kernel's name of the file system.
    pub filesystem: &'static str,
    /// The files, in the order in which they were found.
    pub entries: Vec<Listed>,
    /// Paths that name nothing in the image.
    #[serde(skip)]
    pub absent: Vec<String>,
    /// One directory or file is listed, whose name need not be repeated.
    #[serde(skip)]
    is_one: bool,
    /// Files that may still be added, and bytes of their paths and targets.
    #[serde(skip)]
    left: (u64, u64),
}

impl Listing {
    /// Lists as `ls` does: what is in each directory that `paths` name, their files, and what their
    /// patterns mean; without paths, the root.
    ///
    /// # Errors
    /// [`FilesError`].
    pub fn of(tree: &dyn Tree, paths: &[OsString]) -> Result<Self, FilesError> {
        let root = [OsString::from("/")];
        let paths = match paths {
            [] => &root,
            paths => paths,
        };
        let mut listing = Self::new(tree);
        listing.is_one = paths.len() == 1 && !is_pattern(paths[0].as_bytes());
        for path in paths {
            let before = listing.entries.len();
            if is_pattern(path.as_bytes()) {
                let mut wanted = Wanted::of(std::slice::from_ref(path))?;
                walk(tree, &mut wanted, &mut |visit: Visit<'_>| {
                    if visit.wanted {
                        listing.add(tree, visit.path, visit.node)?;
                    }
                    Ok(())
                })?;
            } else if let Some((path, node)) = resolve(tree, path.as_bytes())? {
                listing.add_contents(tree, &path, &node)?;
                // A directory may be empty and is not absent.
                continue;
            }
            if listing.entries.len() == before {
                listing.absent.push(path.to_string_lossy().into_owned());
            }
        }
        Ok(listing)
    }

    /// Nothing of `tree` yet.
    #[must_use]
    pub fn new(tree: &dyn Tree) -> Self {
        Self {
            filesystem: tree.name(),
            entries: Vec::new(),
            absent: Vec::new(),
            is_one: false,
            left: (ENTRIES_MAX, PATHS_BYTES_MAX),
        }
    }

    /// Adds a file.
    ///
    /// # Errors
    /// [`FilesError`] where the target of a link cannot be read, or the list becomes too long.
    pub fn add(&mut self, tree: &dyn Tree, path: &[u8], node: &Node) -> Result<(), FilesError> {
        let listed = Listed::new(tree, path, node)?;
        let len = listed.path.len() + listed.target.as_ref().map_or(0, String::len);
        let (files, bytes) = self.left;
        self.left = (
            files.checked_sub(1).ok_or(FilesError::TooMany)?,
            bytes.checked_sub(len.to_u64()).ok_or(FilesError::TooDeep)?,
        );
        self.entries.push(listed);
        Ok(())
    }

    /// Adds a directory's files, or the file itself.
    fn add_contents(
        &mut self,
        tree: &dyn Tree,
        path: &[u8],
        node: &Node,
    ) -> Result<(), FilesError> {
        if node.kind != Kind::Directory {
            return self.add(tree, path, node);
        }
        let (mut names, mut left) = (Vec::new(), self.left.0);
        tree.list(node, &mut |name, id| {
            // Counted before they are kept, as in a walk.
            left = left.checked_sub(1).ok_or(FilesError::TooMany)?;
            names.push((name.to_vec(), id));
            Ok(())
        })?;
        names.sort_unstable();
        for (name, id) in names {
            let parts = [path, &*name];
            // The root's path is empty, and no slash stands behind it.
            let parts = &parts[usize::from(path.is_empty())..];
            self.add(tree, &parts.join(&b'/'), &tree.node(id)?)?;
        }
        Ok(())
    }

    /// Writes a line for each file, with `long` as `ls -l` does; foreign bytes are escaped.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn write_to(&self, output: &mut dyn Write, long: bool) -> io::Result<()> {
        for entry in &self.entries {
            let name = match entry.path.rsplit_once('/') {
                // Names alone are enough where one directory is listed.
                Some((_, name)) if self.is_one => name,
                _ => &entry.path,
            };
            let line = match long {
                true => entry.line(name),
                false => name.to_owned(),
            };
            writeln!(output, "{}", printable(&line))?;
        }
        Ok(())
    }
}

/// A choice among the files of a walk.
#[derive(Debug, Clone)]
pub struct Choice {
    name: Option<Wanted>,
    kind: Option<Kind>,
}

impl Choice {
    /// Files whose name matches the pattern `name`, and whose kind has this letter of find(1).
    ///
    /// Kinds are `find`'s letters: `f`, `d`, `l`, `c`, `b`, `p`; any other is a socket.
    ///
    /// # Errors
    /// [`FilesError::Outside`] for a name with `..`.
    pub fn of(name: Option<&OsString>, kind: Option<&str>) -> Result<Self, FilesError> {
        let name = name.map(|name| Wanted::of(std::slice::from_ref(name)));
        Ok(Self {
            name: name.transpose()?,
            kind: kind.map(|letter| match letter {
                "f" => Kind::File,
                "d" => Kind::Directory,
                "l" => Kind::Link,
                "c" => Kind::CharacterDevice,
                "b" => Kind::BlockDevice,
                "p" => Kind::Fifo,
                _ => Kind::Socket,
            }),
        })
    }

    fn has(&self, visit: Visit<'_>) -> bool {
        let is_named = self.name.as_ref();
        visit.wanted
            && is_named.is_none_or(|name| name.matches(visit.name()))
            && self.kind.is_none_or(|kind| kind == visit.node.kind)
    }
}

/// Walks over the files that are wanted and chosen; of those, with frames that were used, over the
/// regular files of which at least half of the stored bytes were used, in the order of their first
/// use.
///
/// # Errors
/// [`FilesError`], also that of `found`; with frames [`FilesError::NoPlaces`].
pub fn find(
    tree: &dyn Tree,
    wanted: &mut Wanted,
    choice: &Choice,
    used: Option<&Used<'_>>,
    found: &mut dyn FnMut(Visit<'_>) -> Result<(), FilesError>,
) -> Result<(), FilesError> {
    match used {
        Some(used) => find_used(tree, wanted, choice, used, found),
        None => walk(tree, wanted, &mut |visit| match choice.has(visit) {
            true => found(visit),
            false => Ok(()),
        }),
    }
}

/// Frames of an image in the order of their first use, as a trace has them.
#[derive(Debug)]
pub struct Used<'i> {
    index: &'i Index,
    order: HashMap<u64, usize>,
}

impl<'i> Used<'i> {
    /// These frames, by their numbers, the first used one first.
    #[must_use]
    pub fn new(index: &'i Index, frames: Vec<u64>) -> Self {
        Self {
            index,
            order: frames.into_iter().zip(0..).collect(),
        }
    }

    /// Bytes of a range that were used, and the place in the order of the first of them.
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

/// As [`find`], of files that were used.
fn find_used(
    tree: &dyn Tree,
    wanted: &mut Wanted,
    choice: &Choice,
    used: &Used<'_>,
    found: &mut dyn FnMut(Visit<'_>) -> Result<(), FilesError>,
) -> Result<(), FilesError> {
    let mut all: Vec<(usize, Vec<u8>, Node)> = Vec::new();
    let mut left = PATHS_BYTES_MAX;
    find(tree, wanted, choice, None, &mut |visit| {
        if visit.node.kind != Kind::File {
            return Ok(());
        }
        let (mut stored_bytes, mut used_bytes, mut first) = (0, 0, usize::MAX);
        tree.places(visit.node, &mut |place| {
            stored_bytes += place.end - place.start;
            if let Some((bytes, order)) = used.of(place) {
                used_bytes += bytes;
                first = first.min(order);
            }
        })?;
        // Of its neighbours in the first and the last frame, a small part only.
        if used_bytes > 0 && used_bytes >= stored_bytes.div_ceil(2) {
            let len = visit.path.len().to_u64();
            left = left.checked_sub(len).ok_or(FilesError::TooDeep)?;
            all.push((first, visit.path.to_vec(), *visit.node));
        }
        Ok(())
    })?;
    // A stable sort: files that were used together keep the walk's order.
    all.sort_by_key(|(first, ..)| *first);
    for (_, path, node) in &all {
        found(Visit {
            path,
            node,
            wanted: true,
        })?;
    }
    Ok(())
}

/// Writes a path from the root on a line of its own, foreign bytes escaped; or, with
/// `ends_in_zero`, as it is with a zero byte behind it.
///
/// # Errors
/// [`FilesError::Output`].
pub fn write_path(
    output: &mut dyn Write,
    path: &[u8],
    ends_in_zero: bool,
) -> Result<(), FilesError> {
    let written = match ends_in_zero {
        true => [&b"/"[..], path, b"\0"]
            .iter()
            .try_for_each(|part| output.write_all(part)),
        false => writeln!(output, "/{}", printable(&String::from_utf8_lossy(path))),
    };
    written.map_err(FilesError::Output)
}

/// Writes the contents of the regular files that `paths` name, one after the other; symbolic links
/// are followed inside the tree. Returns what is not there, or no regular file.
///
/// # Errors
/// [`FilesError`].
pub fn concatenate(
    tree: &dyn Tree,
    paths: &[OsString],
    output: &mut dyn Write,
) -> Result<Vec<String>, FilesError> {
    let mut absent = Vec::new();
    for path in paths {
        let shown = path.to_string_lossy();
        if is_pattern(path.as_bytes()) {
            let mut wanted = Wanted::of(std::slice::from_ref(path))?;
            write_wanted(tree, &mut wanted, output)?;
            absent.extend(wanted.missing().map(str::to_owned));
            continue;
        }
        match resolve(tree, path.as_bytes())? {
            Some((_, node)) if node.kind == Kind::File => write_contents(tree, &node, output)?,
            Some((_, node)) => {
                let kind = kind_name(node.kind);
                absent.push(format!("{shown} is a {kind}: a regular file of that name"));
            }
            None => absent.push(shown.into_owned()),
        }
    }
    Ok(absent)
}

/// Writes the contents of all regular files that are wanted, in the tree's order.
///
/// # Errors
/// [`FilesError`].
pub fn write_wanted(
    tree: &dyn Tree,
    wanted: &mut Wanted,
    output: &mut dyn Write,
) -> Result<(), FilesError> {
    walk(
        tree,
        wanted,
        &mut |visit: Visit<'_>| match visit.wanted && visit.node.kind == Kind::File {
            true => write_contents(tree, visit.node, output),
            false => Ok(()),
        },
    )
}

fn write_contents(tree: &dyn Tree, node: &Node, output: &mut dyn Write) -> Result<(), FilesError> {
    tree.contents(node, 0..node.size_bytes, &mut |piece| {
        piece.write_to(output)
    })
}

/// A file in a list.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Listed {
    /// Path from the root of the image, which begins with a slash; bytes that are not UTF-8 are
    /// replaced.
    pub path: String,
    /// `file`, `directory`, `link`, `character device`, `block device`, `pipe` or `socket`.
    pub kind: &'static str,
    /// Permissions in octal digits.
    pub permissions: String,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Time of the last change, in seconds since 1970.
    pub mtime_s: i64,
    /// Target of a symbolic link.
    pub target: Option<String>,
    #[serde(skip)]
    node: Node,
}

impl Listed {
    /// The file at `path`.
    ///
    /// # Errors
    /// [`FilesError`] where its target cannot be read.
    fn new(tree: &dyn Tree, path: &[u8], node: &Node) -> Result<Self, FilesError> {
        let target = match node.kind {
            Kind::Link => Some(String::from_utf8_lossy(&tree.link(node)?).into_owned()),
            _ => None,
        };
        Ok(Self {
            path: format!("/{}", String::from_utf8_lossy(path)),
            kind: kind_name(node.kind),
            permissions: format!("{:04o}", node.permissions),
            links: node.links,
            uid: node.uid,
            gid: node.gid,
            size_bytes: node.size_bytes,
            mtime_s: node.mtime_s,
            target,
            node: *node,
        })
    }

    /// The line of `ls -l`, times in UTC; `name` stands for its path.
    #[must_use]
    pub fn line(&self, name: &str) -> String {
        let node = &self.node;
        let size = match node.kind {
            Kind::CharacterDevice | Kind::BlockDevice => {
                format!("{}, {}", node.device.0, node.device.1)
            }
            _ => node.size_bytes.to_string(),
        };
        let mode = mode(node);
        let time = time(node.mtime_s);
        let target = self.target.iter().map(|target| format!(" -> {target}"));
        let target: String = target.collect();
        let Self {
            links, uid, gid, ..
        } = self;
        format!("{mode} {links:>3} {uid:>5} {gid:>5} {size:>12} {time} {name}{target}")
    }
}

/// The name of a kind, as lists have it.
fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Link => "link",
        Kind::CharacterDevice => "character device",
        Kind::BlockDevice => "block device",
        Kind::Fifo => "pipe",
        Kind::Socket => "socket",
    }
}

/// `drwxr-sr-x`.
fn mode(node: &Node) -> String {
    let first = match node.kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Link => 'l',
        Kind::CharacterDevice => 'c',
        Kind::BlockDevice => 'b',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
    };
    let mut text = String::from(first);
    for (class, (special, letter)) in [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')]
        .iter()
        .enumerate()
    {
        let bits = node.permissions >> (6 - 3 * class);
        let has = |bit: u16| bits & bit != 0;
        text.push(if has(4) { 'r' } else { '-' });
        text.push(if has(2) { 'w' } else { '-' });
        text.push(match (node.permissions & special != 0, has(1)) {
            (true, true) => *letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `2001-09-09 01:46`, in UTC.
fn time(seconds: i64) -> String {
    let minutes = seconds.div_euclid(60);
    let days = minutes.div_euclid(24 * 60);
    let of_day = minutes.rem_euclid(24 * 60);
    // Years that begin in March end with the leap day; an era has 400 of them (days_from_civil of
    // Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms", the other way round).
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (of_day / 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Made;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00"),
            (-1, "1969-12-31 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (1_000_000_000, "2001-09-09 01:46"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(time(seconds), expected);
        }
    }

    #[test]
    fn a_list_ends_at_its_limits() {
        let tree = Made {
            names: |_| (1..=200).map(|id| (vec![b'n'; 9], id)).collect(),
            node: |id| match id {
                0 => (Kind::Directory, 0),
                _ => (Kind::File, 0),
            },
            before: Box::new(|_| ()),
        };
        let root = tree.node(0).unwrap();
        let list = |left| {
            let mut listing = Listing::new(&tree);
            listing.left = left;
            let added = listing.add_contents(&tree, b"", &root);
            (added, listing.entries.len())
        };
        assert!(matches!(list((200, 2000)), (Ok(()), 200)));
        // The names of one directory are counted before one is kept.
        assert!(matches!(list((199, 2000)), (Err(FilesError::TooMany), 0)));
        assert!(matches!(list((200, 1999)), (Err(FilesError::TooDeep), 199)));
    }
}
