//! Compares two ways to share engines between programs: the event-driven rule and one queue in the
//! order of arrival, in processes that alternate.
//!
//! Run: `cargo run --release -p sidecore-spe --example sharing [ROUNDS]`, with `-- --json` for one
//! object.

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
    use spe2::api::{spe_in_mbox_write, spe_out_intr_mbox_read, spe_ps_area_get, spe_signal_write};
    use std::process::Command;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    const ALL_BLOCKING: u32 = 1;
    const AREA_SIGNAL_1: u32 = 3;
    const ASKS: usize = 1;
    const WORKS: usize = 2;
    const ANSWERS: usize = 3;
    const PASSES: usize = 4;
    const LOOKS: usize = 5;

    /// Name, engines, description of the figure, and the function that measures it.
    type Scene = (
        &'static str,
        &'static str,
        &'static str,
        fn(&Program) -> f64,
    );
    const SCENES: &[Scene] = &[
        ("work", "2", "ms until 8 programs have worked", work),
        (
            "work_beside_asking",
            "2",
            "ms until 4 programs have worked, beside 6 that ask for a word",
            work_beside_asking,
        ),
        (
            "work_beside_locks",
            "2",
            "ms until 4 programs have worked, beside 6 that look at a lock's line",
            work_beside_locks,
        ),
        (
            "answer_beside_work",
            "2",
            "us for an answer by mailbox, beside 8 programs that work",
            answer_beside_work,
        ),
        (
            "ring",
            "6",
            "us for a signal's way to the next of 24 programs",
            ring,
        ),
        (
            "ring_beside_work",
            "6",
            "us for a signal's way to the next of 24 programs, beside 2 that work",
            ring_beside_work,
        ),
    ];
    /// Pieces of a program that works.
    const PIECES: usize = 4_000;

    fn started(program: &Program, argp: usize, kind: usize) -> (Spe, JoinHandle<i32>) {
        let spe = Spe::load(program);
        (spe, spe.start(argp, kind, || {}))
    }

    fn several(
        program: &Program,
        count: usize,
        argp: usize,
        kind: usize,
    ) -> Vec<(Spe, JoinHandle<i32>)> {
        (0..count).map(|_| started(program, argp, kind)).collect()
    }

    fn end(all: Vec<(Spe, JoinHandle<i32>)>) {
        for (spe, thread) in all {
            exits(thread);
            spe.destroy();
        }
    }

    fn send(spe: Spe, mut word: u32) {
        // SAFETY: a live context and our own word.
        unsafe { spe_in_mbox_write(spe.pointer(), &mut word, 1, ALL_BLOCKING) };
    }

    fn milliseconds(begin: Instant) -> f64 {
        begin.elapsed().as_secs_f64() * 1e3
    }

    fn work(program: &Program) -> f64 {
        let begin = Instant::now();
        end(several(program, 8, PIECES, WORKS));
        milliseconds(begin)
    }

    fn work_beside_asking(program: &Program) -> f64 {
        let asking = several(program, 6, 0, ASKS);
        let begin = Instant::now();
        end(several(program, 4, PIECES, WORKS));
        let time = milliseconds(begin);
        for (spe, _) in &asking {
            send(*spe, 1);
        }
        end(asking);
        time
    }

    fn work_beside_locks(program: &Program) -> f64 {
        #[repr(align(128))]
        struct Line([AtomicU32; 32]);
        let line = Line([const { AtomicU32::new(0) }; 32]);
        let looking = several(program, 6, &raw const line as usize, LOOKS);
        let begin = Instant::now();
        end(several(program, 4, PIECES, WORKS));
        let time = milliseconds(begin);
        line.0[0].store(1, Ordering::SeqCst);
        end(looking);
        time
    }

    /// The median of answers while others work.
    fn answer_beside_work(program: &Program) -> f64 {
        let (answers, thread) = started(program, 0, ANSWERS);
        let working = several(program, 8, 2 * PIECES, WORKS);
        // All of them are to have begun.
        std::thread::sleep(Duration::from_millis(20));
        let mut samples = Vec::new();
        while samples.len() < 40 && working.iter().all(|(_, thread)| !thread.is_finished()) {
            // Long enough that the program waits for the word.
            std::thread::sleep(Duration::from_micros(300));
            let begin = Instant::now();
            send(answers, 7);
            let mut word = 0;
            // SAFETY: a live context and our own word.
            unsafe { spe_out_intr_mbox_read(answers.pointer(), &mut word, 1, ALL_BLOCKING) };
            samples.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        send(answers, 0);
        end(vec![(answers, thread)]);
        end(working);
        median(samples)
    }

    fn ring(program: &Program) -> f64 {
        passed(program, 0)
    }

    fn ring_beside_work(program: &Program) -> f64 {
        passed(program, 2)
    }

    fn passed(program: &Program, workers: usize) -> f64 {
        const PROGRAMS: usize = 24;
        const TIMES: u32 = 200;
        let contexts: Vec<Spe> = (0..PROGRAMS).map(|_| Spe::load(program)).collect();
        // SAFETY: live contexts.
        let area = |spe: Spe| unsafe { spe_ps_area_get(spe.pointer(), AREA_SIGNAL_1) } as usize;
        let threads: Vec<_> = (0..PROGRAMS)
            .map(|index| {
                let next = contexts[(index + 1) % PROGRAMS];
                contexts[index].start(area(next), PASSES, || {})
            })
            .collect();
        let working = several(program, workers, PIECES, WORKS);
        for spe in &contexts {
            send(*spe, TIMES);
        }
        let begin = Instant::now();
        // SAFETY: a live context.
        unsafe { spe_signal_write(contexts[0].pointer(), 1, 1) };
        threads.into_iter().for_each(exits);
        let time = begin.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES) / PROGRAMS as f64;
        end(working);
        contexts.into_iter().for_each(Spe::destroy);
        time
    }

    fn median(mut samples: Vec<f64>) -> f64 {
        samples.sort_by(f64::total_cmp);
        samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// One scene in this process, or all of them in processes of their own.
    pub(crate) fn print() {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        if let [scene, wanted] = arguments.as_slice()
            && scene == "--scene"
        {
            let program = Program::build("sharing_spu");
            let scene = SCENES.iter().find(|scene| scene.0 == wanted);
            println!("{}", scene.expect("a scene").3(&program));
            return;
        }
        let rounds = arguments
            .iter()
            .find_map(|word| word.parse().ok())
            .unwrap_or(9);
        let mut rows = Vec::new();
        for (name, engines, unit, _) in SCENES {
            let mut samples = [Vec::new(), Vec::new()];
            for _ in 0..rounds {
                for (sharing, samples) in ["fifo", "edtlp"].iter().zip(&mut samples) {
                    samples.push(measured(name, engines, sharing));
                }
            }
            let [fifo, edtlp] = samples.map(median);
            rows.push((name, unit, fifo, edtlp));
        }
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().unwrap_or("0");
        if arguments.iter().any(|word| word == "--json") {
            let rows: Vec<String> = rows
                .iter()
                .map(|(name, unit, fifo, edtlp)| {
                    format!(
                        "{{\"name\":\"{name}\",\"unit\":\"{unit}\",\"fifo\":{fifo:.3},\
                     \"edtlp\":{edtlp:.3}}}"
                    )
                })
                .collect();
            println!(
                "{{\"rounds\":{rounds},\"load\":{load},\"rows\":[{}]}}",
                rows.join(",")
            );
            return;
        }
        println!(
            "medians of {rounds} rounds, load {load}: in the order of arrival, event-driven, ratio"
        );
        for (name, unit, fifo, edtlp) in rows {
            println!("{name}: {fifo:.2} {edtlp:.2} {:.2} ({unit})", edtlp / fifo);
        }
    }

    /// A scene's figure by a rule.
    fn measured(scene: &str, engines: &str, sharing: &str) -> f64 {
        let own = std::env::current_exe().expect("own path");
        let output = Command::new(own)
            .args(["--scene", scene])
            .env("SIDECORE_SPE_ENGINES", engines)
            .env("SIDECORE_SPE_SHARING", sharing)
            .output()
            .expect("starts");
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().unwrap_or_else(|_| {
            panic!(
                "{scene}, {sharing}: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }
}
