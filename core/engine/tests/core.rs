//! Cores: state, panics, counters.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_engine::{
    Core, CoreOptions, Ctx, In, KERNELS_MAX, Kernel, KernelError, Out, StoreError,
};

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
    let counters = core.counters();
    assert_eq!(
        (counters.runs, counters.failures, counters.panics),
        (3, 1, 1)
    );
    assert_eq!((counters.dma.bytes_in, counters.dma.bytes_out), (48, 36));
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
