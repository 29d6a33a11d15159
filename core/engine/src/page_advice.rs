//! Page advice: costs of page sizes measured on a machine, and the choice they lead to.
//!
//! Why here: page size and touching are usually chosen by guess. This module chooses by
//! measurements of the machine, and returns the options that [`sidecore_sys::Region`], the local
//! stores and the pools take. `sidecore tlb --learn` keeps its measurements in a small file; pools
//! that start afterwards have their stores made by it ([`CoreOptions::of_this_machine`]). Must stay
//! true: choosing is pure; a file that is missing, malformed or of another processor changes
//! nothing, and never prevents a start.
//!
//! [`CoreOptions::of_this_machine`]: crate::CoreOptions::of_this_machine
//!
//! ```
//! use sidecore_engine::page_advice::PageAdvice;
//! use sidecore_engine::{Core, CoreOptions};
//!
//! // From `sidecore_tlb::run`; here of a machine that is not known.
//! let learned = PageAdvice::default();
//! let advice = learned.advise(256 << 10);
//! let core = Core::new(CoreOptions {
//!     region: advice.region_options(),
//!     ..CoreOptions::default()
//! })?;
//! assert!(core.store().region().touched());
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```

use serde::{Deserialize, Serialize};
use sidecore_sys::folder::Folder;
use sidecore_sys::{HugePages, RegionOptions, local_socket, machine, region};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Cost of pages of one size, by the amount of memory in use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PageCost {
    /// Size of the pages in bytes.
    pub page_bytes: usize,
    /// True if they must be reserved (`vm.nr_hugepages`).
    pub reserved: bool,
    /// Working set in bytes, ascending, and cycles per access above those of a small one.
    pub cycles: Vec<(usize, f64)>,
}

impl PageCost {
    /// Cycles above those of a small working set, at the next larger one that was measured; the
    /// last beyond the end.
    #[must_use]
    pub fn at(&self, working_set_bytes: usize) -> Option<f64> {
        // The next larger working set that was measured: cost grows with size.
        let larger = self
            .cycles
            .iter()
            .find(|&&(bytes, _)| bytes >= working_set_bytes);
        larger.or(self.cycles.last()).map(|&(_, cycles)| cycles)
    }
}

/// Measured costs of a machine's pages.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PageAdvice {
    /// Costs of pages, small ones first.
    pub pages: Vec<PageCost>,
    /// Time of the first DMA from untouched memory, as a multiple of the next one's.
    pub first_touch_factor: Option<f64>,
}

/// Choice for memory that is about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PageChoice {
    /// Bytes of the pages that are best.
    pub page_bytes: usize,
    /// True if these must be reserved.
    pub reserved: bool,
    /// Cycles that they save per access, against small pages.
    pub saves_cycles: f64,
    /// True if the memory is touched before it is used.
    pub touch: bool,
}

impl PageAdvice {
    /// Choice for memory of which `working_set_bytes` are in use at a time. Larger pages must save
    /// at least a cycle per access; reserved ones a cycle more than those that need no reserving.
    #[must_use]
    pub fn advise(&self, working_set_bytes: usize) -> PageChoice {
        let small = self.pages.iter().min_by_key(|pages| pages.page_bytes);
        let small_cycles = small
            .and_then(|pages| pages.at(working_set_bytes))
            .unwrap_or(0.0);
        let mut best = PageChoice {
            page_bytes: small.map_or(region::page_bytes(), |pages| pages.page_bytes),
            reserved: false,
            saves_cycles: 0.0,
            touch: self
                .first_touch_factor
                .is_none_or(|factor| factor >= TOUCH_FACTOR_MIN),
        };
        let mut larger: Vec<&PageCost> = self.pages.iter().collect();
        // Reserved pages last: they must save more than transparent ones, which need no
        // administrator.
        larger.sort_by_key(|pages| pages.reserved);
        for pages in larger {
            let saves = small_cycles - pages.at(working_set_bytes).unwrap_or(small_cycles);
            // Less than a cycle is within the spread of the measurement.
            if saves >= best.saves_cycles + SAVING_MIN_CYCLES {
                best.page_bytes = pages.page_bytes;
                best.reserved = pages.reserved;
                best.saves_cycles = saves;
            }
        }
        best
    }
}

/// Errors of keeping or reading page advice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageAdviceError {
    /// The file cannot be written, read or removed.
    #[error("{path}: {error}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// No directory for the file: neither `SIDECORE_STATE` nor a home is set.
    #[error("no home directory to keep it in: set {STATE_VARIABLE} to a directory")]
    Place,
    /// The file is not page advice.
    #[error("{path}: {reason}; run `sidecore tlb --learn` again, or `sidecore tlb --forget`")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Fault of the file.
        reason: String,
    },
}

/// Contents of the file: advice, and the processor that it was measured on.
#[derive(Serialize, Deserialize)]
struct Kept {
    cpu: String,
    learned: PageAdvice,
}

impl PageAdvice {
    /// Advice for this machine, if there is any; read once in a process. A file that cannot be used
    /// is said in a warning.
    pub fn of_this_machine() -> Option<&'static Self> {
        // Read once: pools of one process must not differ, and a start must not wait for a disk
        // twice.
        static KNOWN: OnceLock<Option<PageAdvice>> = OnceLock::new();
        let load = || {
            Self::load().unwrap_or_else(|error| {
                tracing::warn!("what was learned of this machine is not used: {error}");
                None
            })
        };
        KNOWN.get_or_init(load).as_ref()
    }

    /// Reads the measurements of this machine: this user's, else root's for all.
    ///
    /// # Errors
    /// [`PageAdviceError::File`], [`PageAdviceError::Malformed`].
    pub fn load() -> Result<Option<Self>, PageAdviceError> {
        // The user's own measurement first, then the machine's.
        for directory in own_directory().into_iter().chain([PathBuf::from(SYSTEM)]) {
            let path = directory.join(FILE);
            match read(&directory) {
                Ok(text) => return Self::parse(&text, &path),
                Err(error) if holds_nothing(error.kind()) => {}
                Err(error) => return Err(PageAdviceError::File { path, error }),
            }
        }
        Ok(None)
    }

    /// Keeps it for pools that start from now on, and returns where.
    ///
    /// # Errors
    /// [`PageAdviceError::File`], [`PageAdviceError::Place`].
    pub fn save(&self) -> Result<PathBuf, PageAdviceError> {
        let directory = own_directory().ok_or(PageAdviceError::Place)?;
        let kept = Kept {
            cpu: machine::processor(),
            learned: self.clone(),
        };
        let path = directory.join(FILE);
        let fail = |error| PageAdviceError::File {
            path: path.clone(),
            error,
        };
        let text = toml::to_string(&kept).map_err(|error| fail(io::Error::other(error)))?;
        let folder = Folder::create_own(&directory, 0o755);
        let folder = folder.map_err(|error| fail(error.into_io()))?;
        // Replaced by a rename: a pool that starts meanwhile reads the old file or the new one.
        let write = |file: &mut File| file.write_all(text.as_bytes());
        folder
            .replace(OsStr::new(FILE), 0o644, write)
            .map_err(fail)?;
        Ok(path)
    }

    /// Removes this user's file; returns its path.
    ///
    /// # Errors
    /// [`PageAdviceError::File`], [`PageAdviceError::Place`].
    pub fn forget() -> Result<Option<PathBuf>, PageAdviceError> {
        let path = own_directory().ok_or(PageAdviceError::Place)?.join(FILE);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(Some(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(PageAdviceError::File { path, error }),
        }
    }

    /// From a file's text; none if it is another processor's.
    fn parse(text: &str, path: &Path) -> Result<Option<Self>, PageAdviceError> {
        let malformed = |reason: String| PageAdviceError::Malformed {
            path: path.to_owned(),
            reason,
        };
        let kept: Kept =
            toml::from_str(text).map_err(|error| malformed(error.message().to_owned()))?;
        for pages in &kept.learned.pages {
            // The file may have been edited: a size is passed on to mmap.
            if !pages.page_bytes.is_power_of_two() {
                return Err(malformed(format!("no page has {} bytes", pages.page_bytes)));
            }
            if pages.cycles.iter().any(|(_, cycles)| !cycles.is_finite()) {
                return Err(malformed("a cost that is no number".to_owned()));
            }
        }
        // A disk may have moved to another machine, or a home directory be shared.
        Ok((kept.cpu == machine::processor()).then_some(kept.learned))
    }
}

/// The text of the file in a directory.
fn read(directory: &Path) -> io::Result<String> {
    let file = Folder::open(directory)?.read_file(Path::new(FILE))?;
    let mut text = String::new();
    // Bounded: the directory is named by an environment variable.
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// A place that does not exist, or that belongs to another user, holds nothing of ours. An example
/// is the home of the user that started us before the user was changed.
fn holds_nothing(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(kind, NotFound | NotADirectory | PermissionDenied)
}

/// Directory of this user's file. Source: the XDG base directory specification, "state".
fn own_directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(directory) = set(STATE_VARIABLE) {
        return Some(directory.into());
    }
    // Root measures for the machine.
    if local_socket::effective_uid() == 0 {
        return Some(SYSTEM.into());
    }
    let state = set("XDG_STATE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(set("HOME")?).join(".local/state"));
    Some(state.or_else(home)?.join("sidecore"))
}

impl PageChoice {
    /// The choice as options of a memory region; touched memory is also locked, to stay present.
    #[must_use]
    pub fn region_options(&self) -> RegionOptions {
        let huge = if self.page_bytes <= region::page_bytes() {
            HugePages::None
        } else if self.reserved {
            HugePages::Reserved
        } else {
            HugePages::Transparent
        };
        RegionOptions {
            huge,
            lock: self.touch,
            touch: self.touch,
        }
    }
}

/// Least saving, in cycles per access, for which larger pages are chosen.
const SAVING_MIN_CYCLES: f64 = 1.0;
/// Least factor for which memory is touched ahead.
const TOUCH_FACTOR_MIN: f64 = 2.0;
/// Environment variable that names the directory of the file, for tests and for users without a
/// home.
const STATE_VARIABLE: &str = "SIDECORE_STATE";
/// Directory of root's advice, which is for all users.
const SYSTEM: &str = "/var/lib/sidecore";
const FILE: &str = "memory.toml";
/// More than any machine's file has.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_sys::Region;

    fn learned(reserved_saves: f64) -> PageAdvice {
        let cost = |page_bytes, reserved, saves: f64| PageCost {
            page_bytes,
            reserved,
            cycles: vec![
                (1 << 18, 0.0),
                (1 << 22, 7.0 - saves.min(7.0)),
                (1 << 26, 40.0 - saves),
            ],
        };
        PageAdvice {
            pages: vec![
                cost(4096, false, 0.0),
                cost(2 << 20, true, reserved_saves),
                cost(2 << 20, false, 30.0),
            ],
            first_touch_factor: Some(30.0),
        }
    }

    #[test]
    fn the_cheapest_pages_that_do_are_advised() {
        let learned = learned(30.5);
        let small = learned.advise(100 << 10);
        assert_eq!((small.page_bytes, small.saves_cycles), (4096, 0.0));
        assert_eq!(small.region_options().huge, HugePages::None);
        let large = learned.advise(1 << 30);
        assert_eq!((large.page_bytes, large.reserved), (2 << 20, false));
        assert!((large.saves_cycles - 30.0).abs() < 1e-9);
        assert_eq!(large.region_options(), RegionOptions::default());
        assert_eq!(
            self::learned(35.0).advise(1 << 30).region_options().huge,
            HugePages::Reserved
        );
    }

    #[test]
    fn memory_is_made_as_advised() {
        let advice = learned(0.0).advise(1 << 30);
        let region = Region::new(4 << 20, advice.region_options()).unwrap();
        assert!(region.touched());
        let indifferent = PageAdvice {
            first_touch_factor: Some(1.1),
            ..PageAdvice::default()
        };
        let region = Region::new(8192, indifferent.advise(8192).region_options()).unwrap();
        assert!(!region.touched());
        assert!(
            PageAdvice::default().advise(1).touch,
            "unknown: as the papers found it"
        );
    }

    #[test]
    fn what_is_kept_comes_back_and_nothing_else_is_believed() {
        let learned = learned(42.0);
        let path = Path::new("memory.toml");
        let text = |cpu: String| {
            let learned = learned.clone();
            toml::to_string(&Kept { cpu, learned }).unwrap()
        };
        let own = PageAdvice::parse(&text(machine::processor()), path).unwrap();
        assert_eq!(own, Some(learned.clone()));
        let foreign = PageAdvice::parse(&text("another".into()), path).unwrap();
        assert_eq!(foreign, None);
        let odd = text(machine::processor()).replace("4096", "4095");
        for text in ["", "cpu = 3", "\u{0}", &odd] {
            let refused = PageAdvice::parse(text, path).unwrap_err().to_string();
            assert!(refused.contains("--forget"), "{refused}");
        }
    }
}
