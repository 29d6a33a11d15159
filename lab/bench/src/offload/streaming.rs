//! A picture to gray through an engine's DMA, compared with the plain loop over the same memory.
//!
//! Why here: double buffering exists to hide memory latency; a kernel that uses it must not be
//! slower than a plain loop. The picture is larger than the caches.
//! Must stay true: all ways call the same function for a piece, and every pass's result is checked.
//! Processor time of the one thread, which is pinned; all ways in turns in each round. Source: own;
//! the structure of the loop is the Cell's (get the next piece, compute this one, put it).

use super::loops::on_core;
use super::{Bench, BenchError, Candidate};
use crate::measure::report::{Better, Comparison};
use crate::measure::stats::{Series, median};
use sidecore_engine::{Core, CoreOptions, Ctx, DmaMode, In, Kernel, KernelError, Out};
use sidecore_sys::clock;

/// Measures all ways, interleaved.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cpu = bench.cpus.first().copied().unwrap_or(0);
    let picture = Picture::new();
    let picture = &picture;
    let passes = bench.choose(1, 9);
    let mut cores = Vec::new();
    for way in &WAYS {
        let mut options = CoreOptions::of_this_machine();
        options.mode = way.mode;
        cores.push(Core::new(options)?);
    }
    let mut candidates = vec![Candidate::new(PLAIN, |()| {
        let timed = on_core(cpu, || picture.time(passes, gray))?;
        looked_at(PLAIN, timed)
    })];
    for (way, core) in WAYS.iter().zip(&mut cores) {
        candidates.push(Candidate::new(way.name, move |()| {
            let pass = |source: &[u32], target: &mut [u8]| {
                let args = Args {
                    source: In::new(source),
                    target: Out::new(target),
                    windows: way.windows,
                };
                // A failed kernel leaves the target unchanged, which the check finds.
                let _ = core.run::<Gray>(args);
            };
            let timed = on_core(cpu, || picture.time(passes, pass))?;
            looked_at(way.name, timed)
        }));
    }
    bench.say("a picture to gray");
    let rounds = bench.choose(1, 9);
    let series = bench.interleave(&[("gray, 8 Mpx", "ms")], rounds, &mut candidates)?;
    drop(candidates);
    let series: Vec<Option<Series>> = series
        .into_iter()
        .map(|series| series?.into_iter().next())
        .collect();
    let Some((Some(plain), ways)) = series.split_first() else {
        return Ok(());
    };
    for (way, series) in WAYS.iter().zip(ways) {
        let Some(series) = series else { continue };
        let what = Comparison {
            group: "streaming",
            name: PLAIN,
            metric: way.name,
            unit: "ms",
            better: Better::Lower,
            target: way.target,
            note: "",
        };
        bench.report.figures.compare(&what, series, plain);
    }
    Ok(())
}

/// The times, unless a result was wrong.
fn looked_at(name: &str, times_ms: Vec<f64>) -> Result<Vec<f64>, BenchError> {
    match times_ms.iter().any(|time_ms| time_ms.is_nan()) {
        true => Err(BenchError::Wrong(format!(
            "{name}: not the plain loop's picture"
        ))),
        false => Ok(times_ms),
    }
}

/// The pixels, and the sum of the gray ones.
struct Picture {
    source: Vec<u32>,
    sum: u64,
}

impl Picture {
    fn new() -> Self {
        let pixels = 0..PIXELS as u32;
        // Any colours will do, as long as a piece at the wrong place would show.
        let source: Vec<u32> = pixels.map(|at| at.wrapping_mul(0x9e37_79b9)).collect();
        let mut target = vec![0; PIXELS];
        gray(&source, &mut target);
        Self {
            sum: sum(&target),
            source,
        }
    }

    /// Milliseconds of processor time for a pass, the median of some; not a number where one was
    /// wrong.
    fn time(&self, passes: usize, mut pass: impl FnMut(&[u32], &mut [u8])) -> f64 {
        let mut target = vec![0; PIXELS];
        // The first touches the target's pages.
        pass(&self.source, &mut target);
        let mut times_ms = Vec::with_capacity(passes);
        for _ in 0..passes {
            let begun_ns = clock::thread_cpu_ns();
            pass(&self.source, &mut target);
            times_ms.push((clock::thread_cpu_ns() - begun_ns) as f64 * 1e-6);
        }
        if sum(&target) == self.sum {
            median(&times_ms)
        } else {
            f64::NAN
        }
    }
}

/// Each gray value counts with its place.
fn sum(values: &[u8]) -> u64 {
    (values.iter().zip(1..)).fold(0, |sum: u64, (&value, at): (_, u64)| {
        sum.wrapping_add(u64::from(value) * at)
    })
}

/// The weights of Rec. 601, in 256ths.
#[inline(never)] // The same code for all ways.
fn gray(source: &[u32], target: &mut [u8]) {
    for (pixel, gray) in source.iter().zip(target) {
        let [red, green, blue, _] = pixel.to_le_bytes().map(u32::from);
        *gray = ((red * 77 + green * 150 + blue * 29) >> 8) as u8;
    }
}

/// The same as a kernel with two source buffers.
struct Gray;

struct Args<'j> {
    source: In<'j, u32>,
    target: Out<'j, u8>,
    /// Results are written in windows of the target; else in the store, and put.
    windows: bool,
}

impl Kernel for Gray {
    type Args<'j> = Args<'j>;
    type Out = ();
    type State = ();
    const LS: usize = 2 * PIECE_PIXELS * size_of::<u32>() + PIECE_PIXELS;

    fn run<'c, 'j: 'c>(cx: &mut Ctx<'c, Self>, args: Args<'j>) -> Result<(), KernelError> {
        let mut spare = Some(cx.store.alloc::<u32>(PIECE_PIXELS)?);
        let mut result = cx.store.alloc::<u8>(PIECE_PIXELS)?;
        let mut pieces = args.source.chunks(PIECE_PIXELS);
        let mut next = match pieces.next() {
            Some(piece) => Some(cx.mfc.get_large(cx.store.alloc(PIECE_PIXELS)?, piece)?),
            None => None,
        };
        for target in args.target.chunks(PIECE_PIXELS) {
            let Some(under_way) = next.take() else { break };
            let buffer = under_way.wait();
            if let (Some(piece), Some(free)) = (pieces.next(), spare.take()) {
                next = Some(cx.mfc.get_large(free, piece)?);
            }
            if args.windows {
                let mut window = cx.mfc.window(target)?;
                gray(&buffer, &mut window);
                window.commit()?;
            } else {
                gray(&buffer, &mut result);
                result = cx.mfc.put_large(result, target)?.wait();
            }
            spare = Some(buffer);
        }
        Ok(())
    }
}

/// One way through the engine.
struct Way {
    name: &'static str,
    mode: DmaMode,
    windows: bool,
    /// Greatest wanted ratio to the plain loop.
    target: Option<f64>,
}

const PLAIN: &str = "the plain loop";
const WAYS: [Way; 3] = [
    Way {
        name: "gray, 8 Mpx: gets lent, results in windows",
        mode: DmaMode::Borrow,
        windows: true,
        target: Some(1.1),
    },
    Way {
        name: "gray, 8 Mpx: gets lent, results put",
        mode: DmaMode::Borrow,
        windows: false,
        target: None,
    },
    Way {
        name: "gray, 8 Mpx: gets copied, results put",
        mode: DmaMode::Copy,
        windows: false,
        target: None,
    },
];
const PIXELS: usize = 8 << 20;
/// A piece of 16 KiB: the largest transfer of the hardware.
const PIECE_PIXELS: usize = 4096;
