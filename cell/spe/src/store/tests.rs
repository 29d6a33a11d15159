//! Bounds, masks, views, and mappings below 4 GiB.

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
