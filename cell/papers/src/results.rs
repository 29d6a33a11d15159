//! Results of commands, and the store that keeps results of finished ones.
//!
//! Why here: a stopped run of twenty minutes must not begin again, and a page is made of results,
//! not of runs. Must stay true: a result is used again only where the same program measured the
//! same machine, not too long ago. A damaged file is no result. A file is whole or absent (written
//! under another name, then renamed), so that two runs at once cannot mix theirs. A lock keeps them
//! from *measuring* at once; it ends with its process, however that ends.
//! Source: own; flock(2).

use crate::PapersError;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sidecore_measure::Machine;
use sidecore_sys::folder::{Folder, FolderError};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Result of each part that was run, by the part's id.
pub type Results = BTreeMap<String, Found>;

/// Result of a part.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// A result.
    Kept(Box<Kept>),
    /// No result.
    Missing {
        /// The reason, in words.
        why: String,
    },
}

/// A finished part's result with the conditions it was measured under.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The part's id.
    pub part: String,
    /// The command line, as a person would type it.
    pub command: String,
    /// True if it was a quick run; also false if the part has no quick run.
    pub quick: bool,
    /// Identity of the program that made it: its version, and its file.
    pub program: String,
    /// The machine, with its load at the beginning of this part.
    pub machine: Machine,
    /// Start time, in seconds since 1970.
    pub began_unix_s: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Problem that the command reported although it gave a result, or that it ended with status 1.
    pub problem: Option<String>,
    /// The JSON object that the command printed.
    pub report: Value,
}

/// Conditions that a kept result must match to be used again.
#[derive(Debug, Clone)]
pub struct Now {
    /// Identity of the program that runs.
    pub program: String,
    /// The machine.
    pub machine: Machine,
    /// The time, in seconds since 1970.
    pub unix_s: u64,
    /// Greatest age of a result, in seconds.
    pub age_s_max: u64,
}

impl Kept {
    /// Checks that the result may be used again: same program, same machine, not too old.
    ///
    /// # Errors
    /// The reason, in words, if it must not be reused.
    pub fn usable(&self, now: &Now) -> Result<(), &'static str> {
        let (then, here) = (&self.machine, &now.machine);
        let same_machine = then.cpu == here.cpu
            && then.cores == here.cores
            && then.memory_bytes == here.memory_bytes
            && then.kernel == here.kernel;
        // First, since a newer program may measure in another way.
        if self.program != now.program {
            return Err("made by another version of this program");
        }
        if !same_machine {
            return Err("made on another machine");
        }
        // A clock that was put back says nothing of its age.
        match now.unix_s.checked_sub(self.began_unix_s) {
            Some(age_s) if age_s <= now.age_s_max => Ok(()),
            Some(_) => Err("too old"),
            None => Err("made in the future"),
        }
    }
}

/// A directory of kept results.
#[derive(Debug)]
pub struct Store {
    folder: Folder,
}

/// Held while a run measures; ends when dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "it is held, not read")] File);

impl Store {
    /// The store in a directory that was named, else in the user's own place for caches.
    ///
    /// # Errors
    /// [`PapersError`].
    pub fn place(named: Option<PathBuf>) -> Result<Self, PapersError> {
        let directory = named.or_else(default_directory);
        Self::open(&directory.ok_or(PapersError::NoPlace)?)
    }

    /// The store in `directory`, which is made if missing. It must be this user's own and closed to
    /// the writing of others: its files are taken for measurements.
    ///
    /// # Errors
    /// [`PapersError::Keep`].
    pub fn open(directory: &Path) -> Result<Self, PapersError> {
        // Another user's file here would be a forged measurement.
        let folder = Folder::create_own(directory, 0o777).map_err(FolderError::into_io);
        Ok(Self {
            folder: folder.map_err(keep("use", directory))?,
        })
    }

    /// Path of the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.folder.path()
    }

    /// The right to measure, or none while another run has it. Does not wait.
    ///
    /// # Errors
    /// [`PapersError::Keep`].
    pub fn lock(&self) -> Result<Option<Lock>, PapersError> {
        let path = self.directory().join("lock");
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let file = self.folder.open_file(Path::new("lock"), flags, 0o666);
        let file = file.map_err(keep("open", &path))?;
        // The kernel drops it with the process, so that a killed run blocks no other.
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(keep("lock", &path)(error)),
        }
    }

    /// The kept result of `part`, of a quick or a full run; `None` if there is no readable one.
    #[must_use]
    pub fn load(&self, part: &str, quick: bool) -> Option<Kept> {
        let name = name(part, quick);
        let mut text = Vec::new();
        // Not there, damaged or another part's: each means that it is measured again.
        let mut file = self.folder.read_file(Path::new(&name)).ok()?;
        file.read_to_end(&mut text).ok()?;
        let kept: Kept = serde_json::from_slice(&text).ok()?;
        (kept.part == part && kept.quick == quick).then_some(kept)
    }

    /// Keeps a result in the place of any before.
    ///
    /// # Errors
    /// [`PapersError::Keep`].
    pub fn save(&self, kept: &Kept) -> Result<(), PapersError> {
        let name = name(&kept.part, kept.quick);
        let failed = || keep("write", &self.directory().join(&name));
        let text = serde_json::to_vec_pretty(kept).map_err(std::io::Error::from);
        let text = text.map_err(failed())?;
        let write = |file: &mut File| file.write_all(&text);
        // Renamed when it is whole: a stop in between leaves the old result.
        let written = self.folder.replace(OsStr::new(&name), 0o644, write);
        written.map_err(failed())
    }
}

/// The directory of this user's results, if the environment says where caches lie.
#[must_use]
fn default_directory() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    let cache = absolute("XDG_CACHE_HOME").or_else(home);
    cache.map(|cache| cache.join("sidecore/papers"))
}

/// Name of the file of a part's result.
fn name(part: &str, quick: bool) -> String {
    let mode = if quick { "quick" } else { "full" };
    format!("{part}.{mode}.json")
}

fn keep(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> PapersError + use<> {
    let path = path.to_owned();
    move |source| PapersError::Keep { what, path, source }
}
