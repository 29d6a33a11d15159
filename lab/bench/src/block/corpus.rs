//! The trees that the bench packs, made from this machine's own files.
//!
//! Why here: compression is about real data, and every machine has libraries, programs and
//! documentation. The same machine gives the same tree: places and names are taken in order.
//! Must stay true: only regular files are copied, as plain files without special modes; a machine
//! with less gives less, and the report gives the size.
//! Blocks while files are copied. Source: the papers' image (a program and its documentation,
//! 28.35 MB) for the small one.

use super::BenchError;
use std::collections::HashMap;
use std::fs::{self, File, Metadata};

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// A directory tree made for a run.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    /// Its directory.
    pub directory: PathBuf,
    /// Bytes in its files.
    pub bytes: u64,
    /// Its files.
    pub files: u64,
    /// A program in it, for block times of binaries.
    pub program: Option<PathBuf>,
}

/// A tree of about `bytes` in the papers' shape: one large program or library, the rest
/// documentation.
///
/// # Errors
/// [`BenchError::Io`] when nothing could be copied, [`BenchError::Interrupted`].
pub(crate) fn small(directory: &Path, bytes: u64, cancel: &AtomicBool) -> Result<Tree, BenchError> {
    let mut copier = Copier::new(directory, cancel)?;
    let largest = largest_below(bytes * 3 / 5, cancel)?;
    if let Some((path, _)) = &largest {
        copier.copy(path)?;
    }
    let mut quota = bytes.saturating_sub(copier.tree.bytes);
    for place in DOCUMENTS {
        quota -= copier.copy_below(Path::new(place), quota)?;
    }
    copier.tree.program = largest.map(|(path, _)| copier.target(&path));
    Ok(copier.tree)
}

/// A tree of about `bytes` of libraries, programs, documentation and other shared files.
///
/// # Errors
/// As [`small`].
pub(crate) fn large(directory: &Path, bytes: u64, cancel: &AtomicBool) -> Result<Tree, BenchError> {
    let mut copier = Copier::new(directory, cancel)?;
    for (place, percent) in SHARES {
        let missing = bytes.saturating_sub(copier.tree.bytes);
        copier.copy_below(Path::new(place), (bytes / 100 * percent).min(missing))?;
    }
    // A place had less than its share: take more from the others.
    for (place, _) in SHARES.iter().chain(&SPARE) {
        let missing = bytes.saturating_sub(copier.tree.bytes);
        copier.copy_below(Path::new(place), missing)?;
    }
    Ok(copier.tree)
}

struct Copier<'c> {
    tree: Tree,
    /// Files with several names, by device and inode: where the first one went.
    linked: HashMap<(u64, u64), PathBuf>,
    cancel: &'c AtomicBool,
}

impl<'c> Copier<'c> {
    fn new(directory: &Path, cancel: &'c AtomicBool) -> Result<Self, BenchError> {
        fs::create_dir_all(directory).map_err(BenchError::io("make a tree"))?;
        Ok(Self {
            tree: Tree {
                directory: directory.to_owned(),
                bytes: 0,
                files: 0,
                program: None,
            },
            linked: HashMap::new(),
            cancel,
        })
    }

    fn target(&self, path: &Path) -> PathBuf {
        self.tree
            .directory
            .join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Copies files below a place until `quota` bytes are there. Returns the copied bytes.
    fn copy_below(&mut self, place: &Path, quota: u64) -> Result<u64, BenchError> {
        let begun = self.tree.bytes;
        let cancel = self.cancel;
        walk(place, cancel, &mut |path, metadata| {
            let left = quota.saturating_sub(self.tree.bytes - begun);
            if left < FILE_BYTES_MIN {
                return Ok(false);
            }
            if metadata.len() <= left.min(FILE_BYTES_MAX) {
                self.copy(path)?;
            }
            Ok(true)
        })?;
        Ok(self.tree.bytes - begun)
    }

    /// Copies one file, unless it is there or cannot be read.
    fn copy(&mut self, path: &Path) -> Result<(), BenchError> {
        let target = self.target(path);
        let Ok(mut source) = File::open(path) else {
            return Ok(());
        };
        if target.exists() {
            return Ok(());
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(BenchError::io("make a tree"))?;
        }
        let failed = || BenchError::io(format!("copy {}", path.display()));
        let metadata = source.metadata().map_err(failed())?;
        if metadata.nlink() > 1 {
            // One file stays one file: packers that look for copies would find more than there are.
            let identity = (metadata.dev(), metadata.ino());
            if let Some(first) = self.linked.get(&identity) {
                return fs::hard_link(first, &target).map_err(failed());
            }
            self.linked.insert(identity, target.clone());
        }
        let mut file = File::create(&target).map_err(failed())?;
        // Not more than now: a log that grows must not fill the disk.
        let length = metadata.len();
        let copied = io::copy(&mut (&mut source).take(length), &mut file).map_err(failed())?;
        self.tree.bytes += copied;
        self.tree.files += 1;
        Ok(())
    }
}

/// Visits the regular files below a place, in order of their names, until `visit` says no.
fn walk(
    place: &Path,
    cancel: &AtomicBool,
    visit: &mut dyn FnMut(&Path, &Metadata) -> Result<bool, BenchError>,
) -> Result<bool, BenchError> {
    super::interrupted(cancel)?;
    let Ok(entries) = fs::read_dir(place) else {
        return Ok(true);
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let go_on = if metadata.is_dir() {
            walk(&path, cancel, visit)?
        } else if metadata.is_file() {
            visit(&path, &metadata)?
        } else {
            true
        };
        if !go_on {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The largest program or library of at most `limit` bytes; the first by name of equals.
fn largest_below(limit: u64, cancel: &AtomicBool) -> Result<Option<(PathBuf, u64)>, BenchError> {
    let mut largest: Option<(PathBuf, u64)> = None;
    for place in PROGRAMS {
        let mut looked_at = 0;
        walk(Path::new(place), cancel, &mut |path, metadata| {
            let bytes = metadata.len();
            let larger = largest.as_ref().is_none_or(|(_, most)| bytes > *most);
            if bytes <= limit && larger && is_program(path) {
                largest = Some((path.to_owned(), bytes));
            }
            looked_at += 1;
            Ok(looked_at < LOOKED_AT_MAX)
        })?;
    }
    Ok(largest)
}

fn is_program(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}

const PROGRAMS: [&str; 2] = ["/usr/bin", "/usr/lib"];
const DOCUMENTS: [&str; 3] = ["/usr/share/doc", "/usr/share/man", "/usr/share"];
/// Places, and how many hundredths of a large tree each gives at first.
const SHARES: [(&str, u64); 4] = [
    ("/usr/lib", 60),
    ("/usr/bin", 20),
    ("/usr/share/doc", 8),
    ("/usr/share", 12),
];
/// Further places, for machines where those have too little.
const SPARE: [(&str, u64); 4] = [("/usr/local", 0), ("/opt", 0), ("/usr", 0), ("/home", 0)];
/// Files of a place that are looked at in search of the largest.
const LOOKED_AT_MAX: u32 = 4000;
/// Largest file that is copied; a larger one would dominate the tree.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Shortfall up to which a tree counts as complete.
const FILE_BYTES_MIN: u64 = 16 << 10;
