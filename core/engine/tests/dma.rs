//! DMA against plain copies: every size and alignment, lists, order, modes. Random cases print
//! their seed.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use proptest::prelude::*;
use sidecore_engine::mfc::{IN_FLIGHT_MAX, ListElement, POISON, QUEUE_COMMANDS};
use sidecore_engine::{
    Area, Core, CoreCounters, CoreOptions, Ctx, DmaError, DmaMode, In, Kernel, KernelError, Out,
    StoreError, Tag, TagMask,
};

const MODES: [DmaMode; 3] = [DmaMode::Copy, DmaMode::Borrow, DmaMode::Checked];

/// A kernel whose body is an argument.
struct Call;

type Body = for<'c> fn(&mut Ctx<'c, Call>, Lent<'c>) -> Result<(), KernelError>;

struct Lent<'j> {
    source: In<'j, u8>,
    target: Out<'j, u8>,
    list: &'j [ListElement],
}

impl Kernel for Call {
    type Args<'j> = (Lent<'j>, Body);
    type Out = ();
    type State = ();

    fn run<'c, 'j: 'c>(
        cx: &mut Ctx<'c, Self>,
        (lent, body): Self::Args<'j>,
    ) -> Result<(), KernelError> {
        body(cx, lent)
    }
}

/// Main memory that starts on a line.
#[repr(align(128))]
struct Lines([u8; 128 << 10]);

fn lines(fill: impl Fn(usize) -> u8) -> Box<Lines> {
    let mut lines = Box::new(Lines([0; 128 << 10]));
    lines
        .0
        .iter_mut()
        .enumerate()
        .for_each(|(index, byte)| *byte = fill(index));
    lines
}

fn pattern(index: usize) -> u8 {
    (index % 251) as u8 ^ (index >> 8) as u8
}

fn run(
    mode: DmaMode,
    source: &[u8],
    target: &mut [u8],
    list: &[ListElement],
    body: Body,
) -> Result<CoreCounters, KernelError> {
    let mut core = Core::new(CoreOptions {
        mode,
        ..CoreOptions::default()
    })
    .unwrap();
    let lent = Lent {
        source: In::new(source),
        target: Out::new(target),
        list,
    };
    core.run::<Call>((lent, body))?;
    Ok(core.counters())
}

fn mode() -> impl Strategy<Value = DmaMode> {
    prop::sample::select(&MODES[..])
}

/// Sizes around the limits of every rule.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        0usize..40,
        (0usize..1030).prop_map(|quadwords| quadwords * 16),
        16_300usize..16_500,
    ]
}

fn element() -> impl Strategy<Value = ListElement> {
    let small = (0u32..4).prop_map(|shift| 1 << shift);
    let bytes = prop_oneof![small, (1u32..128).prop_map(|quadwords| quadwords * 16)];
    (bytes, 0u32..3800).prop_map(|(bytes, place)| ListElement {
        offset: place * 16 + if bytes < 16 { (place * bytes) % 16 } else { 0 },
        bytes,
    })
}

proptest! {
    #[test]
    fn large_transfers_are_plain_copies(
        mode in mode(),
        from in 0usize..70,
        to in 0usize..70,
        len in prop_oneof![size(), 0usize..120_000],
    ) {
        let source = lines(pattern);
        let mut target = lines(|_| 1);
        let counters = run(
            mode,
            &source.0[from..from + len],
            &mut target.0[to..to + len],
            &[],
            |cx, lent| {
                let buffer = cx.store.alloc(lent.source.len())?;
                let buffer = cx.mfc.get_large(buffer, lent.source)?.wait();
                assert_eq!(&buffer[..], lent.source.as_slice());
                cx.mfc.put_large(buffer, lent.target)?.wait();
                Ok(())
            },
        ).unwrap();
        prop_assert_eq!((counters.dma.bytes_in, counters.dma.bytes_out), (len as u64, len as u64));
        prop_assert_eq!(&target.0[to..to + len], &source.0[from..from + len]);
        prop_assert!(target.0[..to].iter().chain(&target.0[to + len..]).all(|&byte| byte == 1));
    }

    #[test]
    fn single_transfers_keep_the_rules(
        mode in mode(),
        from in 0usize..70,
        to in 0usize..70,
        len in size(),
    ) {
        let source = lines(pattern);
        let mut target = lines(|_| 1);
        // Buffers start on a line, so the rule on the low four bits asks as much of main memory.
        let natural = |place: usize| match len {
            1 | 2 | 4 | 8 => place.is_multiple_of(16),
            _ => len != 0 && len.is_multiple_of(16) && len <= 16384 && place.is_multiple_of(16),
        };
        let got = run(mode, &source.0[from..from + len], &mut target.0[..], &[], |cx, lent| {
            let buffer = cx.store.alloc(lent.source.len())?;
            let buffer = cx.mfc.get(buffer, lent.source)?.wait();
            assert_eq!(&buffer[..], lent.source.as_slice());
            Ok(())
        });
        prop_assert_eq!(got.is_ok(), natural(from), "{:?}", got);
        let put = run(mode, &source.0[..], &mut target.0[to..to + len], &[], |cx, lent| {
            let mut buffer = cx.store.alloc(lent.target.len())?;
            buffer.fill(9);
            cx.mfc.put(buffer, lent.target)?.wait();
            Ok(())
        });
        prop_assert_eq!(put.is_ok(), natural(to), "{:?}", put);
        let filled = if put.is_ok() { 9 } else { 1 };
        prop_assert!(target.0[to..to + len].iter().all(|&byte| byte == filled));
        prop_assert!(target.0[..to].iter().chain(&target.0[to + len..]).all(|&byte| byte == 1));
    }

    #[test]
    fn lists_gather_and_scatter(
        mode in mode(),
        list in prop::collection::vec(element(), 1..40),
    ) {
        let source = lines(pattern);
        let mut target = lines(|_| 1);
        run(mode, &source.0, &mut target.0, &list, |cx, lent| {
            let buffer = cx.store.alloc(100 << 10)?;
            let tag = Tag::new(31).unwrap();
            let buffer = cx.mfc.tag(tag).get_list(buffer, lent.list, lent.source)?.wait();
            cx.mfc.tag(tag).put_list(buffer, lent.list, lent.target)?.wait();
            Ok(())
        }).unwrap();
        let mut expected = lines(|_| 1);
        for element in &list {
            let range = element.offset as usize..(element.offset + element.bytes) as usize;
            expected.0[range.clone()].copy_from_slice(&source.0[range]);
        }
        prop_assert!(target.0 == expected.0);
    }
}

#[test]
fn a_list_is_laid_out_on_quadwords() {
    let source = lines(pattern);
    let element = |offset, bytes| ListElement { offset, bytes };
    let list = [element(160, 32), element(36, 4), element(0, 16)];
    for mode in MODES {
        run(mode, &source.0, &mut [], &list, |cx, lent| {
            let all = lent.source.as_slice();
            let buffer = cx.store.alloc(64)?;
            let buffer = cx
                .mfc
                .tag(Tag::default())
                .get_list(buffer, lent.list, lent.source)?
                .wait();
            assert_eq!(buffer[..32], all[160..192]);
            assert_eq!(buffer[36..40], all[36..40]);
            assert_eq!(buffer[48..64], all[..16]);
            let short = cx.store.alloc(63)?;
            let refused = cx
                .mfc
                .tag(Tag::default())
                .get_list(short, lent.list, lent.source);
            let wanted = DmaError::BufferTooShort {
                bytes: 64,
                buffer_bytes: 63,
            };
            assert_eq!(refused.unwrap_err(), wanted);
            Ok(())
        })
        .unwrap();
    }
}

/// Puts 1s and then 2s to the same place in one group, the second one free, fenced, or after a
/// barrier.
fn two_puts(mode: DmaMode, fenced: bool, barrier: bool) -> u8 {
    static FENCED: Body = |cx, lent| two_puts_body(cx, lent, true, false);
    static BARRIER: Body = |cx, lent| two_puts_body(cx, lent, false, true);
    static FREE: Body = |cx, lent| two_puts_body(cx, lent, false, false);
    let body = match (fenced, barrier) {
        (true, _) => FENCED,
        (_, true) => BARRIER,
        _ => FREE,
    };
    let mut target = lines(|_| 0);
    run(mode, &[], &mut target.0[..64], &[], body).unwrap();
    assert!(target.0[..64].iter().all(|&byte| byte == target.0[0]));
    target.0[0]
}

fn two_puts_body<'c>(
    cx: &mut Ctx<'c, Call>,
    lent: Lent<'c>,
    fenced: bool,
    barrier: bool,
) -> Result<(), KernelError> {
    let area = Area::new(lent.target);
    let tag = Tag::new(5).unwrap();
    let mut first = cx.store.alloc(64)?;
    first.fill(1);
    let mut second = cx.store.alloc(64)?;
    second.fill(2);
    let issue = cx.mfc.tag(tag);
    let issue = if barrier { issue.barrier() } else { issue };
    let first = issue.put(first, area)?;
    let issue = cx.mfc.tag(tag);
    let issue = if fenced { issue.fence() } else { issue };
    let second = issue.put(second, area)?;
    cx.mfc.wait_all(tag.mask());
    first.wait();
    second.wait();
    Ok(())
}

#[test]
fn a_missing_fence_shows_only_when_checked() {
    for mode in MODES {
        assert_eq!(two_puts(mode, true, false), 2, "{mode:?}, fenced");
        assert_eq!(two_puts(mode, false, true), 2, "{mode:?}, after a barrier");
    }
    assert_eq!(two_puts(DmaMode::Copy, false, false), 2, "luck");
    assert_eq!(two_puts(DmaMode::Checked, false, false), 1, "the bug shows");
}

#[test]
fn a_missing_wait_shows_only_when_checked() {
    let source = lines(pattern);
    for mode in [DmaMode::Copy, DmaMode::Checked] {
        let mut target = lines(|_| 0);
        run(
            mode,
            &source.0[..64],
            &mut target.0[..64],
            &[],
            |cx, lent| {
                let (checked, all) = (cx.mfc.mode() == DmaMode::Checked, lent.source.as_slice());
                // A get that was not waited for: poison instead of bytes.
                let buffer = cx.store.alloc(64)?;
                let buffer = cx.mfc.get(buffer, lent.source)?.without_waiting();
                let expected = if checked { &[POISON; 64] } else { all };
                assert_eq!(&buffer[..], expected);
                // A put that was not waited for: main memory is still old, and stays so if the
                // buffer is used again.
                let area = Area::new(lent.target);
                let mut buffer = cx.store.alloc(64)?;
                buffer.fill(7);
                let put = cx.mfc.put(buffer, area)?;
                assert_eq!(area.value(0), if checked { 0 } else { 7 });
                let mut buffer = put.without_waiting();
                buffer.fill(8);
                assert_eq!(area.value(0), if checked { 0 } else { 7 });
                // The same with a wait.
                cx.mfc.put(buffer, area)?.wait();
                assert_eq!(area.value(0), 8);
                Ok(())
            },
        )
        .unwrap();
        assert!(target.0[..64].iter().all(|&byte| byte == 8));
    }
}

#[test]
fn transfers_that_nobody_waits_for_are_done_when_the_run_ends() {
    for mode in MODES {
        let mut target = lines(|_| 0);
        let body: Body = |cx, lent| {
            let mut target = lent.target;
            for round in 1..=4 {
                let mut buffer = cx.store.alloc(64)?;
                buffer.fill(round);
                let put = cx.mfc.put(buffer, target.take_front(64).unwrap())?;
                match round {
                    1 => drop(put),
                    2 => std::mem::forget(put),
                    3 => _ = put.wait(),
                    _ => {
                        std::mem::forget(put);
                        return Err(KernelError::failed("after its puts"));
                    }
                }
            }
            Ok(())
        };
        let failed = run(mode, &[], &mut target.0[..256], &[], body);
        assert_eq!(failed, Err(KernelError::failed("after its puts")));
        for (index, byte) in target.0[..256].iter().enumerate() {
            assert_eq!(usize::from(*byte), index / 64 + 1, "{mode:?}");
        }
    }
}

#[test]
fn the_queue_holds_sixteen_and_then_stalls() {
    let mut target = lines(|_| 0);
    let body: Body = |cx, lent| {
        let mut target = lent.target;
        let mut flying = Vec::new();
        for round in 0..IN_FLIGHT_MAX {
            assert_eq!(cx.mfc.queue_room(), QUEUE_COMMANDS.saturating_sub(round));
            let mut buffer = cx.store.alloc(16)?;
            buffer.fill(round as u8 + 1);
            flying.push(cx.mfc.put(buffer, target.take_front(16).unwrap())?);
        }
        let buffer = cx.store.alloc(16)?;
        let refused = cx.mfc.put(buffer, target.take_front(16).unwrap());
        let limit = IN_FLIGHT_MAX;
        assert_eq!(refused.unwrap_err(), DmaError::TooManyInFlight { limit });
        for (round, put) in flying.into_iter().enumerate() {
            assert!(
                put.wait()
                    .iter()
                    .all(|&byte| usize::from(byte) == round + 1)
            );
        }
        let buffer = cx.store.alloc(16)?;
        cx.mfc.put(buffer, target.take_front(16).unwrap())?.wait();
        Ok(())
    };
    let counters = run(DmaMode::Checked, &[], &mut target.0, &[], body).unwrap();
    assert!(counters.dma.stalls >= 16, "{counters:?}");
    for (index, byte) in target.0[..16 * IN_FLIGHT_MAX].iter().enumerate() {
        assert_eq!(usize::from(*byte), index / 16 + 1);
    }
}

#[test]
fn waiting_is_by_tag_group() {
    let source = lines(pattern);
    let body: Body = |cx, lent| {
        let tags = [0, 7, 31].map(|number| Tag::new(number).unwrap());
        let flying = tags.map(|tag| {
            let buffer = cx.store.alloc(64).unwrap();
            cx.mfc.tag(tag).get(buffer, lent.source).unwrap()
        });
        let all = tags[0].mask() | tags[1].mask() | tags[2].mask();
        assert_eq!(cx.mfc.idle_tags(TagMask::ALL).0, !all.0);
        let first = cx.mfc.wait_any(all);
        assert_eq!(first.0.count_ones(), 1);
        assert_eq!(cx.mfc.wait_any(all), first, "one is idle already");
        cx.mfc.wait_all(tags[0].mask());
        assert!(cx.mfc.idle_tags(all).holds(tags[0]));
        cx.mfc.wait_all(all);
        assert_eq!(cx.mfc.idle_tags(TagMask::ALL), TagMask::ALL);
        for get in flying {
            assert_eq!(
                &get.without_waiting()[..],
                lent.source.as_slice(),
                "its group was waited for"
            );
        }
        Ok(())
    };
    run(DmaMode::Checked, &source.0[..64], &mut [], &[], body).unwrap();
    assert!(Tag::new(32).is_none());
    let numbers: Vec<u8> = (0..32).filter_map(Tag::new).map(Tag::number).collect();
    assert!(numbers.into_iter().eq(0..32));
}

#[test]
fn borrowing_copies_nothing_until_it_is_written_to() {
    let source = lines(pattern);
    let mut target = lines(|_| 0);
    let body: Body = |cx, lent| {
        let (all, out) = (lent.source.as_slice(), lent.target);
        let buffer = cx.store.alloc(64)?;
        let mut buffer = cx
            .mfc
            .get(buffer, lent.source.range(0..64).unwrap())?
            .wait();
        assert!(buffer.is_lent() && std::ptr::eq(buffer.as_ptr(), all.as_ptr()));
        buffer[0] = 99;
        assert!(!buffer.is_lent() && all[0] == 0 && buffer[1..] == all[1..64]);
        // Larger than the store: lent all the same.
        let view = cx.mfc.fetch(lent.source)?;
        assert!(std::ptr::eq(view.as_ptr(), all.as_ptr()));
        let mut window = cx.mfc.window(out)?;
        assert!(window.is_direct());
        let len = window.len();
        window.copy_from_slice(&view[..len]);
        window.commit()?;
        Ok(())
    };
    let mut core = Core::new(CoreOptions {
        mode: DmaMode::Borrow,
        store_bytes: 4096,
        ..CoreOptions::default()
    })
    .unwrap();
    fn lent<'j>(source: &'j [u8], target: &'j mut [u8]) -> Lent<'j> {
        Lent {
            source: In::new(source),
            target: Out::new(target),
            list: &[],
        }
    }
    core.run::<Call>((lent(&source.0, &mut target.0), body))
        .unwrap();
    assert!(source.0 == target.0);
    core.set_mode(DmaMode::Copy);
    let body: Body = |cx, lent| cx.mfc.fetch(lent.source).map(drop).map_err(Into::into);
    let full = core
        .run::<Call>((lent(&source.0, &mut target.0), body))
        .unwrap_err();
    assert!(
        matches!(
            full,
            KernelError::Dma(DmaError::Store(StoreError::Full { .. }))
        ),
        "{full}"
    );
}

#[test]
fn a_window_is_written_when_committed_and_not_before() {
    for mode in [DmaMode::Copy, DmaMode::Checked] {
        let mut target = lines(|_| 1);
        let body: Body = |cx, lent| {
            let (committed, dropped) = lent.target.split_at(100).unwrap();
            let mut window = cx.mfc.window(committed)?;
            window.fill(5);
            window.commit()?;
            let mut window = cx.mfc.window(dropped)?;
            window.fill(6);
            drop(window);
            Ok(())
        };
        run(mode, &[], &mut target.0[..200], &[], body).unwrap();
        assert!(target.0[..100].iter().all(|&byte| byte == 5));
        assert!(target.0[100..].iter().all(|&byte| byte == 1));
    }
}

#[test]
fn counters_are_of_commands_and_of_bytes_that_moved() {
    let source = lines(pattern);
    for mode in MODES {
        let mut target = lines(|_| 0);
        // Two pieces of 32 bytes, the second 16 bytes further than it need be.
        let list = [
            ListElement {
                offset: 0,
                bytes: 32,
            },
            ListElement {
                offset: 64,
                bytes: 8,
            },
        ];
        let body: Body = |cx, lent| {
            let mut target = lent.target;
            let buffer = cx.store.alloc(64)?;
            let issue = cx.mfc.tag(Tag::default());
            let buffer = issue.get_list(buffer, lent.list, lent.source)?.wait();
            cx.mfc.put(buffer, target.take_front(32).unwrap())?.wait();
            let buffer = cx.store.alloc(100)?;
            let buffer = cx
                .mfc
                .get_large(buffer, lent.source.range(0..100).unwrap())?
                .wait();
            cx.mfc
                .put_large(buffer, target.take_front(100).unwrap())?
                .wait();
            let mut window = cx.mfc.window(target.take_front(48).unwrap())?;
            window.fill(3);
            window.commit().map_err(KernelError::from)
        };
        let counters = run(mode, &source.0, &mut target.0, &list, body)
            .unwrap()
            .dma;
        assert_eq!((counters.gets, counters.puts), (2, 3), "{mode:?}");
        assert_eq!(
            (counters.bytes_in, counters.bytes_out),
            (140, 180),
            "{mode:?}"
        );
        assert_eq!(target.0[132..180], [3; 48], "{mode:?}");
    }
}

#[test]
fn a_buffer_may_be_longer_than_what_it_gives_and_no_shorter() {
    for mode in MODES {
        let mut target = lines(|_| 0);
        let body: Body = |cx, lent| {
            let area = Area::new(lent.target);
            let mut longer = cx.store.alloc(64)?;
            longer.fill(5);
            cx.mfc.put(longer, area.range(0..32).unwrap())?.wait();
            let mut same = cx.store.alloc(32)?;
            same.fill(6);
            cx.mfc.put(same, area.range(64..96).unwrap())?.wait();
            let shorter = cx.store.alloc(31)?;
            let refused = cx.mfc.put(shorter, area.range(128..160).unwrap());
            let wanted = DmaError::BufferTooShort {
                bytes: 32,
                buffer_bytes: 31,
            };
            assert_eq!(refused.unwrap_err(), wanted);
            Ok(())
        };
        run(mode, &[], &mut target.0[..256], &[], body).unwrap();
        assert_eq!(target.0[..33], [&[5; 32][..], &[0]].concat(), "{mode:?}");
        assert_eq!(target.0[64..97], [&[6; 32][..], &[0]].concat(), "{mode:?}");
        assert_eq!(target.0[128..160], [0; 32], "{mode:?}");
    }
}
