//! Latency of a call to an engine and of bringing 64 KiB to it, with and without touching memory
//! beforehand.
//!
//! `cargo run --release -p sidecore-engine --example round_trip`
//!
//! The papers lost a factor of 100 to 1,000 on buffers that were mapped or first touched while a
//! request waited; the last table is that point on this machine. One process, medians and 99th
//! percentiles in nanoseconds; the host and the engine sit on different cores where there are two.

use sidecore_engine::{
    Core, CoreOptions, Ctx, DmaMode, Engine, EngineOptions, In, Kernel, KernelError, WaitOptions,
};
use sidecore_sys::{HugePages, RegionOptions, Slab, clock, cpu};
use std::error::Error;
use std::io::Write;
use std::time::Duration;

const BLOCK_BYTES: usize = 64 << 10;
const ROUNDS: usize = 20_000;
const MEMORY_ROUNDS: usize = 2_000;

/// Sends every word back, until it gets a 0.
struct Echo;

impl Kernel for Echo {
    type Args<'j> = ();
    type Out = ();
    type State = ();

    fn run<'c, 'j: 'c>(cx: &mut Ctx<'c, Self>, (): Self::Args<'j>) -> Result<(), KernelError> {
        loop {
            let word: u32 = cx.ports.inbox().read();
            if word == 0 {
                return Ok(());
            }
            cx.ports.outbox().write(word);
        }
    }
}

/// Does nothing.
struct Nothing;

impl Kernel for Nothing {
    type Args<'j> = ();
    type Out = ();
    type State = ();

    fn run<'c, 'j: 'c>(_: &mut Ctx<'c, Self>, (): Self::Args<'j>) -> Result<(), KernelError> {
        Ok(())
    }
}

/// Fetches a block and looks at every line of it, as a kernel would.
struct Bring;

impl Kernel for Bring {
    type Args<'j> = In<'j, u8>;
    type Out = u64;
    type State = ();
    const LS: usize = BLOCK_BYTES;

    fn run<'c, 'j: 'c>(cx: &mut Ctx<'c, Self>, block: In<'j, u8>) -> Result<u64, KernelError> {
        let buffer = cx.store.alloc(BLOCK_BYTES)?;
        let buffer = cx.mfc.get_large(buffer, block)?.wait();
        Ok(buffer.iter().step_by(64).map(|&byte| u64::from(byte)).sum())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let cpus = cpu::allowed()?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    writeln!(out, "{} cores, load {}", cpus.len(), load.trim())?;

    let host_cpu = cpus[0];
    let engine_cpu = cpus[cpus.len() - 1];
    cpu::pin(host_cpu)?;
    writeln!(
        out,
        "\nround trips, {ROUNDS} each                    median      p99  (ns)"
    )?;
    let spinning = WaitOptions {
        spins: 10_000,
        grace: Duration::from_millis(5),
    };
    for (name, wait) in [
        ("mailbox, spinning", spinning),
        ("mailbox, adaptive", WaitOptions::default()),
        ("mailbox, blocking", WaitOptions::BLOCK),
    ] {
        let engine = start(engine_cpu, wait)?;
        let ports = engine.ports();
        let samples = engine.scope(|scope| {
            let job = scope.spawn::<Echo>(());
            let samples = measure(ROUNDS, || {
                ports.inbox().write(1u32);
                let _: u32 = ports.outbox().read();
            });
            ports.inbox().write(0u32);
            job.join().map(|()| samples)
        })?;
        report(&mut out, name, samples)?;
    }
    let engine = start(engine_cpu, spinning)?;
    let samples = measure(ROUNDS, || {
        engine.run::<Nothing>(()).ok();
    });
    report(&mut out, "empty job, to another core", samples)?;
    let mut core = Core::new(CoreOptions::default())?;
    let samples = measure(ROUNDS, || {
        core.run::<Nothing>(()).ok();
    });
    report(&mut out, "empty job, on this core", samples)?;

    writeln!(
        out,
        "\nget of 64 KiB and a look at it, {MEMORY_ROUNDS} each   median      p99  (ns)"
    )?;
    for (name, mode) in [("copy", DmaMode::Copy), ("borrow", DmaMode::Borrow)] {
        core.set_mode(mode);
        for touched in [true, false] {
            let options = RegionOptions {
                huge: HugePages::None,
                lock: false,
                touch: touched,
            };
            let slab = Slab::new(BLOCK_BYTES, 1, options)?;
            let Some(mut block) = slab.take() else {
                return Err("a new slab has no slot".into());
            };
            let mut samples = Vec::with_capacity(MEMORY_ROUNDS);
            for _ in 0..MEMORY_ROUNDS {
                if touched {
                    block.fill(1);
                } else {
                    block.release_pages()?;
                }
                let begun_ns = clock::now_ns();
                core.run::<Bring>(In::new(&block))?;
                samples.push(clock::now_ns() - begun_ns);
            }
            let state = if touched {
                "touched before"
            } else {
                "not touched"
            };
            report(&mut out, &format!("{name}, source {state}"), samples)?;
        }
    }
    for (name, touch) in [("touched", true), ("not touched", false)] {
        let region = RegionOptions {
            huge: HugePages::None,
            lock: false,
            touch,
        };
        let block = vec![1; BLOCK_BYTES];
        let mut samples = Vec::with_capacity(MEMORY_ROUNDS);
        for _ in 0..MEMORY_ROUNDS {
            let mut fresh = Core::new(CoreOptions {
                region,
                mode: DmaMode::Copy,
                ..CoreOptions::default()
            })?;
            fresh.prepare::<Bring>()?;
            let begun_ns = clock::now_ns();
            fresh.run::<Bring>(In::new(&block))?;
            samples.push(clock::now_ns() - begun_ns);
        }
        report(
            &mut out,
            &format!("copy, first use of a store {name}"),
            samples,
        )?;
    }
    Ok(())
}

fn start(cpu: usize, wait: WaitOptions) -> Result<Engine, Box<dyn Error>> {
    let core = CoreOptions {
        wait,
        ..CoreOptions::default()
    };
    let name = "round-trip".to_owned();
    let options = EngineOptions {
        cpu: Some(cpu),
        name,
        core,
        wait,
    };
    Ok(Engine::start(options)?)
}

fn measure(rounds: usize, mut round: impl FnMut()) -> Vec<u64> {
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun_ns = clock::now_ns();
        round();
        samples.push(clock::now_ns() - begun_ns);
    }
    samples
}

fn report(out: &mut impl Write, name: &str, mut samples: Vec<u64>) -> std::io::Result<()> {
    samples.sort_unstable();
    let at = |percent: usize| samples[(samples.len() - 1) * percent / 100];
    writeln!(out, "  {name:44} {:8} {:8}", at(50), at(99))
}
