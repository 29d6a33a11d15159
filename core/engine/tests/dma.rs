//! DMA against plain copies: every size and alignment, in both modes. Random cases print
//! their seed.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use proptest::prelude::*;
use sidecore_engine::{
    Core, CoreCounters, CoreOptions, Ctx, DmaError, DmaMode, In, Kernel, KernelError, Out,
    StoreError,
};

const MODES: [DmaMode; 2] = [DmaMode::Copy, DmaMode::Borrow];

/// A kernel whose body is an argument.
struct Call;

type Body = for<'c> fn(&mut Ctx<'c, Call>, Lent<'c>) -> Result<(), KernelError>;

struct Lent<'j> {
    source: In<'j, u8>,
    target: Out<'j, u8>,
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
        let got = run(mode, &source.0[from..from + len], &mut target.0[..], |cx, lent| {
            let buffer = cx.store.alloc(lent.source.len())?;
            let buffer = cx.mfc.get(buffer, lent.source)?.wait();
            assert_eq!(&buffer[..], lent.source.as_slice());
            Ok(())
        });
        prop_assert_eq!(got.is_ok(), natural(from), "{:?}", got);
        let put = run(mode, &source.0[..], &mut target.0[to..to + len], |cx, lent| {
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
        assert!(std::ptr::eq(buffer.as_ptr(), all.as_ptr()));
        buffer[0] = 99;
        assert!(!std::ptr::eq(buffer.as_ptr(), all.as_ptr()));
        assert!(all[0] == 0 && buffer[1..] == all[1..64]);
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
    run(DmaMode::Copy, &[], &mut target.0[..200], body).unwrap();
    assert!(target.0[..100].iter().all(|&byte| byte == 5));
    assert!(target.0[100..].iter().all(|&byte| byte == 1));
}

#[test]
fn counters_are_of_commands_and_of_bytes_that_moved() {
    let source = lines(pattern);
    for mode in MODES {
        let mut target = lines(|_| 0);
        let body: Body = |cx, lent| {
            let (put, rest) = lent.target.split_at(32).unwrap();
            let (large, rest) = rest.split_at(100).unwrap();
            let (lent_out, _) = rest.split_at(48).unwrap();
            let buffer = cx.store.alloc(64)?;
            let source = lent.source.range(0..64).unwrap();
            let buffer = cx.mfc.get(buffer, source)?.wait();
            cx.mfc.put(buffer, put)?.wait();
            let buffer = cx.store.alloc(100)?;
            let source = lent.source.range(0..100).unwrap();
            let buffer = cx.mfc.get_large(buffer, source)?.wait();
            cx.mfc.put_large(buffer, large)?.wait();
            let mut window = cx.mfc.window(lent_out)?;
            window.fill(3);
            window.commit().map_err(KernelError::from)
        };
        let counters = run(mode, &source.0, &mut target.0, body).unwrap().dma;
        assert_eq!((counters.gets, counters.puts), (2, 3), "{mode:?}");
        assert_eq!(
            (counters.bytes_in, counters.bytes_out),
            (164, 180),
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
            let (first, rest) = lent.target.split_at(64).unwrap();
            let (second, third) = rest.split_at(64).unwrap();
            let mut longer = cx.store.alloc(64)?;
            longer.fill(5);
            cx.mfc.put(longer, first.split_at(32).unwrap().0)?.wait();
            let mut same = cx.store.alloc(32)?;
            same.fill(6);
            cx.mfc.put(same, second.split_at(32).unwrap().0)?.wait();
            let shorter = cx.store.alloc(31)?;
            let refused = cx.mfc.put(shorter, third.split_at(32).unwrap().0);
            let wanted = DmaError::BufferTooShort {
                bytes: 32,
                buffer_bytes: 31,
            };
            assert_eq!(refused.unwrap_err(), wanted);
            Ok(())
        };
        run(mode, &[], &mut target.0[..256], body).unwrap();
        assert_eq!(target.0[..33], [&[5; 32][..], &[0]].concat(), "{mode:?}");
        assert_eq!(target.0[64..97], [&[6; 32][..], &[0]].concat(), "{mode:?}");
        assert_eq!(target.0[128..160], [0; 32], "{mode:?}");
    }
}
