//! The measurements.

#[path = "../../tests/common/gcc.rs"]
mod gcc;

use spe2::api::{
    SpeContext, spe_context_create, spe_context_destroy, spe_context_run, spe_image_open,
    spe_in_mbox_write, spe_out_mbox_read, spe_out_mbox_status, spe_program_load, spe_ps_area_get,
    spe_signal_write,
};
use std::ffi::{CString, c_void};
use std::process::Command;
use std::ptr::null_mut;
use std::time::Instant;

const FLAG_MAP_PS: u32 = 0x40;
const AREA_SIGNAL_1: u32 = 3;
const ALL_BLOCKING: u32 = 1;
const ROUNDS: u32 = 200_000;
const SAMPLES: usize = 9;

/// A context's address, for threads.
#[derive(Clone, Copy)]
struct Spe(usize);

impl Spe {
    fn load(program: &CString) -> Spe {
        // SAFETY: valid arguments; the context lives until `end`.
        unsafe {
            let image = spe_image_open(program.as_ptr());
            assert!(!image.is_null(), "the program opens");
            let spe = spe_context_create(FLAG_MAP_PS, null_mut());
            assert_eq!(spe_program_load(spe, image), 0, "the program loads");
            Spe(spe as usize)
        }
    }

    fn pointer(self) -> *mut SpeContext {
        self.0 as *mut SpeContext
    }

    fn start(self, argp: usize, envp: usize) -> std::thread::JoinHandle<i32> {
        std::thread::spawn(move || {
            let mut entry = u32::MAX;
            let (argp, envp) = (argp as *mut c_void, envp as *mut c_void);
            // SAFETY: a loaded context.
            unsafe { spe_context_run(self.pointer(), &mut entry, 0, argp, envp, null_mut()) }
        })
    }

    fn destroy(self) {
        // SAFETY: nobody uses it any more.
        unsafe { spe_context_destroy(self.pointer()) };
    }
}

fn exits(thread: std::thread::JoinHandle<i32>) {
    assert_eq!(thread.join().ok(), Some(0), "the program exits");
}

/// Nanoseconds a round trip by mailbox.
fn round_trip(program: &CString) -> f64 {
    let spe = Spe::load(program);
    let thread = spe.start(0, 0);
    let mut word = 1;
    let mut begin = Instant::now();
    for round in 0..ROUNDS + 1000 {
        if round == 1000 {
            begin = Instant::now();
        }
        // SAFETY: a live context and our own word.
        unsafe {
            spe_in_mbox_write(spe.pointer(), &mut word, 1, ALL_BLOCKING);
            while spe_out_mbox_status(spe.pointer()) == 0 {
                std::hint::spin_loop();
            }
            spe_out_mbox_read(spe.pointer(), &mut word, 1);
        }
    }
    let time = begin.elapsed();
    word = 0;
    // SAFETY: as above.
    unsafe { spe_in_mbox_write(spe.pointer(), &mut word, 1, ALL_BLOCKING) };
    exits(thread);
    spe.destroy();
    time.as_nanos() as f64 / f64::from(ROUNDS)
}

/// Nanoseconds from one parked context's signal to the other's.
fn switch(program: &CString) -> f64 {
    let pair = [Spe::load(program), Spe::load(program)];
    // SAFETY: live contexts.
    let area = |spe: Spe| unsafe { spe_ps_area_get(spe.pointer(), AREA_SIGNAL_1) } as usize;
    let rounds = ROUNDS as usize;
    let threads = [
        pair[0].start(area(pair[1]), rounds),
        pair[1].start(area(pair[0]), rounds),
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
    let folder = std::env::temp_dir().join(format!("spe-latency-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let program = folder.join("latency_spu");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/latency_spu.c");
    let built = Command::new("gcc")
        .args(gcc::OPTIONS)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "gcc -mx32 builds"
    );
    let program = CString::new(program.as_os_str().as_encoded_bytes()).expect("a path");
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..SAMPLES {
        figures[0].push(round_trip(&program));
        figures[1].push(switch(&program));
    }
    for (name, mut samples) in ["mailbox round trip", "switch of contexts"]
        .iter()
        .zip(figures)
    {
        samples.sort_by(f64::total_cmp);
        println!(
            "{name}: median {:.0} ns ({:.0} to {:.0})",
            samples[SAMPLES / 2],
            samples[0],
            samples[SAMPLES - 1]
        );
    }
    std::fs::remove_dir_all(&folder).ok();
}
