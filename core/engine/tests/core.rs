//! Cores, engines and scopes: state, panics, counters, mailboxes, lines, many hosts.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_engine::mfc::Line;
use sidecore_engine::{
    Core, CoreOptions, Ctx, DmaMode, Engine, EngineOptions, In, JOBS_MAX, KERNELS_MAX, Kernel,
    KernelError, Out, SignalMode, StoreError, WaitOptions,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

struct Add;

#[derive(Default)]
struct Total(u64);

impl Kernel for Add {
    type Args<'j> = (In<'j, u32>, Out<'j, u32>);
    type Out = u64;
    type State = Total;
    const LS: usize = 64 << 10;

    fn run<'c, 'j: 'c>(
        cx: &mut Ctx<'c, Self>,
        (source, target): Self::Args<'j>,
    ) -> Result<u64, KernelError> {
        let view = cx.mfc.fetch(source)?;
        assert!(view[0] != 13, "unlucky {}", view[0]);
        let mut window = cx.mfc.window(target)?;
        for (new, old) in window.iter_mut().zip(&view[..]) {
            *new = old + 1;
            cx.state.0 += u64::from(*old);
        }
        window.commit()?;
        Ok(cx.state.0)
    }
}

fn core() -> Core {
    Core::new(CoreOptions::default()).unwrap()
}

#[test]
fn state_stays_and_a_panic_is_an_error_of_its_job() {
    let mut core = core();
    let mut target = [0; 3];
    let run = |core: &mut Core, values: &[u32; 3], target: &mut [u32]| {
        core.run::<Add>((In::new(values), Out::new(target)))
    };
    assert_eq!(run(&mut core, &[1, 2, 3], &mut target), Ok(6));
    assert_eq!(run(&mut core, &[1, 1, 1], &mut target), Ok(9));
    assert_eq!(target, [2, 2, 2]);
    let message = "unlucky 13".to_owned();
    let panicked = run(&mut core, &[13, 0, 0], &mut target);
    assert_eq!(panicked, Err(KernelError::Panicked { message }));
    assert_eq!(
        run(&mut core, &[1, 0, 0], &mut target),
        Ok(1),
        "the state is new"
    );
    let counters = core.take_counters();
    assert_eq!(
        (counters.runs, counters.failures, counters.panics),
        (3, 1, 1)
    );
    assert_eq!((counters.dma.bytes_in, counters.dma.bytes_out), (48, 36));
    assert_eq!(core.counters().runs, 0);
    core.state::<Add>().unwrap().0 = 100;
    assert_eq!(run(&mut core, &[0, 0, 0], &mut target), Ok(100));
}

#[test]
fn a_kernel_that_needs_more_store_is_refused() {
    let mut core = Core::new(CoreOptions {
        store_bytes: 32 << 10,
        ..CoreOptions::default()
    })
    .unwrap();
    let refused = core
        .run::<Add>((In::new(&[1]), Out::new(&mut [0])))
        .unwrap_err();
    let (needs, has) = (64 << 10, 32 << 10);
    assert_eq!(refused, StoreError::TooSmall { needs, has }.into());
    assert!(core.prepare::<Add>().is_err());
    assert_eq!(core.counters().failures, 1);
}

/// A different kernel for each number.
struct Numbered<const N: usize>;

impl<const N: usize> Kernel for Numbered<N> {
    type Args<'j> = ();
    type Out = usize;
    type State = ();

    fn run<'c, 'j: 'c>(_: &mut Ctx<'c, Self>, (): Self::Args<'j>) -> Result<usize, KernelError> {
        Ok(N)
    }
}

macro_rules! eight {
    ($core:ident, $($n:literal),*) => { $(
        assert_eq!($core.run::<Numbered<{ $n * 8 }>>(()), Ok($n * 8));
        assert_eq!($core.run::<Numbered<{ $n * 8 + 1 }>>(()), Ok($n * 8 + 1));
        assert_eq!($core.run::<Numbered<{ $n * 8 + 2 }>>(()), Ok($n * 8 + 2));
        assert_eq!($core.run::<Numbered<{ $n * 8 + 3 }>>(()), Ok($n * 8 + 3));
        assert_eq!($core.run::<Numbered<{ $n * 8 + 4 }>>(()), Ok($n * 8 + 4));
        assert_eq!($core.run::<Numbered<{ $n * 8 + 5 }>>(()), Ok($n * 8 + 5));
        assert_eq!($core.run::<Numbered<{ $n * 8 + 6 }>>(()), Ok($n * 8 + 6));
        assert_eq!($core.run::<Numbered<{ $n * 8 + 7 }>>(()), Ok($n * 8 + 7));
    )* };
}

#[test]
fn kinds_of_kernels_are_bounded() {
    let mut core = core();
    eight!(core, 0, 1, 2, 3, 4, 5, 6, 7);
    let limit = KERNELS_MAX;
    assert_eq!(
        core.run::<Numbered<64>>(()),
        Err(KernelError::TooManyKernels { limit })
    );
    assert_eq!(core.run::<Numbered<63>>(()), Ok(63));
}

#[test]
fn stages_add_up_to_the_time_of_the_runs() {
    let mut core = core();
    core.set_timed(true);
    let values = vec![1; 8000];
    let mut target = vec![0; 8000];
    let begun_ns = sidecore_sys::clock::now_ns();
    for _ in 0..200 {
        core.run::<Add>((In::new(&values), Out::new(&mut target)))
            .unwrap();
    }
    let elapsed_ns = sidecore_sys::clock::now_ns() - begun_ns;
    let times = core.counters().stage_times();
    assert!(
        times.setup_ns > 0 && times.dma_ns > 0 && times.compute_ns > 0,
        "{times:?}"
    );
    let sum_ns = times.setup_ns + times.dma_ns + times.compute_ns;
    assert!(
        sum_ns <= elapsed_ns + elapsed_ns / 10,
        "{times:?} of {elapsed_ns}"
    );
}

/// Doubles words from its inbox until it gets a 0, then says how many through the interrupting
/// mailbox.
struct Doubler;

impl Kernel for Doubler {
    type Args<'j> = ();
    type Out = u32;
    type State = ();

    fn run<'c, 'j: 'c>(cx: &mut Ctx<'c, Self>, (): Self::Args<'j>) -> Result<u32, KernelError> {
        let mut count = 0;
        loop {
            let word: u32 = cx.ports.inbox().read();
            if word == 0 {
                cx.ports.out_interrupt().write(count);
                return Ok(cx.ports.read_signal(1));
            }
            cx.ports.outbox().write(word * 2);
            count += 1;
        }
    }
}

#[test]
fn hosts_and_kernels_exchange_words() {
    let engine = Engine::start(EngineOptions {
        core: CoreOptions {
            signal_modes: [SignalMode::Overwrite, SignalMode::Or],
            ..CoreOptions::default()
        },
        ..EngineOptions::default()
    })
    .unwrap();
    engine.scope(|scope| {
        let job = scope.spawn::<Doubler>(());
        let ports = engine.ports();
        for word in 1..=100u32 {
            ports.inbox().write(word);
            assert_eq!(ports.outbox().read::<u32>(), word * 2);
        }
        // It stalls on its full outbox: one word there, one in its hands, four waiting.
        for word in 1..=6u32 {
            assert!(ports.inbox().write_within(word, Duration::from_secs(20)));
        }
        while ports.inbox().room() > 0 {
            std::thread::yield_now();
        }
        assert!(!ports.inbox().try_write(7u32));
        assert!(!ports.inbox().write_within(7u32, Duration::from_millis(2)));
        assert_eq!(ports.outbox().count(), 1);
        for word in 1..=6u32 {
            assert_eq!(ports.outbox().read::<u32>(), word * 2);
        }
        assert_eq!(ports.outbox().try_read::<u32>(), None);
        ports.inbox().write(0u32);
        assert_eq!(
            ports
                .out_interrupt()
                .read_within::<u32>(Duration::from_secs(20)),
            Some(106)
        );
        assert!(!job.is_done());
        ports.signal(1, 6);
        assert_eq!(job.join(), Ok(6));
    });
}

struct Slow;

impl Kernel for Slow {
    type Args<'j> = (&'j AtomicU32, Duration);
    type Out = ();
    type State = ();

    fn run<'c, 'j: 'c>(
        _: &mut Ctx<'c, Self>,
        (done, time): Self::Args<'j>,
    ) -> Result<(), KernelError> {
        std::thread::sleep(time);
        done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_scope_waits_for_jobs_that_nobody_joins_even_when_it_panics() {
    let engine = Engine::start(EngineOptions::default()).unwrap();
    let done = AtomicU32::new(0);
    let time = Duration::from_millis(20);
    engine.scope(|scope| {
        drop(scope.spawn::<Slow>((&done, time)));
        std::mem::forget(scope.spawn::<Slow>((&done, time)));
    });
    assert_eq!(done.load(Ordering::Relaxed), 2);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        engine.scope(|scope| {
            let _job = scope.spawn::<Slow>((&done, time));
            panic!("the host's own");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(done.load(Ordering::Relaxed), 3);
    assert_eq!(engine.run::<Slow>((&done, time)), Ok(()));
    assert_eq!(engine.counters().runs, 4);
}

#[test]
fn many_hosts_share_one_engine_and_more_jobs_than_it_queues() {
    let engine = Engine::start(EngineOptions {
        wait: WaitOptions::BLOCK,
        core: CoreOptions {
            mode: DmaMode::Checked,
            ..CoreOptions::default()
        },
        ..EngineOptions::default()
    })
    .unwrap();
    std::thread::scope(|threads| {
        for host in 0..3u32 {
            let engine = &engine;
            threads.spawn(move || {
                let source: Vec<u32> = (0..1000).map(|value| value + 20 + host).collect();
                let mut target = vec![0; 1000];
                let jobs = JOBS_MAX + 36;
                engine.scope(|scope| {
                    let jobs: Vec<_> = source
                        .chunks(10)
                        .zip(target.chunks_mut(10))
                        .take(jobs)
                        .map(|(from, to)| scope.spawn::<Add>((In::new(from), Out::new(to))))
                        .collect();
                    for job in jobs {
                        job.join().unwrap();
                    }
                });
                assert!(source.iter().zip(&target).all(|(old, new)| old + 1 == *new));
            });
        }
    });
    assert_eq!(engine.counters().runs, 300);
}

#[test]
fn an_engine_is_pinned_named_and_refused_where_there_is_no_core() {
    struct Where;
    impl Kernel for Where {
        type Args<'j> = ();
        type Out = (usize, Option<String>);
        type State = ();
        fn run<'c, 'j: 'c>(
            _: &mut Ctx<'c, Self>,
            (): Self::Args<'j>,
        ) -> Result<Self::Out, KernelError> {
            let name = std::thread::current().name().map(str::to_owned);
            Ok((sidecore_sys::cpu::current(), name))
        }
    }
    for cpu in sidecore_sys::cpu::allowed().unwrap() {
        let engine = Engine::start(EngineOptions {
            cpu: Some(cpu),
            name: format!("engine-{cpu}"),
            ..EngineOptions::default()
        })
        .unwrap();
        assert_eq!(
            engine.run::<Where>(()),
            Ok((cpu, Some(format!("engine-{cpu}"))))
        );
    }
    let refused = Engine::start(EngineOptions {
        cpu: Some(999_999),
        ..EngineOptions::default()
    });
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("core 999999"), "{message}");
}

/// Adds 1 to the first word of a line, as engines on the Cell did: reserve, change, write if still
/// reserved.
struct Count;

impl Kernel for Count {
    type Args<'j> = (&'j Line, u32);
    type Out = u32;
    type State = ();

    fn run<'c, 'j: 'c>(
        cx: &mut Ctx<'c, Self>,
        (line, times): Self::Args<'j>,
    ) -> Result<u32, KernelError> {
        let mut lost = 0;
        for _ in 0..times {
            loop {
                let mut words = cx.mfc.get_line_reserved(line);
                words[0] += 1;
                words[15] = words[0];
                if cx.mfc.put_line_if_reserved(line, &words) {
                    break;
                }
                lost += 1;
            }
        }
        Ok(lost)
    }
}

#[test]
fn engines_count_on_one_line_and_lose_nothing() {
    let line = Line::default();
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| core().run::<Count>((&line, 5000)).unwrap());
        }
    });
    assert_eq!((line.read()[0], line.read()[15]), (15_000, 15_000));
}

#[test]
fn a_reservation_is_lost_to_any_write_and_used_once() {
    struct Reserve;
    impl Kernel for Reserve {
        type Args<'j> = (&'j Line, &'j Line);
        type Out = ();
        type State = ();
        fn run<'c, 'j: 'c>(
            cx: &mut Ctx<'c, Self>,
            (line, other): Self::Args<'j>,
        ) -> Result<(), KernelError> {
            let words = cx.mfc.get_line_reserved(line);
            assert!(!cx.mfc.put_line_if_reserved(other, &words), "another line");
            assert!(
                !cx.mfc.put_line_if_reserved(line, &words),
                "the reservation is gone"
            );
            let words = cx.mfc.get_line_reserved(line);
            line.write(&words);
            assert!(
                !cx.mfc.put_line_if_reserved(line, &words),
                "written since, if to the same"
            );
            let words = cx.mfc.get_line_reserved(line);
            let _ = cx.mfc.get_line_reserved(other);
            assert!(
                !cx.mfc.put_line_if_reserved(line, &words),
                "one reservation at a time"
            );
            let words = cx.mfc.get_line_reserved(line);
            assert!(cx.mfc.put_line_if_reserved(line, &words));
            assert!(!cx.mfc.put_line_if_reserved(line, &words), "used once");
            Ok(())
        }
    }
    core()
        .run::<Reserve>((&Line::default(), &Line::default()))
        .unwrap();
}
