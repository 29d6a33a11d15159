//! Rules of the parts that a packed tree takes over from its source: names that are left out,
//! owners and times; and of the order of its contents.
//!
//! Pure. Called from: any thread.

use sidecore_erofs::write::Meta;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// See the module. Nothing is changed by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    exclude: Vec<Vec<u8>>,
    /// Ranks of files and directories whose contents come first.
    first: HashMap<PathBuf, usize>,
    /// Owner and group of all files.
    pub owner: Option<(u32, u32)>,
    /// Time of the last change of all files, in seconds since 1970.
    pub mtime_s: Option<i64>,
}

impl Rules {
    /// These patterns of what is left out (globs of paths), and this owner, group and time of
    /// all files where they are given.
    #[must_use]
    pub fn new(exclude: &[OsString], owner: Option<(u32, u32)>, mtime_s: Option<i64>) -> Self {
        let mut rules = Self {
            owner,
            mtime_s,
            ..Self::default()
        };
        exclude.iter().for_each(|pattern| rules.exclude(pattern));
        rules
    }

    /// Leaves out what the pattern matches, and all below: a path from the tree's root, or, where
    /// the pattern has no slash, a name in any directory. `*` and `?` stand for bytes of one name,
    /// `**` for any number of directories.
    pub(crate) fn exclude(&mut self, pattern: &OsStr) {
        let pattern = pattern.as_bytes();
        let pattern = pattern.strip_suffix(b"/").unwrap_or(pattern);
        self.exclude.push(pattern.to_vec());
    }

    /// Has the contents of listed files come first, in the order of the list: what is read together
    /// then lies together. A line is a path from the tree's root, that of a directory for all files
    /// below it. In a list with zero bytes, these end the paths. What is not in the tree is passed
    /// over.
    pub fn store_first(&mut self, list: &[u8]) {
        let end = match list.contains(&0) {
            true => 0,
            false => b'\n',
        };
        for (line, rank) in list.split(|&byte| byte == end).zip(0..) {
            let names = line.split(|&byte| byte == b'/');
            let names = names.filter(|name| !name.is_empty() && *name != b".");
            let path: PathBuf = names.map(OsStr::from_bytes).collect();
            // The end of the list, or the whole tree, which has no order of its own.
            if !path.as_os_str().is_empty() {
                self.first.entry(path).or_insert(rank);
            }
        }
    }

    /// True where some contents come first.
    pub(super) fn has_first(&self) -> bool {
        !self.first.is_empty()
    }

    /// Rank of a file's contents: its place in the list, or that of its nearest directory there.
    pub(super) fn rank(&self, path: &Path) -> usize {
        if !self.has_first() {
            return usize::MAX;
        }
        let found = path.ancestors().find_map(|path| self.first.get(path));
        found.copied().unwrap_or(usize::MAX)
    }

    /// True where nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// True where this path, or a directory on the way to it, is left out.
    #[must_use]
    pub fn excludes(&self, path: &Path) -> bool {
        self.may_exclude() && path.ancestors().any(|path| self.excludes_itself(path))
    }

    /// True where something may be left out.
    pub(super) fn may_exclude(&self) -> bool {
        !self.exclude.is_empty()
    }

    /// True where this path is left out; a walk does not come to what lies below.
    pub(super) fn excludes_itself(&self, path: &Path) -> bool {
        let Some(name) = path.file_name() else {
            return false;
        };
        self.exclude.iter().any(|pattern| {
            let rooted = pattern.strip_prefix(b"/").unwrap_or(pattern);
            match pattern.contains(&b'/') {
                true => fast_glob::glob_match(rooted, path.as_os_str().as_bytes()),
                false => fast_glob::glob_match(pattern, name.as_bytes()),
            }
        })
    }

    /// The attributes that a file gets.
    pub(super) fn apply(&self, meta: Meta) -> Meta {
        let (uid, gid) = self.owner.unwrap_or((meta.uid, meta.gid));
        let time = self.mtime_s.map(|seconds| (seconds, 0));
        let (mtime_s, mtime_ns) = time.unwrap_or((meta.mtime_s, meta.mtime_ns));
        Meta {
            uid,
            gid,
            mtime_s,
            mtime_ns,
            ..meta
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_with_a_slash_begin_at_the_root() {
        let mut rules = Rules::default();
        for pattern in ["*.o", "/var/cache/", "usr/**/tmp"] {
            rules.exclude(pattern.as_ref());
        }
        for (path, expected) in [
            ("a.o", true),
            ("src/deep/a.o", true),
            ("a.ox", false),
            ("var/cache", true),
            ("var/cache/apt/x", true),
            ("srv/var/cache", false),
            ("usr/tmp", true),
            ("usr/a/b/tmp/c", true),
            ("tmp", false),
            ("", false),
        ] {
            assert_eq!(rules.excludes(Path::new(path)), expected, "{path}");
        }
    }
}
