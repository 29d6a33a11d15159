//! Memory of the control blocks: the local store, backed by main memory.

use super::LOCAL_SESSIONS;
use super::hot::{Hot, Path};
use crate::error::NetError;
use crate::memory::{MemoryError, MemorySource, Use};
use sidecore_bare::width::ToUsize;
use sidecore_bare::{Memory, prefetch};
use zerocopy::{FromBytes, IntoBytes};

/// Placement of control blocks: the two configurations of the fifth document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// In the local store alone: at most 1,024 sessions, without prefetching.
    LocalStore,
    /// The first 1,024 in the local store, the others in main memory, prefetched into the cache a
    /// batch at a time.
    #[default]
    MainMemory,
}

/// All control blocks, by session number; `Cold` is the rarely used part.
#[derive(Debug)]
pub(crate) struct Store<Cold> {
    local: Memory,
    main: Option<Memory>,
    paths: Memory,
    cold: Vec<Cold>,
    free: Vec<u32>,
    sessions_max: usize,
}

impl<Cold: Default> Store<Cold> {
    /// A store for up to `sessions_max` sessions (1,024 in the local store alone).
    pub(crate) fn new(
        placement: Placement,
        sessions_max: usize,
        source: &mut dyn MemorySource,
    ) -> Result<Self, NetError> {
        let sessions_max = match placement {
            Placement::LocalStore => sessions_max.min(LOCAL_SESSIONS),
            Placement::MainMemory => sessions_max,
        };
        // The local store always has its 1,024; main memory only those beyond.
        let behind = sessions_max.saturating_sub(LOCAL_SESSIONS);
        let main_bytes = behind.saturating_mul(size_of::<Hot>());
        let main = (behind > 0).then(|| source.provide(main_bytes, Use::Sparse));
        let paths_bytes = sessions_max.max(1).saturating_mul(size_of::<Path>());
        let mut cold = Vec::new();
        // A configured number may exceed the machine's memory.
        let reserved = cold.try_reserve_exact(sessions_max);
        reserved.map_err(|error| MemoryError {
            bytes: sessions_max.saturating_mul(size_of::<Cold>()),
            reason: format!("{error}; lower `sessions_max`"),
        })?;
        Ok(Self {
            local: source.provide(LOCAL_SESSIONS * size_of::<Hot>(), Use::LocalStore)?,
            main: main.transpose()?,
            paths: source.provide(paths_bytes, Use::Sparse)?,
            cold,
            free: Vec::new(),
            sessions_max,
        })
    }

    /// A free number; none when all are taken.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let number = self.cold.len();
        if number == self.sessions_max {
            return None;
        }
        self.cold.push(Cold::default());
        // Fewer than `sessions_max`, of which `Config` allows 2^24.
        let number = number as u32;
        *self.hot_mut(number) = Hot::closed();
        Some(number)
    }

    /// Frees a number; identifiers of its session become invalid.
    pub(crate) fn give(&mut self, number: u32) {
        let hot = self.hot_mut(number);
        // Kept apart from the rest, which starts anew: it tells old identifiers from new ones.
        let generation = hot.generation.wrapping_add(1);
        *hot = Hot::closed();
        hot.generation = generation;
        self.free.push(number);
    }

    /// Upper bound of the numbers that were ever allocated.
    pub(crate) fn known(&self) -> u32 {
        self.cold.len() as u32
    }

    /// Resets it: no number was ever allocated.
    ///
    /// Identifiers of earlier sessions become valid again with their numbers.
    pub(crate) fn forget(&mut self) {
        self.cold.clear();
        self.free.clear();
    }

    /// True if `number` was ever allocated.
    #[inline]
    pub(crate) fn knows(&self, number: u32) -> bool {
        (number.to_usize()) < self.cold.len()
    }

    /// Allocated numbers.
    pub(crate) fn taken(&self) -> usize {
        self.cold.len() - self.free.len()
    }

    /// Prefetches a session's lines.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32) {
        let bytes = self.hot(number).as_bytes();
        prefetch::for_read(bytes, size_of::<Hot>());
        prefetch::for_read(self.path(number).as_bytes(), size_of::<Path>());
        // Only the first line: the rest is rarely needed.
        prefetch::line(std::ptr::from_ref(self.cold(number)).cast());
    }

    #[inline]
    pub(crate) fn hot(&self, number: u32) -> &Hot {
        let (bytes, at) = match &self.main {
            Some(main) if number.to_usize() >= LOCAL_SESSIONS => {
                (main.bytes(), number.to_usize() - LOCAL_SESSIONS)
            }
            _ => (self.local.bytes(), number.to_usize()),
        };
        nth(bytes, at)
    }

    #[inline]
    pub(crate) fn hot_mut(&mut self, number: u32) -> &mut Hot {
        self.session(number).0
    }

    #[inline]
    pub(crate) fn path(&self, number: u32) -> &Path {
        nth(self.paths.bytes(), number.to_usize())
    }

    #[inline]
    pub(crate) fn cold(&self, number: u32) -> &Cold {
        &self.cold[number.to_usize()]
    }

    /// All parts of a session.
    #[inline]
    pub(crate) fn session(&mut self, number: u32) -> (&mut Hot, &mut Path, &mut Cold) {
        let (bytes, at) = match &mut self.main {
            Some(main) if number.to_usize() >= LOCAL_SESSIONS => {
                (main.bytes_mut(), number.to_usize() - LOCAL_SESSIONS)
            }
            _ => (self.local.bytes_mut(), number.to_usize()),
        };
        (
            nth_mut(bytes, at),
            nth_mut(self.paths.bytes_mut(), number.to_usize()),
            &mut self.cold[number.to_usize()],
        )
    }
}

/// The `at`th value in `bytes`, a page-aligned region, so that the cast cannot fail.
#[inline]
fn nth<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable>(bytes: &[u8], at: usize) -> &T {
    let size = size_of::<T>();
    match T::ref_from_bytes(&bytes[at * size..(at + 1) * size]) {
        Ok(value) => value,
        Err(_) => unreachable!("a region is aligned to a page"),
    }
}

/// As [`nth`], mutable.
#[inline]
fn nth_mut<T>(bytes: &mut [u8], at: usize) -> &mut T
where
    T: FromBytes + IntoBytes + zerocopy::KnownLayout,
{
    let size = size_of::<T>();
    match T::mut_from_bytes(&mut bytes[at * size..(at + 1) * size]) {
        Ok(value) => value,
        Err(_) => unreachable!("a region is aligned to a page"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Provides only little memory.
    #[derive(Debug)]
    struct Mean;

    impl MemorySource for Mean {
        fn provide(&mut self, _bytes: usize, _purpose: Use) -> Result<Memory, MemoryError> {
            Memory::zeroed(64).ok_or(MemoryError {
                bytes: 64,
                reason: "none at all".to_owned(),
            })
        }
    }

    #[test]
    fn more_sessions_than_there_is_memory_for_are_refused() {
        // 2^40 bytes in total without another limit, and more than the address space.
        for sessions_max in [usize::MAX / 1024, usize::MAX / 2] {
            let made = Store::<[u64; 32]>::new(Placement::MainMemory, sessions_max, &mut Mean);
            let Err(NetError::Memory(error)) = made else {
                panic!("{sessions_max} sessions");
            };
            assert!(error.to_string().contains("`sessions_max`"), "{error}");
        }
    }
}
