//! Memory of every page size that the machine has.
//!
//! Why here: a chase needs to know which page shows which frame, and a reader the real kind of the
//! pages. Must stay true: a missing kind is reported together with the command that provides it.
//! Source: Documentation/admin-guide/mm/{hugetlbpage,transhuge}.rst, proc(5).

use super::settings::{self, Change};
use super::{Config, TlbError};
use crate::access::{Pages, SMALL_BYTES};
use crate::chain::Ground;
use crate::report::Missing;
use sidecore_sys::plain::{values_of, values_of_mut};
use sidecore_sys::{AliasOptions, AliasedMap, Frame, HugePages, Region, RegionOptions};

/// Memory to chase over, in pages of 4 KiB whatever it is made of.
#[derive(Debug)]
pub(crate) struct Memory {
    kind: Pages,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Aliased(AliasedMap),
    Plain(Region),
}

impl Memory {
    /// Makes memory of at least `small_pages` pages of 4 KiB. `Ok(Err(_))` where the machine has
    /// none of that kind as it is set.
    ///
    /// # Errors
    /// [`TlbError`] where even small pages cannot be had.
    pub(crate) fn new(
        kind: Pages,
        small_pages: usize,
        config: &Config,
    ) -> Result<Result<Self, Missing>, TlbError> {
        let store = match kind {
            // Few frames behind many pages: the data stays in the cache, so that only translations
            // miss.
            Pages::SmallAliased => Store::Aliased(AliasedMap::new(AliasOptions {
                frame: Frame::Small,
                frames: FRAMES,
                pages: small_pages,
            })?),
            Pages::SmallPlain => Store::Plain(plain(small_pages, HugePages::None)?),
            Pages::Transparent => match transparent(small_pages)? {
                Ok(region) => Store::Plain(region),
                Err(missing) => return Ok(Err(missing)),
            },
            Pages::Medium => match medium(small_pages, config)? {
                Ok(region) => Store::Plain(region),
                Err(missing) => return Ok(Err(missing)),
            },
            Pages::Reserved | Pages::Giant => match reserved(kind, small_pages, config) {
                Ok(map) => Store::Aliased(map),
                Err(missing) => return Ok(Err(missing)),
            },
        };
        Ok(Ok(Self { kind, store }))
    }

    /// Kind of pages that it is made of.
    #[must_use]
    pub(crate) fn kind(&self) -> Pages {
        self.kind
    }

    /// All of its numbers.
    #[must_use]
    pub(crate) fn values(&self) -> &[u32] {
        match &self.store {
            Store::Aliased(map) => map.values(),
            // A region starts on a page.
            Store::Plain(region) => values_of(region.bytes()).unwrap_or_default(),
        }
    }

    /// Writes one number.
    ///
    /// # Panics
    /// If `index` is past the end.
    #[inline]
    pub(crate) fn set(&mut self, index: usize, value: u32) {
        match &mut self.store {
            Store::Aliased(map) => map.set(index, value),
            Store::Plain(region) => {
                values_of_mut::<u32>(region.bytes_mut()).unwrap_or_default()[index] = value;
            }
        }
    }

    /// Pages of 4 KiB.
    #[must_use]
    pub(crate) fn small_pages(&self) -> usize {
        self.values().len() / SMALL_VALUES
    }

    /// Number of the 4 KiB frame that page `page` shows.
    #[must_use]
    pub(crate) fn frame_of(&self, page: usize) -> usize {
        match &self.store {
            Store::Aliased(map) => {
                let in_frame = map.options().frame.bytes() / SMALL_BYTES;
                map.frame_of(page / in_frame) * in_frame + page % in_frame
            }
            Store::Plain(_) => page,
        }
    }

    /// Pages of 4 KiB that show all frames once, where few frames show in many pages.
    #[must_use]
    pub(crate) fn frames(&self) -> Option<usize> {
        match &self.store {
            Store::Aliased(map) if self.kind == Pages::SmallAliased => Some(map.options().frames),
            _ => None,
        }
    }

    /// Description of the memory for a layout, in blocks of `block_values` numbers.
    #[must_use]
    pub(crate) fn ground(&self, block_values: usize) -> Ground {
        Ground {
            page_values: SMALL_VALUES,
            block_values,
            frames: match &self.store {
                Store::Aliased(map) => {
                    let options = map.options();
                    options.frames * options.frame.bytes() / SMALL_BYTES
                }
                Store::Plain(_) => self.small_pages(),
            },
        }
    }
}

fn plain(small_pages: usize, huge: HugePages) -> Result<Region, TlbError> {
    let options = RegionOptions {
        huge,
        lock: false,
        touch: true,
    };
    Ok(Region::new(small_pages * SMALL_BYTES, options)?)
}

fn transparent(small_pages: usize) -> Result<Result<Region, Missing>, TlbError> {
    let region = plain(small_pages, HugePages::Transparent)?;
    let huge = settings::huge_bytes(region.bytes().as_ptr().addr());
    // A few that memory was too fragmented for do not matter.
    if huge >= region.len() / 10 * 9 {
        return Ok(Ok(region));
    }
    Ok(Err(Missing {
        pages: Pages::Transparent.name(),
        reason: format!(
            "the kernel made {} of {} MiB huge",
            huge >> 20,
            region.len() >> 20
        ),
        command: format!("echo madvise > {}/enabled", settings::THP),
    }))
}

fn medium(small_pages: usize, config: &Config) -> Result<Result<Region, Missing>, TlbError> {
    let missing = |reason: String| Missing {
        pages: Pages::Medium.name(),
        reason,
        command: format!(
            "echo never > {thp}/hugepages-2048kB/enabled; echo madvise > \
             {thp}/hugepages-64kB/enabled (or --reserve)",
            thp = settings::THP
        ),
    };
    if !settings::exists(settings::MEDIUM) {
        return Ok(Err(missing(
            "this kernel has none (from Linux 6.8 on)".into(),
        )));
    }
    let mut changes = Vec::new();
    if config.reserve {
        // The larger size is turned off: the kernel would prefer it.
        for (path, value) in [(settings::MEDIUM, "madvise"), (settings::LARGE, "never")] {
            match Change::make(path, value) {
                Ok(change) => changes.push(change),
                Err(error) => return Ok(Err(missing(error.to_string()))),
            }
        }
    }
    // The kernel counts them for the whole machine; other programs make few at the same time.
    let before = settings::medium_made();
    let region = plain(small_pages, HugePages::Transparent)?;
    let made = settings::medium_made().saturating_sub(before);
    // From here on the pages are there, whatever the settings say.
    drop(changes);
    let wanted = region.len() / Pages::Medium.bytes();
    if made >= wanted / 10 * 9 {
        return Ok(Ok(region));
    }
    Ok(Err(missing(format!(
        "the kernel made {made} of {wanted} such pages"
    ))))
}

fn reserved(kind: Pages, small_pages: usize, config: &Config) -> Result<AliasedMap, Missing> {
    let (frame, frames) = match kind {
        Pages::Giant => (Frame::Huge1G, 1),
        _ => (Frame::Huge2M, RESERVED_FRAMES),
    };
    let pool = settings::pool(kind);
    let missing = |reason: String| Missing {
        pages: kind.name(),
        reason,
        command: format!("echo {frames} > {pool} (or --reserve)"),
    };
    if !settings::exists(&pool) {
        return Err(missing("this machine has none".into()));
    }
    let free = settings::free_in_pool(kind);
    let mut change = None;
    if free < frames {
        if !config.reserve {
            return Err(missing(format!("needs {frames}, {free} are free")));
        }
        // The pool is enlarged by what is missing: other programs keep theirs.
        let now = settings::number(&pool) + frames - free;
        match Change::make(&pool, &now.to_string()) {
            Ok(made) => change = Some(made),
            Err(error) => return Err(missing(error.to_string())),
        }
        let free = settings::free_in_pool(kind);
        if free < frames {
            return Err(missing(format!(
                "needs {frames}, the kernel could only make {free}: memory is too fragmented"
            )));
        }
    }
    let pages = (small_pages * SMALL_BYTES)
        .div_ceil(frame.bytes())
        .max(frames);
    let options = AliasOptions {
        frame,
        frames,
        pages,
    };
    let map = AliasedMap::new(options).map_err(|error| missing(error.to_string()));
    if let Some(change) = change {
        // The pool shrinks when these pages are given back: by then the memory is mapped
        // independently of the pool, and nothing is left behind.
        change.undo();
    }
    map
}

/// Numbers in a page of the smallest size.
pub(crate) const SMALL_VALUES: usize = SMALL_BYTES / size_of::<u32>();
/// Frames that aliased small pages show: more than the nearest cache has ways, few enough that
/// their lines stay in the next one.
const FRAMES: usize = 128;
/// Reserved huge pages of 2 MiB that aliased maps show.
const RESERVED_FRAMES: usize = 4;
