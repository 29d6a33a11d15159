//! Which files of a tree are meant, and a walk over them.
//!
//! A pattern is a path from the tree's root, with or without a slash in front. `*` and `?` stand
//! for bytes of one name, `**` for any number of directories, `[...]` and `{...,...}` for
//! alternatives. What a pattern names is meant with all that lies below it.
//!
//! Must stay true: a walk ends, whatever the image is: each directory is entered once, and
//! [`ENTRIES_MAX`] names are visited at most. Only directories are entered in which something can
//! be meant. Names that wait are kept without the path that leads to them; the paths of which a
//! visitor may keep one for each directory have 2 GiB together.

use crate::{FilesError, Kind, Node, Tree};
use sidecore_bare::width::ToU64;
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// A file on a walk.
#[derive(Debug, Clone, Copy)]
pub struct Visit<'v> {
    /// Path from the root, without a slash in front; empty for the root.
    pub path: &'v [u8],
    /// The file.
    pub node: &'v Node,
    /// True where a pattern means it; false for a directory on the way.
    pub wanted: bool,
}

impl Visit<'_> {
    /// Its name: the path's last part.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|&byte| byte == b'/').next().unwrap_or(b"")
    }
}

/// The files that are meant.
#[derive(Debug, Clone)]
pub struct Wanted {
    patterns: Vec<Pattern>,
}

#[derive(Debug, Clone)]
struct Pattern {
    /// As the user gave it.
    given: String,
    /// Without slashes around it.
    text: Vec<u8>,
    /// The directories in front of the first name with a wildcard.
    literal: Vec<u8>,
    has_wildcards: bool,
    found: bool,
}

impl Wanted {
    /// The files that these patterns mean; all, where there is none.
    ///
    /// # Errors
    /// [`FilesError::Outside`] for a pattern with `..`.
    pub fn new(patterns: &[&[u8]]) -> Result<Self, FilesError> {
        let patterns = patterns.iter().map(|given| Pattern::new(given));
        let mut patterns = patterns.collect::<Result<Vec<_>, _>>()?;
        // The root means all that lies below it.
        if patterns.is_empty() {
            patterns.push(Pattern::new(b"/")?);
        }
        Ok(Self { patterns })
    }

    /// The same, of arguments of a command.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of(paths: &[OsString]) -> Result<Self, FilesError> {
        let patterns: Vec<&[u8]> = paths.iter().map(|path| path.as_bytes()).collect();
        Self::new(&patterns)
    }

    /// True if a pattern matches this one name.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        let mut patterns = self.patterns.iter();
        patterns.any(|pattern| pattern.matches(name))
    }

    /// The patterns that no file matched, as they were given.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        let missing = self.patterns.iter().filter(|pattern| !pattern.found);
        missing.map(|pattern| &*pattern.given)
    }

    fn means(&mut self, path: &[u8]) -> bool {
        let mut means = false;
        for pattern in &mut self.patterns {
            let is_it = pattern.matches(path);
            // Every pattern is tested, also behind a match: each one records whether it found
            // anything.
            pattern.found |= is_it;
            means |= is_it;
        }
        means
    }

    /// True if something below a directory may be meant.
    fn leads(&self, path: &[u8]) -> bool {
        self.patterns.iter().any(|pattern| {
            let target = match pattern.has_wildcards {
                true => &pattern.literal,
                false => &pattern.text,
            };
            // Behind the first wildcard anything may follow, so all below the literal part is
            // entered.
            is_above(path, target) || (pattern.has_wildcards && is_above(target, path))
        })
    }
}

impl Pattern {
    fn matches(&self, path: &[u8]) -> bool {
        match self.has_wildcards {
            true => fast_glob::glob_match(&self.text, path),
            false => self.text == path,
        }
    }

    fn new(given: &[u8]) -> Result<Self, FilesError> {
        let shown = String::from_utf8_lossy(given).into_owned();
        // `/etc//passwd` and `./etc/passwd` are the path that the tree has.
        let parts = given.split(|&byte| byte == b'/');
        let parts: Vec<_> = parts.filter(|it| !it.is_empty() && *it != b".").collect();
        // A tree has no directory above its root, and links are not resolved in a pattern.
        if parts.contains(&&b".."[..]) {
            return Err(FilesError::Outside(shown));
        }
        let is_wild = |part: &&&[u8]| is_pattern(part);
        let literal: Vec<&[u8]> = parts
            .iter()
            .take_while(|it| !is_wild(it))
            .copied()
            .collect();
        Ok(Self {
            given: shown,
            has_wildcards: literal.len() < parts.len(),
            literal: literal.join(&b'/'),
            text: parts.join(&b'/'),
            found: false,
        })
    }
}

/// True for a path with a wildcard, which may mean several files.
pub(crate) fn is_pattern(path: &[u8]) -> bool {
    path.iter().any(|byte| b"*?[{\\".contains(byte))
}

/// True if `above` is `path`, or a directory on the way to it.
fn is_above(above: &[u8], path: &[u8]) -> bool {
    match path.strip_prefix(above) {
        Some(rest) => above.is_empty() || rest.is_empty() || rest[0] == b'/',
        None => false,
    }
}

/// Walks over the files that are meant, and the directories on the way to them. A directory comes
/// before what lies in it, and its files before its directories, both in the order of their names.
///
/// # Errors
/// [`FilesError`] of a directory that cannot be read, or of `visit`.
pub fn walk(
    tree: &dyn Tree,
    wanted: &mut Wanted,
    visit: &mut dyn FnMut(Visit<'_>) -> Result<(), FilesError>,
) -> Result<(), FilesError> {
    let root = tree.node(tree.root())?;
    // By number: an image may name a directory twice under different paths.
    let mut seen = HashSet::from([root.id]);
    let (mut left, mut left_bytes) = (ENTRIES_MAX, PATHS_BYTES_MAX);
    // Begins with the path of the directory in which lies what waits. Each one's own path, kept,
    // would take memory with the square of the length of a chain of directories.
    let mut path = Vec::new();
    let mut directories = vec![(0, Vec::new(), root, wanted.means(b""))];
    while let Some((above, name, directory, all)) = directories.pop() {
        path.truncate(above);
        go_down(&mut path, &name);
        visit(Visit {
            path: &path,
            node: &directory,
            wanted: all,
        })?;
        let mut names = Vec::new();
        tree.list(&directory, &mut |name, id| {
            // Names are counted before they are kept: a hostile directory ends the walk, not
            // memory.
            left = left.checked_sub(1).ok_or(FilesError::TooMany)?;
            names.push((name.to_vec(), id));
            Ok(())
        })?;
        // Images store names in orders of their own (hashes, blocks): output has one order.
        names.sort_unstable();
        let first = directories.len();
        let here = path.len();
        for (name, id) in names {
            path.truncate(here);
            go_down(&mut path, &name);
            let means = wanted.means(&path) || all;
            if !means && !wanted.leads(&path) {
                continue;
            }
            let node = tree.node(id)?;
            // Extraction keeps the paths of directories and of files with several names.
            if node.kind == Kind::Directory || node.links > 1 {
                let len = path.len().to_u64();
                left_bytes = left_bytes.checked_sub(len).ok_or(FilesError::TooDeep)?;
            }
            if node.kind == Kind::Directory {
                // A second name could lead back up.
                if !seen.insert(id) {
                    return Err(FilesError::Twice(id));
                }
                directories.push((here, name, node, means));
            } else if means {
                visit(Visit {
                    path: &path,
                    node: &node,
                    wanted: true,
                })?;
            }
        }
        // The first one is to be taken first.
        directories[first..].reverse();
    }
    Ok(())
}

/// Adds a name to a path from the root.
fn go_down(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend(name);
}

/// The file at a path, to which symbolic links inside the tree lead as they would if the tree were
/// a root directory; with its path without links. `None` where there is none.
///
/// # Errors
/// [`FilesError`].
pub fn resolve(tree: &dyn Tree, path: &[u8]) -> Result<Option<(Vec<u8>, Node)>, FilesError> {
    // The names still to go, the next one last.
    let parts = |path: &[u8]| -> Vec<Vec<u8>> {
        let parts = path.split(|&byte| byte == b'/').rev();
        parts
            .filter(|it| !it.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    };
    let mut left = parts(path);
    let mut way: Vec<(Vec<u8>, Node)> = Vec::new();
    let root = tree.node(tree.root())?;
    let mut links = 0;
    while let Some(name) = left.pop() {
        match &*name {
            b"." => continue,
            b".." => {
                way.pop();
                continue;
            }
            _ => {}
        }
        let above = way.last().map_or(&root, |(_, node)| node);
        let mut found = None;
        if above.kind == Kind::Directory {
            tree.list(above, &mut |it, id| {
                if it == name {
                    found = Some(id);
                }
                Ok(())
            })?;
        }
        let Some(id) = found else {
            return Ok(None);
        };
        let node = tree.node(id)?;
        if node.kind != Kind::Link {
            way.push((name, node));
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(FilesError::Links(String::from_utf8_lossy(path).into()));
        }
        let target = tree.link(&node)?;
        if target.starts_with(b"/") {
            way.clear();
        }
        left.extend(parts(&target));
    }
    let names: Vec<&[u8]> = way.iter().map(|(name, _)| &**name).collect();
    let node = way.last().map_or(root, |(_, node)| *node);
    Ok(Some((names.join(&b'/'), node)))
}

/// The most names that one walk visits.
pub const ENTRIES_MAX: u64 = 20_000_000;
/// The most bytes that the paths of directories have together.
pub(crate) const PATHS_BYTES_MAX: u64 = 2 << 30;
/// Links on the way to a file, as in the kernel.
const LINKS_MAX: usize = 40;
