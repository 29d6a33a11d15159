//! Measures a mailbox round trip between a host that spins and a program that spins, and a switch
//! between parked contexts: two contexts of one engine hand a signal to each other.
//!
//! Run: `SIDECORE_SPE_ENGINES=1 cargo run --release -p sidecore-spe --example latency`, with
//! `-- --json` for one object. Both sides of the round trip spin: it needs two processors.

#![allow(unsafe_code, reason = "the interface is C's")]
#![allow(clippy::print_stdout, reason = "figures are what it is for")]

#[cfg(target_arch = "x86_64")]
#[path = "common/program.rs"]
mod program;

fn main() {
    #[cfg(target_arch = "x86_64")]
    figures::print();
}

#[cfg(target_arch = "x86_64")]
mod figures {
    use super::program::{Program, Spe, exits};
    use spe2::api::{
        spe_in_mbox_write, spe_out_mbox_read, spe_out_mbox_status, spe_ps_area_get,
        spe_signal_write,
    };
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    const AREA_SIGNAL_1: u32 = 3;
    const ALL_BLOCKING: u32 = 1;
    const ROUNDS: u32 = 20_000;
    const SAMPLES: usize = 25;
    const SLICES: usize = 400;
    const SLICE_ROUNDS: u32 = 500;

    /// Processors that the process may use, as it was started.
    fn processors() -> &'static [usize] {
        static PLACES: OnceLock<Vec<usize>> = OnceLock::new();
        PLACES.get_or_init(|| {
            // SAFETY: all zeroes is a set, and it is ours.
            let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            // SAFETY: as above.
            unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
            let places = 0..libc::CPU_SETSIZE as usize;
            // SAFETY: within the set.
            places
                .filter(|place| unsafe { libc::CPU_ISSET(*place, &set) })
                .collect()
        })
    }

    /// Keeps this thread, and those that it starts, on one of the processors, if there are two.
    fn stay_on(index: usize) {
        if let [first, second, ..] = processors() {
            // SAFETY: all zeroes is a set, and it is ours; the numbers are within it.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET([*first, *second][index], &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &set);
            }
        }
    }

    /// A program's engine is started by the thread that runs it, and stays where that is.
    fn beside() {
        stay_on(1);
    }

    /// Nanoseconds in which a word goes to another thread and back by two lines of the cache, each
    /// side spinning: the machine's limit.
    fn line_round_trips() -> Vec<f64> {
        #[repr(align(128))]
        struct Line(AtomicU32);
        let lines = [Line(AtomicU32::new(0)), Line(AtomicU32::new(0))];
        let mut samples = Vec::with_capacity(SLICES + 1);
        std::thread::scope(|scope| {
            let [there, back] = &lines;
            scope.spawn(move || {
                stay_on(1);
                for round in 1..=(SLICES as u32 + 1) * SLICE_ROUNDS {
                    while there.0.load(Ordering::Acquire) != round {}
                    back.0.store(round, Ordering::Release);
                }
            });
            let mut round = 0;
            for _ in 0..=SLICES {
                let begin = Instant::now();
                for _ in 0..SLICE_ROUNDS {
                    round += 1;
                    there.0.store(round, Ordering::Release);
                    while back.0.load(Ordering::Acquire) != round {}
                }
                samples.push(begin.elapsed().as_nanos() as f64 / f64::from(SLICE_ROUNDS));
            }
        });
        samples.split_off(1)
    }

    /// Nanoseconds a round trip by mailbox, a sample for each slice of rounds. If a thread of
    /// another program takes a processor, it spoils the slice that it falls into, not the others.
    fn round_trips(program: &Program) -> Vec<f64> {
        let spe = Spe::load(program);
        let thread = spe.start(0, 0, beside);
        let mut word = 1;
        let mut samples = Vec::with_capacity(SLICES + 1);
        for _ in 0..=SLICES {
            let begin = Instant::now();
            for _ in 0..SLICE_ROUNDS {
                // SAFETY: a live context and our own word.
                unsafe {
                    spe_in_mbox_write(spe.pointer(), &mut word, 1, ALL_BLOCKING);
                    while spe_out_mbox_status(spe.pointer()) == 0 {}
                    spe_out_mbox_read(spe.pointer(), &mut word, 1);
                }
            }
            samples.push(begin.elapsed().as_nanos() as f64 / f64::from(SLICE_ROUNDS));
        }
        word = 0;
        // SAFETY: as above.
        unsafe { spe_in_mbox_write(spe.pointer(), &mut word, 1, ALL_BLOCKING) };
        exits(thread);
        spe.destroy();
        // The first one starts the engine.
        samples.split_off(1)
    }

    /// Nanoseconds from one parked context's signal to the other's.
    fn switch(program: &Program) -> f64 {
        let pair = [Spe::load(program), Spe::load(program)];
        // SAFETY: live contexts.
        let area = |spe: Spe| unsafe { spe_ps_area_get(spe.pointer(), AREA_SIGNAL_1) } as usize;
        let rounds = ROUNDS as usize;
        let threads = [
            pair[0].start(area(pair[1]), rounds, beside),
            pair[1].start(area(pair[0]), rounds, beside),
        ];
        let begin = Instant::now();
        // SAFETY: a live context.
        unsafe { spe_signal_write(pair[0].pointer(), 1, 1) };
        threads.into_iter().for_each(exits);
        let time = begin.elapsed();
        // Not before both ended: the last signal goes to the other's area.
        pair.into_iter().for_each(Spe::destroy);
        time.as_nanos() as f64 / f64::from(2 * ROUNDS)
    }

    /// Measures and prints.
    pub(crate) fn print() {
        let program = Program::build("latency_spu");
        let two = processors().len() > 1;
        stay_on(0);
        let lines = if two { line_round_trips() } else { Vec::new() };
        let round_trips = round_trips(&program);
        let switches: Vec<f64> = (0..SAMPLES).map(|_| switch(&program)).collect();
        drop(program);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().unwrap_or("0");
        let processors = processors().len();
        let mut figures = vec![
            Figure::new("mailbox_round_trip", round_trips),
            Figure::new("context_switch", switches),
        ];
        if two {
            figures.insert(0, Figure::new("two_lines", lines));
        }
        if std::env::args().any(|argument| argument == "--json") {
            let rows = figures
                .iter()
                .map(Figure::json)
                .collect::<Vec<_>>()
                .join(",");
            println!("{{\"processors\":{processors},\"load\":{load},\"rows\":[{rows}]}}");
            return;
        }
        println!("{processors} processors, load {load}; nanoseconds");
        for figure in figures {
            println!("{}", figure.line());
        }
    }

    /// Quantiles of samples in nanoseconds.
    struct Figure {
        name: &'static str,
        samples: usize,
        min: f64,
        quarter: f64,
        median: f64,
        p90: f64,
    }

    impl Figure {
        fn new(name: &'static str, mut samples: Vec<f64>) -> Figure {
            samples.sort_by(f64::total_cmp);
            let at = |part: f64| samples[(part * (samples.len() - 1) as f64) as usize];
            Figure {
                name,
                samples: samples.len(),
                min: at(0.0),
                quarter: at(0.25),
                median: at(0.5),
                p90: at(0.9),
            }
        }

        fn line(&self) -> String {
            let Figure {
                name,
                samples,
                min,
                quarter,
                median,
                p90,
            } = self;
            format!(
                "{name}: median {median:.0}, quarter {quarter:.0}, least {min:.0}, 90 % {p90:.0} \
             ({samples} samples)"
            )
        }

        fn json(&self) -> String {
            let Figure {
                name,
                samples,
                min,
                quarter,
                median,
                p90,
            } = self;
            format!(
                "{{\"name\":\"{name}\",\"samples\":{samples},\"median_ns\":{median:.1},\
             \"quarter_ns\":{quarter:.1},\"min_ns\":{min:.1},\"p90_ns\":{p90:.1}}}"
            )
        }
    }
}
