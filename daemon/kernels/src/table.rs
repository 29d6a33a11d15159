//! The form of a request for many items: a table of rows in an input, a result for each in an
//! output.
//!
//! Why here: a request costs some 150 ns, a small item less, so one request carries many items.
//! Must stay true: a row is copied before it is read; every offset and length of it is checked
//! against its range. Rows are done in their order, so a table whose items overlap in the output
//! has one result.

use sidecore_bare::width::ToU64;
use sidecore_daemon::served::Memory;
use sidecore_engine::mfc::Mfc;
use sidecore_engine::{Arena, KernelError};
use sidecore_sys::SharedSlice;

/// The longest item of a codec or a cipher, and the most room that one may fill: 1 MiB. Longer data
/// is cut into items.
pub const ITEM_BYTES_MAX: usize = 1 << 20;

/// The most bytes that the items of one request of a codec or a cipher may take and fill together;
/// each counts 64 at least. Digests take as many, or all of a longer input once.
pub const REQUEST_BYTES_MAX: usize = 16 << 20;

/// Outcome of an item of a codec or a cipher: word 1 of its result; word 0 is the bytes put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum ItemStatus {
    /// Done.
    Done = 0,
    /// Damaged, or not authentic. Nothing was put.
    Damaged = 1,
    /// The room does not suffice. Nothing was put.
    NoRoom = 2,
    /// Its row points outside the ranges, or its item is too long. Nothing was put.
    BadRow = 3,
}

impl ItemStatus {
    /// The status of this number, as results hold it.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        let all = [Self::Done, Self::Damaged, Self::NoRoom, Self::BadRow];
        all.into_iter().find(|status| *status as u64 == number)
    }
}

/// The end of one item that was not done; or of the whole request.
#[derive(Debug)]
pub(crate) enum Stop {
    Item(ItemStatus),
    Request(KernelError),
}

impl From<KernelError> for Stop {
    fn from(error: KernelError) -> Self {
        Self::Request(error)
    }
}

/// Called between pieces of work of some 100 us.
///
/// # Errors
/// An error where the answer is not needed any more.
#[inline]
pub(crate) fn go_on(memory: &Memory<'_>) -> Result<(), KernelError> {
    if memory.is_abandoned() {
        return Err(KernelError::failed("abandoned"));
    }
    Ok(())
}

/// Rows of a request, and the places of their results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table<'m> {
    /// `count` rows.
    rows: SharedSlice<'m>,
    /// As many results.
    results: SharedSlice<'m>,
    count: usize,
}

impl<'m> Table<'m> {
    /// The table of `count` rows of `row_words` words, from byte `from` of `rows` on, with results
    /// of `result_bytes` each.
    ///
    /// # Errors
    /// An error where one of the two is too short.
    pub(crate) fn new(
        name: &str,
        count: u64,
        (rows, from, row_words): (SharedSlice<'m>, usize, usize),
        (results, result_bytes): (SharedSlice<'m>, usize),
    ) -> Result<Self, KernelError> {
        let fit = || {
            let count = usize::try_from(count).ok()?;
            // `count` is a word of the request: each product may overflow.
            let end = count.checked_mul(row_words * 8)?.checked_add(from)?;
            let rows = rows.range(from..end)?;
            let results = results.range(0..count.checked_mul(result_bytes)?)?;
            Some(Self {
                rows,
                results,
                count,
            })
        };
        fit().ok_or_else(|| {
            KernelError::failed(format!(
                "{name}: {count} items, a table of {}, results of {} bytes",
                rows.len(),
                results.len()
            ))
        })
    }

    /// Gives each row to `work`, which writes its result, and puts the results.
    ///
    /// # Errors
    /// Those of `work`; the local store's.
    pub(crate) fn each<'c, const ROW: usize, const RESULT: usize>(
        self,
        store: &'c Arena<'c>,
        mfc: &'c Mfc<'c>,
        mut work: impl FnMut(&[u64; ROW], &mut [u8; RESULT]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError>
    where
        'm: 'c,
    {
        let mut rows = store.alloc::<u64>(ROWS_AT_ONCE * ROW)?;
        let mut results = store.alloc::<u8>(ROWS_AT_ONCE * RESULT)?;
        let mut done = 0;
        while done < self.count {
            let next = self.count.min(done + ROWS_AT_ONCE);
            let part = self.rows.range(done * ROW * 8..next * ROW * 8);
            let target = self.results.range(done * RESULT..next * RESULT);
            let (Some(part), Some(target)) = (part, target) else {
                unreachable!("both are as long as `new` found them");
            };
            // The local store has these rows: a client that changes its own changes nothing here.
            rows = mfc.get_large(rows, part)?.wait();
            results.set_len((next - done) * RESULT);
            let (places, _) = results.as_chunks_mut::<RESULT>();
            for (row, result) in rows.as_chunks::<ROW>().0.iter().zip(places) {
                work(row, result)?;
            }
            // Behind the items of the same part: a result tells that its output is there.
            results = mfc.put_large(results, target)?.wait();
            done = next;
        }
        Ok(())
    }
}

/// Bytes of the local store that a table takes.
pub(crate) const fn store_bytes(row_words: usize, result_bytes: usize) -> usize {
    ROWS_AT_ONCE * (row_words * 8 + result_bytes)
}

/// The result of an item of a codec or a cipher.
fn item_result(bytes: usize, status: ItemStatus) -> [u8; 16] {
    let mut result = [0; 16];
    result[..8].copy_from_slice(&bytes.to_u64().to_le_bytes());
    result[8..].copy_from_slice(&(status as u64).to_le_bytes());
    result
}

/// The result of an item of which `done` bytes were put. One that was refused is a failure.
///
/// # Errors
/// The end of the whole request.
pub(crate) fn settled(
    done: Result<usize, Stop>,
    failures: &mut u64,
) -> Result<[u8; 16], KernelError> {
    match done {
        Ok(bytes) => Ok(item_result(bytes, ItemStatus::Done)),
        Err(Stop::Request(error)) => Err(error),
        Err(Stop::Item(status)) => {
            *failures += 1;
            Ok(item_result(0, status))
        }
    }
}

/// `bytes` bytes at `offset` of a range, as a row names them.
pub(crate) fn part(range: SharedSlice<'_>, offset: u64, bytes: u64) -> Option<SharedSlice<'_>> {
    let start = usize::try_from(offset).ok()?;
    // A sum that wraps would name a range before `offset`.
    let end = start.checked_add(usize::try_from(bytes).ok()?)?;
    range.range(start..end)
}

/// The bytes that one request may still take and fill: its work is bounded, not only each item's.
#[derive(Debug)]
pub(crate) struct Budget {
    name: &'static str,
    limit: usize,
    used: usize,
}

impl Budget {
    /// `limit` bytes for a request to the kernel of that name.
    pub(crate) fn new(name: &'static str, limit: usize) -> Self {
        Self {
            name,
            limit,
            used: 0,
        }
    }

    /// Counts bytes. Called before their work: rows may name the same bytes again and again, and a
    /// failure costs as much as a result.
    ///
    /// # Errors
    /// Beyond the limit.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), KernelError> {
        // Saturated, a wild length is over the limit like any other.
        self.used = self.used.saturating_add(bytes);
        if self.used > self.limit {
            return Err(KernelError::failed(format!(
                "{}: over {} bytes in one request",
                self.name, self.limit
            )));
        }
        Ok(())
    }

    /// The same for an item of a codec or a cipher: at least [`ROW_COST`].
    ///
    /// # Errors
    /// As [`Budget::take`].
    #[inline]
    pub(crate) fn take_item(&mut self, bytes: usize) -> Result<(), KernelError> {
        self.take(bytes.max(ROW_COST))
    }
}

/// The bytes that an item of a codec or a cipher counts at least: an empty one costs some
/// microseconds, too.
pub(crate) const ROW_COST: usize = 64;

/// Rows that are got, and results that are put, in one go.
const ROWS_AT_ONCE: usize = 256;
