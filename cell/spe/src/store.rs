//! Local stores: 256 KiB below 4 GiB, where the program's 32-bit pointers reach them.
//!
//! Layout of one reservation: the header's page, a guard, the store, a guard as large. The same
//! memory is mapped a second time for the host, so that an offset reaches it as well as a program's
//! pointer added to the host's address. That pointer may be its own or one of a program in a slot
//! near by: programs add the address of a variable of their own to the host's address of another's
//! store.
//!
//! The memory is shared without a file, so a context uses no descriptor of the process. `mremap` of
//! nothing doubles a shared mapping.
//!
//! Must stay true: the store is aligned to its size (the gate masks the stack pointer with it);
//! nothing but this module maps or unmaps these addresses.

pub(crate) use crate::switch::STORE_BYTES;
use crate::switch::{HEADER_BEFORE, Header};
use sidecore_bare::width::ToU64;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mask that every local-store address is put through, as the hardware's limit register does.
pub(crate) const STORE_MASK: u64 = 256 * 1024 - 1;

const PAGE: usize = 4096;
/// Rights of the store where nothing of it is executed, and of the host's mappings.
const DATA: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// Slots of three times the store's size: the store in the middle, the header and guards around it.
const SLOT_BYTES: usize = 3 * STORE_BYTES;
/// Slots lie downwards from here. The break of a program that is not position-independent begins
/// anywhere in the first GiB, and its heap grows towards them.
const SLOTS_BELOW: usize = 0xf000_0000;
/// Slots on either side of a store, whose programs' pointers reach it by the host's address.
const NEIGHBOURS: usize = 16;
/// Views that have mappings for neighbours at a time: each takes 66 of the 65,530 mappings that a
/// process may have.
const WIDE_MAX: usize = 128;
static WIDE: AtomicUsize = AtomicUsize::new(0);
const SLOTS: usize = (SLOTS_BELOW - 0x2000_0000) / SLOT_BYTES;
/// The slot that is tried next; those before it were taken when it was set.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// One local store.
#[derive(Debug)]
pub(crate) struct Store {
    base: usize,
    view: OnceLock<View>,
}

/// The host's mapping of a store.
#[derive(Debug)]
struct View {
    at: usize,
    /// Counted in [`WIDE`].
    wide: bool,
}

impl Store {
    /// A zeroed store.
    pub(crate) fn new() -> io::Result<Store> {
        // From here on dropping the store unmaps its parts.
        let store = Store {
            base: reserve()? + STORE_BYTES,
            view: OnceLock::new(),
        };
        map_fixed(store.base, STORE_BYTES, libc::MAP_SHARED)?;
        map_fixed(store.base - HEADER_BEFORE, PAGE, libc::MAP_PRIVATE)?;
        Ok(store)
    }

    /// Address of the store as the program sees it, below 4 GiB.
    pub(crate) fn base(&self) -> u64 {
        self.base.to_u64()
    }

    /// Address of a byte of the store by any local-store address.
    pub(crate) fn at(&self, address: u64) -> u64 {
        self.base() + (address & STORE_MASK)
    }

    /// The page that the gate exchanges with the engine.
    pub(crate) fn header(&self) -> *mut Header {
        (self.base - HEADER_BEFORE) as *mut Header
    }

    /// The host's address of the store: an offset added to it reaches the store, and so does a
    /// pointer of the program. Mapped at the first call.
    pub(crate) fn view(&self) -> io::Result<u64> {
        if let Some(view) = self.view.get() {
            return Ok(view.at.to_u64());
        }
        let bytes = SLOTS_BELOW;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping without access, wherever there is room.
        let view =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if view == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // From here on dropping it unmaps its parts.
        let mut view = View {
            at: view.expose_provenance(),
            wide: false,
        };
        let map = |at| self.map_again(view.at + at);
        map(0).and_then(|()| map(self.base))?;
        // Relaxed: a count.
        view.wide = WIDE.fetch_add(1, Ordering::Relaxed) < WIDE_MAX;
        if view.wide {
            let first = self.base - NEIGHBOURS * SLOT_BYTES;
            let places = (first..SLOTS_BELOW).step_by(SLOT_BYTES);
            let mut others = places.take(2 * NEIGHBOURS + 1);
            others.try_for_each(|at| if at == self.base { Ok(()) } else { map(at) })?;
        } else {
            WIDE.fetch_sub(1, Ordering::Relaxed);
        }
        // The loser of the race uses the winner's.
        Ok(self.view.get_or_init(|| view).at.to_u64())
    }

    /// Maps the store once more, over a part of a reservation of ours.
    fn map_again(&self, address: usize) -> io::Result<()> {
        let [store, place] = [self.base, address].map(|at| at as *mut libc::c_void);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the store stays where it is, for none of its bytes are moved; the new range lies
        // inside a reservation of this module.
        let got = unsafe { libc::mremap(store, 0, STORE_BYTES, flags, place) };
        // SAFETY: the range that was just mapped, with the rights that the store's beginning has.
        if got == libc::MAP_FAILED || unsafe { libc::mprotect(place, STORE_BYTES, DATA) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Writes into the store from its beginning plus `offset`; false where it does not fit.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let fits = offset
            .checked_add(bytes.len())
            .is_some_and(|end| end <= STORE_BYTES);
        if fits {
            let to = (self.base + offset) as *mut u8;
            // SAFETY: inside the store, which is mapped as long as this value lives.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        fits
    }

    /// Word at a local-store address that is a multiple of 4.
    pub(crate) fn word(&self, address: u64) -> u32 {
        let at = self.at(address & !3) as *const u32;
        // SAFETY: aligned and inside the store; the program may write it at any time, so volatile.
        unsafe { at.read_volatile() }
    }

    /// Two bytes at any local-store address but the last.
    pub(crate) fn byte_pair(&self, address: u64) -> u16 {
        let at = self.at(address) as *const [u8; 2];
        // SAFETY: inside the store, by the caller's check.
        u16::from_le_bytes(unsafe { at.read_volatile() })
    }

    /// Sets the word at a local-store address that is a multiple of 4.
    pub(crate) fn set_word(&self, address: u64, value: u32) {
        let at = self.at(address & !3) as *mut u32;
        // SAFETY: as in `word`.
        unsafe { at.write_volatile(value) }
    }

    /// Lets a part of the store be executed, to whole pages.
    pub(crate) fn allow_execution(&self, from: usize, bytes: usize) {
        let first = (self.base + from) & !(PAGE - 1);
        let end = (self.base + from + bytes).next_multiple_of(PAGE);
        let access = DATA | libc::PROT_EXEC;
        // SAFETY: inside the store, by the caller's check; where it fails the program faults.
        unsafe { libc::mprotect(first as *mut libc::c_void, end - first, access) };
    }

    /// Zeroes the store; nothing of it can be executed then.
    pub(crate) fn clear(&self) {
        // SAFETY: the whole store; its header is ours.
        unsafe {
            libc::mprotect(self.base as *mut libc::c_void, STORE_BYTES, DATA);
            (*self.header()).executable = 0;
        }
        // SAFETY: the whole store; no program runs in it (the caller holds the context).
        unsafe { std::ptr::write_bytes(self.base as *mut u8, 0, STORE_BYTES) };
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped by `Store::view`, with this length, and in no other use.
        unsafe { libc::munmap(self.at as *mut libc::c_void, SLOTS_BELOW) };
        if self.wide {
            WIDE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let slot = self.base - STORE_BYTES;
        // SAFETY: the reservation of `new`.
        unsafe { libc::munmap(slot as *mut libc::c_void, SLOT_BYTES) };
        // Relaxed: a hint; it keeps the slots in use near the top.
        NEXT.fetch_min((SLOTS_BELOW - slot) / SLOT_BYTES - 1, Ordering::Relaxed);
    }
}

/// Bytes between the upper end and the place where [`map_low`] tries first.
static LOW_NEXT: AtomicUsize = AtomicUsize::new(0);
/// Distance of the places that [`map_low`] tries.
const LOW_STEP: usize = 64 * 1024;

/// A new private mapping below 4 GiB, as far up as there is room in the slots' part: MAP_32BIT
/// would put it where heaps grow. [`unmap_low`] ends it.
pub(crate) fn map_low(bytes: usize, access: i32) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    map_low_of(bytes, access, flags, -1, 0)
}

/// The same with the flags, file and offset of `mmap`.
pub(crate) fn map_low_of(
    bytes: usize,
    access: i32,
    flags: i32,
    file: i32,
    offset: i64,
) -> io::Result<usize> {
    let flags = flags & !libc::MAP_32BIT | libc::MAP_FIXED_NOREPLACE;
    let room = SLOTS * SLOT_BYTES / LOW_STEP * LOW_STEP;
    let taken = bytes.max(1).checked_next_multiple_of(LOW_STEP);
    let taken = taken.filter(|taken| *taken <= room);
    let taken = taken.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    for _ in 0..room / LOW_STEP {
        // Relaxed: the kernel decides which place is free.
        let before = LOW_NEXT.fetch_add(taken, Ordering::Relaxed) % room;
        if before + taken > room {
            // The rest at the lower end is too short; the next try begins at the upper one.
            continue;
        }
        let address = SLOTS_BELOW - before - taken;
        let place = address as *mut libc::c_void;
        // SAFETY: MAP_FIXED_NOREPLACE replaces nothing.
        let got = unsafe { libc::mmap(place, bytes, access, flags, file, offset) };
        if got == place {
            return Ok(address);
        }
        if got != libc::MAP_FAILED {
            // SAFETY: a kernel without that flag mapped elsewhere; it is in no other use.
            unsafe { libc::munmap(got, bytes) };
        } else if io::Error::last_os_error().raw_os_error() != Some(libc::EEXIST) {
            return Err(io::Error::last_os_error());
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Ends a mapping of [`map_low`]; its place is tried first from now on.
///
/// # Safety
/// It is one, of the same length, and in no use any more.
pub(crate) unsafe fn unmap_low(address: usize, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
    // Relaxed: a hint.
    let end = address + bytes.next_multiple_of(LOW_STEP);
    LOW_NEXT.fetch_min(SLOTS_BELOW - end, Ordering::Relaxed);
}

/// Reserves one free slot; tries each at most once.
fn reserve() -> io::Result<usize> {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    for _ in 0..SLOTS {
        // Relaxed: any order of numbers will do, the kernel says which slot is free.
        let slot = NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS;
        let address = SLOTS_BELOW - (slot + 1) * SLOT_BYTES;
        let place = address as *mut libc::c_void;
        // SAFETY: MAP_FIXED_NOREPLACE replaces nothing.
        let got = unsafe { libc::mmap(place, SLOT_BYTES, libc::PROT_NONE, flags, -1, 0) };
        if got == place {
            return Ok(address);
        }
        if got != libc::MAP_FAILED {
            // SAFETY: a kernel without that flag mapped elsewhere; it is in no other use.
            unsafe { libc::munmap(got, SLOT_BYTES) };
        } else if io::Error::last_os_error().raw_os_error() != Some(libc::EEXIST) {
            return Err(io::Error::last_os_error());
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Maps zeroes, shared or private, over a part of a reservation of ours.
fn map_fixed(address: usize, bytes: usize, kind: i32) -> io::Result<()> {
    let place = address as *mut libc::c_void;
    let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range lies inside a reservation of this module.
    let got = unsafe { libc::mmap(place, bytes, DATA, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_stores_do_not_take_all_mappings_of_the_process() {
        let stores: Vec<_> = (0..WIDE_MAX + 20).map(|_| Store::new().unwrap()).collect();
        let wide = |store: &&Store| store.view.get().is_some_and(|view| view.wide);
        for store in &stores {
            let view = store.view().unwrap();
            // SAFETY: mapped for the host at both places.
            unsafe {
                (view as *mut u32).write(7);
                assert_eq!(((view + store.base()) as *const u32).read(), 7);
            }
        }
        assert!(stores.iter().filter(wide).count() <= WIDE_MAX);
        drop(stores);
        let store = Store::new().unwrap();
        store.view().unwrap();
        assert!(wide(&&store), "those that are gone no longer count");
    }

    #[test]
    fn addresses_are_masked_and_writes_are_bounded() {
        let store = Store::new().unwrap();
        assert!(store.base() > 0 && store.base() + STORE_MASK < 1 << 32);
        assert_eq!(store.base() & STORE_MASK, 0);
        assert_eq!(store.at(STORE_MASK + 1), store.base());
        assert_eq!(store.at(u64::MAX), store.base() + STORE_MASK);
        assert!(store.write(STORE_BYTES - 4, &[1, 2, 3, 4]));
        assert!(!store.write(STORE_BYTES - 3, &[1, 2, 3, 4]));
        assert!(!store.write(STORE_BYTES, &[1]));
        assert!(!store.write(usize::MAX, &[1]));
        assert!(store.write(STORE_BYTES, &[]));
        assert_eq!(store.word(STORE_MASK), 0x0403_0201);
        assert_eq!(store.byte_pair(STORE_MASK - 1), 0x0403);
        // A word's last bits do not count, nor what is above the store's size.
        store.set_word(0x10_0013, 7);
        assert_eq!((store.word(0x10), store.word(0x13)), (7, 7));
        store.clear();
        assert_eq!((store.word(0x10), store.word(STORE_MASK)), (0, 0));
    }

    #[test]
    fn a_new_store_is_zeroed_though_its_place_was_used() {
        let store = Store::new().unwrap();
        store.set_word(0x1234 & !3, 5);
        drop(store);
        let stores: Vec<_> = (0..4).map(|_| Store::new().unwrap()).collect();
        for (index, store) in stores.iter().enumerate() {
            assert!(
                (0..STORE_BYTES as u64)
                    .step_by(4096 + 4)
                    .all(|at| store.word(at) == 0)
            );
            let others = stores[..index].iter().map(Store::base);
            assert!(
                others
                    .into_iter()
                    .all(|other| other.abs_diff(store.base()) >= SLOT_BYTES as u64)
            );
        }
    }

    #[test]
    fn the_header_lies_below_and_is_the_stores_own() {
        let store = Store::new().unwrap();
        let header = store.header();
        assert_eq!(
            Header::store(header),
            store.base()..store.base() + STORE_MASK + 1
        );
        // SAFETY: the store's own page.
        unsafe {
            (*header).op = 5;
            assert_eq!((*store.header()).op, 5);
        }
        assert_eq!(store.word(0), 0);
    }

    #[test]
    fn the_hosts_view_shows_the_same_bytes() {
        let store = Store::new().unwrap();
        let view = store.view().unwrap();
        assert_eq!(store.view().unwrap(), view);
        store.set_word(0x40, 0x1234);
        // SAFETY: the view is mapped as long as the store lives.
        unsafe {
            assert_eq!(((view + 0x40) as *const u32).read(), 0x1234);
            ((view + 0x44) as *mut u32).write(6);
        }
        assert_eq!(store.word(0x44), 6);
    }

    #[test]
    fn maps_below_4_gib_are_placed_apart_and_used_again() {
        let sizes = [1, 4096, 65_536, 65_537, 1 << 20];
        let maps = sizes.map(|bytes| (map_low(bytes, DATA).unwrap(), bytes));
        for (index, (at, bytes)) in maps.iter().enumerate() {
            assert!(at + bytes <= SLOTS_BELOW && at.is_multiple_of(LOW_STEP));
            for (other, length) in &maps[..index] {
                assert!(at + bytes <= *other || other + length <= *at);
            }
            // SAFETY: our own map, of this length.
            unsafe { std::ptr::write_bytes(*at as *mut u8, 1, *bytes) };
        }
        for (at, bytes) in maps {
            // SAFETY: mapped above, and in no use any more.
            unsafe { unmap_low(at, bytes) };
        }
        for bytes in [usize::MAX, 1 << 40, SLOTS_BELOW] {
            let error = map_low(bytes, DATA).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOMEM), "{bytes}");
        }
        let error = map_low_of(4096, DATA, libc::MAP_PRIVATE, -1, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
