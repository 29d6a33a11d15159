//! Sizes, alignments, order, lists, lines, and what is refused: as the hardware has it.

use super::*;
use crate::switch::address;

#[test]
fn addresses_that_words_were_made_into_are_words() {
    for (ea, wanted) in [
        (0x1234_5678, 0x1234_5678),
        (0xffff_ffff_f000_0080, 0xf000_0080),
        (0xffff_ffff_7000_0080, 0xffff_ffff_7000_0080),
        (0x1_cf74_4900, 0xcf74_4900),
        (0x7f00_cf74_4900, 0x7f00_cf74_4900),
    ] {
        assert_eq!(effective(ea), wanted, "{ea:#x}");
    }
}

const GET: u32 = 0x40;
const GET_FENCED: u32 = 0x42;
const GET_BARRIER: u32 = 0x41;
const PUT: u32 = 0x20;
const PUT_LIST: u32 = 0x24;
const GET_LIST: u32 = 0x44;
const GET_LINE: u32 = 0xd0;
const PUT_LINE: u32 = 0xb4;
const PUT_LINE_ALWAYS: u32 = 0xb0;
const PUT_LINE_QUEUED: u32 = 0xb8;

/// Host memory as transfers see it: at a multiple of 128.
#[repr(align(128))]
struct Memory([u8; 32 * 1024]);

impl Memory {
    fn new() -> Box<Memory> {
        crate::fault::install();
        let mut memory = Box::new(Memory([0; 32 * 1024]));
        for (index, byte) in memory.0.iter_mut().enumerate() {
            *byte = (index % 251) as u8;
        }
        memory
    }

    fn at(&self, offset: u64) -> u64 {
        address(self.0.as_ptr()) + offset
    }
}

fn command(code: u32, lsa: u32, ea: u64, size: u32) -> Command {
    Command {
        lsa,
        ea,
        size,
        tag: 3,
        code,
    }
}

fn bytes(store: &Store, at: u64, count: u64) -> Vec<u8> {
    let pairs = (0..count).map(|offset| store.byte_pair((at + offset) & STORE_MASK));
    pairs.map(|pair| pair.to_le_bytes()[0]).collect()
}

fn list_element(store: &Store, at: u64, size: u32, low: u32, notify: bool) {
    store.set_word(at, size | u32::from(notify) << 31);
    store.set_word(at + 4, low);
}

#[test]
fn transfers_go_both_ways_and_are_counted() {
    let (store, memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    for size in [1, 2, 4, 8, 16, 48, 4096, 16 * 1024] {
        mfc.issue(&store, command(GET, 0x1000, memory.at(0), size))
            .unwrap();
        let wanted = &memory.0[..size as usize];
        assert_eq!(bytes(&store, 0x1000, size.into()), wanted, "{size}");
    }
    store.set_word(0x2000, 0xdead_beef);
    mfc.issue(&store, command(PUT, 0x2000, memory.at(128), 4))
        .unwrap();
    assert_eq!(memory.0[128..132], 0xdead_beef_u32.to_le_bytes());
    assert_eq!(mfc.traffic.commands, 9);
    assert_eq!(mfc.traffic.put_bytes, 4);
    assert_eq!(
        mfc.traffic.got_bytes,
        1 + 2 + 4 + 8 + 16 + 48 + 4096 + 16 * 1024
    );
    // A transfer of nothing is one.
    mfc.issue(&store, command(GET, 0, memory.at(0), 0)).unwrap();
    assert_eq!((mfc.busy(), mfc.free()), (0, QUEUE));
}

#[test]
fn a_transfer_wraps_at_the_stores_end() {
    let (store, memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    let last = (STORE_BYTES - 16) as u32;
    mfc.issue(&store, command(GET, last, memory.at(0), 48))
        .unwrap();
    assert_eq!(bytes(&store, last.into(), 15), memory.0[..15]);
    assert_eq!(bytes(&store, 0, 32), memory.0[16..48]);
    // Above the store's size, addresses are masked.
    mfc.issue(&store, command(GET, last + 16, memory.at(64), 16))
        .unwrap();
    assert_eq!(bytes(&store, 0, 16), memory.0[64..80]);
}

#[test]
fn sizes_and_places_that_no_transfer_has_are_refused() {
    let (store, memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    for size in [3, 5, 6, 7, 9, 12, 17, 24, 16 * 1024 + 16, 0x8000] {
        let refused = mfc.issue(&store, command(GET, 0, memory.at(0), size));
        assert_eq!(refused, Err(DMA_ALIGNMENT), "{size}");
    }
    for (lsa, offset, size) in [
        (1, 0, 1),  // another place in its quadword
        (2, 2, 4),  // no multiple of its size
        (8, 16, 8), // another place
        (4, 0, 16), // quadwords at quadwords alone
        (0, 8, 16),
        (16, 8, 32),
    ] {
        let refused = mfc.issue(&store, command(PUT, lsa, memory.at(offset), size));
        assert_eq!(refused, Err(DMA_ALIGNMENT), "{lsa} {offset} {size}");
    }
    // The same place in two quadwords is right for a small one.
    mfc.issue(&store, command(GET, 19, memory.at(35), 1))
        .unwrap();
    assert_eq!(bytes(&store, 19, 1), [35]);
    for code in [0, 0x10, 0x43, 0x60, 0xb5, 0xff, 0x1_ffff] {
        let refused = mfc.issue(&store, command(code, 0, memory.at(0), 16));
        assert_eq!(refused, Err(INVALID_DMA), "{code:#x}");
    }
    for tag in [32, 33, u32::MAX] {
        let other = Command {
            tag,
            ..command(GET, 0, memory.at(0), 16)
        };
        assert_eq!(mfc.issue(&store, other), Err(INVALID_DMA), "{tag}");
    }
    assert_eq!(mfc.busy(), 0);
}

#[test]
fn memory_that_is_not_there_is_a_storage_fault() {
    let (store, _memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    for ea in [0, 0x1000, 1 << 47, !0xffff_u64] {
        for code in [GET, PUT] {
            let refused = mfc.issue(&store, command(code, 0, ea, 128));
            assert_eq!(refused, Err(DMA_STORAGE), "{code:#x} {ea:#x}");
        }
        for code in [GET_LINE, PUT_LINE_ALWAYS] {
            let refused = mfc.issue(&store, command(code, 0, ea, 128));
            assert_eq!(refused, Err(DMA_STORAGE), "{code:#x} {ea:#x}");
        }
    }
    // Another program's command is served all the same.
    assert!(proxy(&store, command(GET, 0, 0, 16), false).is_err());
}

#[test]
fn lists_are_gathered_and_scattered_in_both_layouts() {
    let (store, memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    let high = memory.at(0) & !0xffff_ffff;
    let low = |offset: u64| low(memory.at(offset));
    list_element(&store, 0x100, 32, low(0), false);
    list_element(&store, 0x108, 4, low(132), false);
    // The SDK's bit fields: the size above, notify in bit 0.
    store.set_word(0x110, 16 << 16);
    store.set_word(0x114, low(256));
    mfc.issue(&store, command(GET_LIST, 0x1000, high | 0x100, 24))
        .unwrap();
    assert_eq!(bytes(&store, 0x1000, 32), memory.0[..32]);
    // The second keeps its place in the quadword, the third begins with the next one.
    assert_eq!(bytes(&store, 0x1024, 4), memory.0[132..136]);
    assert_eq!(bytes(&store, 0x1030, 16), memory.0[256..272]);
    assert_eq!(mfc.traffic.got_bytes, 52);
    mfc.issue(&store, command(PUT_LIST, 0x1000, high | 0x100, 8))
        .unwrap();
    assert_eq!(mfc.traffic.put_bytes, 32);
    // A list of nothing does nothing; one off a multiple of 8, or too long, is refused.
    mfc.issue(&store, command(GET_LIST, 0x1000, high | 0x100, 0))
        .unwrap();
    for (at, size) in [(0x104, 8), (0x100, 12), (0x100, 16 * 1024 + 8)] {
        let refused = mfc.issue(&store, command(GET_LIST, 0, high | at, size));
        assert_eq!(refused, Err(DMA_ALIGNMENT), "{at:#x} {size}");
    }
    // An element that no transfer may be ends the list.
    list_element(&store, 0x108, 5, low(0), false);
    let refused = mfc.issue(&store, command(GET_LIST, 0x1000, high | 0x100, 24));
    assert_eq!(refused, Err(DMA_ALIGNMENT));
}

#[test]
fn a_list_that_stalls_holds_up_its_own_tag_alone() {
    let (store, memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    let high = memory.at(0) & !0xffff_ffff;
    list_element(&store, 0x100, 16, low(memory.at(0)), true);
    list_element(&store, 0x108, 16, low(memory.at(64)), false);
    mfc.issue(&store, command(GET_LIST, 0x1000, high | 0x100, 16))
        .unwrap();
    assert_eq!(
        (mfc.stall_mask, mfc.busy(), mfc.free()),
        (1 << 3, 1 << 3, QUEUE - 1)
    );
    // A command without an order goes ahead, one with a fence or a barrier waits.
    mfc.issue(&store, command(GET, 0x2000, memory.at(16), 16))
        .unwrap();
    assert_eq!(bytes(&store, 0x2000, 16), memory.0[16..32]);
    mfc.issue(&store, command(GET_FENCED, 0x3000, memory.at(32), 16))
        .unwrap();
    mfc.issue(&store, command(GET_BARRIER, 0x3010, memory.at(32), 16))
        .unwrap();
    // Behind a barrier nothing of the tag goes ahead.
    mfc.issue(&store, command(GET, 0x3020, memory.at(32), 16))
        .unwrap();
    assert_eq!(bytes(&store, 0x3000, 48), [0; 48]);
    assert_eq!(mfc.free(), QUEUE - 4);
    // Of another tag it goes ahead.
    let other = Command {
        tag: 4,
        ..command(GET_FENCED, 0x4000, memory.at(32), 16)
    };
    mfc.issue(&store, other).unwrap();
    assert_eq!(bytes(&store, 0x4000, 16), memory.0[32..48]);
    // An acknowledgment of another tag changes nothing.
    mfc.resume(&store, 9).unwrap();
    assert_eq!(mfc.busy(), 1 << 3);
    mfc.resume(&store, 3).unwrap();
    assert_eq!((mfc.busy(), mfc.free()), (0, QUEUE));
    assert_eq!(bytes(&store, 0x1010, 16), memory.0[64..80]);
    assert_eq!(bytes(&store, 0x3000, 16), memory.0[32..48]);
    assert_eq!(bytes(&store, 0x3010, 16), memory.0[32..48]);
    assert_eq!(bytes(&store, 0x3020, 16), memory.0[32..48]);
}

/// `mfc_barrier` orders what is behind it after a list of another tag, and only the list's end
/// lets it go.
#[test]
fn the_barrier_command_orders_all_tags() {
    let (store, memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    let high = memory.at(0) & !0xffff_ffff;
    list_element(&store, 0x100, 16, low(memory.at(0)), true);
    list_element(&store, 0x108, 16, low(memory.at(16)), true);
    mfc.issue(&store, command(PUT_LIST, 0x1000, high | 0x100, 16))
        .unwrap();
    let of_tag = |tag, one: Command| Command { tag, ..one };
    // Before the barrier another tag's commands go ahead.
    store.set_word(0x2000, 0xaaaa_aaaa);
    let put = |offset| of_tag(5, command(PUT, 0x2000, memory.at(offset), 4));
    mfc.issue(&store, put(512)).unwrap();
    mfc.issue(&store, of_tag(5, command(0xc0, 0, 0, 0)))
        .unwrap();
    let flag = memory.0[640..644].to_vec();
    mfc.issue(&store, put(640)).unwrap();
    // A second one, and a line's put that is queued, are behind the first.
    mfc.issue(&store, of_tag(6, command(0xc0, 0, 0, 0)))
        .unwrap();
    let line = command(PUT_LINE_QUEUED, 0x4000, memory.at(1024), 128);
    mfc.issue(&store, of_tag(7, line)).unwrap();
    assert_eq!(memory.0[512..516], [0xaa; 4]);
    assert_eq!((&memory.0[640..644], mfc.free()), (&flag[..], QUEUE - 5));
    assert_eq!(mfc.busy(), 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7);
    // The list stalls once more: the flag is not to be seen before its end.
    mfc.resume(&store, 3).unwrap();
    assert_eq!((&memory.0[640..644], mfc.free()), (&flag[..], QUEUE - 5));
    mfc.resume(&store, 3).unwrap();
    assert_eq!(memory.0[640..644], [0xaa; 4]);
    assert_eq!(memory.0[1024..1152], [0; 128]);
    assert_eq!((mfc.busy(), mfc.free()), (0, QUEUE));
}

#[test]
fn a_notice_behind_the_last_element_is_waited_for_too() {
    let (store, memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    let high = memory.at(0) & !0xffff_ffff;
    list_element(&store, 0x100, 16, low(memory.at(0)), true);
    mfc.issue(&store, command(GET_LIST, 0x1000, high | 0x100, 8))
        .unwrap();
    assert_eq!(bytes(&store, 0x1000, 16), memory.0[..16]);
    assert_eq!(mfc.busy(), 1 << 3);
    mfc.resume(&store, 3).unwrap();
    assert_eq!(mfc.busy(), 0);
}

#[test]
fn the_queue_has_sixteen_places() {
    let (store, memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    let high = memory.at(0) & !0xffff_ffff;
    list_element(&store, 0x100, 16, low(memory.at(0)), true);
    mfc.issue(&store, command(GET_LIST, 0x1000, high | 0x100, 8))
        .unwrap();
    for waiting in 1..QUEUE {
        assert_eq!(mfc.free(), QUEUE - waiting);
        mfc.issue(&store, command(GET_FENCED, 0x2000, memory.at(0), 16))
            .unwrap();
    }
    assert_eq!(mfc.free(), 0);
    // More than that is the caller's mistake, and no underflow.
    mfc.issue(&store, command(GET_FENCED, 0x2000, memory.at(0), 16))
        .unwrap();
    assert_eq!(mfc.free(), 0);
    mfc.resume(&store, 3).unwrap();
    assert_eq!(mfc.free(), QUEUE);
}

#[test]
fn lines_are_put_by_their_reservation() {
    let (store, memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    let line = memory.at(0);
    mfc.issue(&store, command(GET_LINE, 0x1000, line, 0))
        .unwrap();
    assert_eq!(mfc.atomic_status.take(), Some(4));
    assert_eq!(bytes(&store, 0x1000, 128), memory.0[..128]);
    store.set_word(0x1000, 7);
    mfc.issue(&store, command(PUT_LINE, 0x1000, line, 0))
        .unwrap();
    assert_eq!(mfc.atomic_status.take(), Some(0));
    assert_eq!(memory.0[..4], 7_u32.to_le_bytes());
    // The reservation went with it.
    mfc.issue(&store, command(PUT_LINE, 0x1000, line, 0))
        .unwrap();
    assert_eq!(mfc.atomic_status.take(), Some(1));
    // Another's unconditional put takes one away.
    mfc.issue(&store, command(GET_LINE, 0x1000, line, 0))
        .unwrap();
    let mut other = Mfc::default();
    other
        .issue(&store, command(PUT_LINE_ALWAYS, 0x1000, line, 0))
        .unwrap();
    assert_eq!(other.atomic_status.take(), Some(2));
    mfc.issue(&store, command(PUT_LINE, 0x1000, line, 0))
        .unwrap();
    assert_eq!(mfc.atomic_status.take(), Some(1));
    // The queued form says nothing in the status channel.
    other
        .issue(&store, command(PUT_LINE_QUEUED, 0x1000, line, 0))
        .unwrap();
    assert_eq!(other.atomic_status, None);
    for (lsa, offset) in [(64, 0), (0, 64)] {
        let refused = mfc.issue(&store, command(GET_LINE, lsa, line + offset, 0));
        assert_eq!(refused, Err(DMA_ALIGNMENT));
    }
    assert_eq!(mfc.traffic.got_bytes % LINE_BYTES, 0);
}

#[test]
fn barriers_and_hints_are_accepted_and_do_nothing() {
    let (store, memory) = (Store::new().unwrap(), Memory::new());
    let mut mfc = Mfc::default();
    for code in [0xc0, 0xc8, 0xcc, 0x80, 0x81, 0x89, 0x8d, 0x8f] {
        mfc.issue(&store, command(code, 0, memory.at(1), 3))
            .unwrap();
    }
    assert_eq!(
        (mfc.busy(), mfc.traffic.got_bytes, mfc.traffic.put_bytes),
        (0, 0, 0)
    );
}
