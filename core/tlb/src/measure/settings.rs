//! The machine's settings for huge pages: read, changed when asked to, put back.
//!
//! Why here: no setting may stay changed, in any case. A [`Change`] restores the old value when
//! dropped: at the end, at an error, at a panic. Signals end the run in order (the command turns
//! them into cancellation), so they drop it as well. Only SIGKILL does not.
//! Source: Documentation/admin-guide/mm/{hugetlbpage,transhuge}.rst, proc(5).

use super::TlbError;
use crate::access::Pages;
use std::fs;
use std::path::Path;

/// Settings of transparent huge pages.
pub(crate) const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// Setting for transparent huge pages of 64 KiB.
pub(crate) const MEDIUM: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
/// Setting for transparent huge pages of 2 MiB.
pub(crate) const LARGE: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";

/// A changed setting; put back when dropped.
#[derive(Debug)]
pub(crate) struct Change {
    path: String,
    old: String,
}

impl Change {
    /// Sets `path` to `value`.
    pub(crate) fn make(path: &str, value: &str) -> Result<Self, TlbError> {
        let failed = |source| TlbError::Setting {
            path: path.to_owned(),
            source,
        };
        let text = fs::read_to_string(path).map_err(failed)?;
        // Made before the write: if that fails half-way, the old value is written back.
        let change = Self {
            path: path.to_owned(),
            old: chosen(&text).to_owned(),
        };
        fs::write(path, value).map_err(failed)?;
        Ok(change)
    }

    /// Puts the old value back now.
    pub(crate) fn undo(self) {
        drop(self);
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        // It could be written a moment ago; if that has changed, a drop has no way to report it.
        fs::write(&self.path, &self.old).ok();
    }
}

/// The chosen one of several words, as `[never]`; else all of it.
fn chosen(text: &str) -> &str {
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(text.trim(), |(word, _)| word)
}

/// True if the kernel has this setting.
pub(crate) fn exists(path: &str) -> bool {
    Path::new(path).exists()
}

/// A setting that is a number; 0 where it cannot be read.
pub(crate) fn number(path: &str) -> usize {
    fs::read_to_string(path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// File of the number of reserved pages of this kind.
pub(crate) fn pool(kind: Pages) -> String {
    pool_file(kind, "nr_hugepages")
}

/// Number of huge pages in the pool that are free and not promised.
pub(crate) fn free_in_pool(kind: Pages) -> usize {
    // Reserved by mappings that have not touched them yet: not free for us.
    let promised = number(&pool_file(kind, "resv_hugepages"));
    number(&pool_file(kind, "free_hugepages")).saturating_sub(promised)
}

fn pool_file(kind: Pages, file: &str) -> String {
    let kib = kind.bytes() >> 10;
    format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/{file}")
}

/// Pages of 64 KiB that the kernel made since it started.
pub(crate) fn medium_made() -> usize {
    number("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/anon_fault_alloc")
}

/// Bytes of this process's mapping at `address` that are in huge pages.
pub(crate) fn huge_bytes(address: usize) -> usize {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut inside = false;
    for line in maps.lines() {
        // smaps(5): a line with a range begins a mapping, lines with values follow it.
        if let Some((from, to)) = range(line) {
            inside = (from..to).contains(&address);
        } else if inside && let Some(kib) = line.strip_prefix("AnonHugePages:") {
            let kib = kib.trim().trim_end_matches(" kB").parse::<usize>();
            return kib.unwrap_or(0) << 10;
        }
    }
    0
}

/// The addresses of a mapping's first line.
fn range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    let parse = |text| usize::from_str_radix(text, 16).ok();
    Some((parse(from)?, parse(to)?))
}

/// Memory that could be used without swapping, in bytes.
pub(crate) fn memory_available() -> usize {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_undone_also_by_a_panic() {
        let directory = std::env::temp_dir().join(format!("sidecore-tlb-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("enabled");
        fs::write(&path, "always [never] madvise\n").unwrap();
        let name = path.to_str().unwrap().to_owned();
        let in_panic = name.clone();
        let ended = std::panic::catch_unwind(move || {
            let _change = Change::make(&in_panic, "madvise").unwrap();
            assert_eq!(fs::read_to_string(&in_panic).unwrap(), "madvise");
            panic!("on purpose");
        });
        let after = fs::read_to_string(&name).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        assert!(ended.is_err());
        assert_eq!(after, "never");
        assert!(Change::make(&name, "1").is_err(), "it is gone");
    }

    #[test]
    fn huge_bytes_are_those_of_the_right_mapping() {
        let text = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0";
        assert_eq!(range(text), Some((0x7f00_0000_0000, 0x7f00_0020_0000)));
        assert_eq!(range("AnonHugePages:      2048 kB"), None);
        assert_eq!(huge_bytes(1), 0);
        assert!(memory_available() > 1 << 20);
    }
}
