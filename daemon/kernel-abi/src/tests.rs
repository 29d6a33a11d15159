//! A kernel over a daemon that is made of a few functions.
#![allow(unsafe_code)] // Plays the daemon, which speaks C.

use super::raw::{ABI, HostTable, RawRun, WORDS};
use super::{Loadable, Run, export};
use core::ffi::{CStr, c_char, c_int, c_void};

/// State of these tests' daemon.
#[derive(Default)]
struct Call {
    input: Vec<u8>,
    output: Vec<u8>,
    text: String,
    unwanted: bool,
}

unsafe extern "C" fn get(
    call: *mut c_void,
    to: *mut c_void,
    input: u32,
    offset: u64,
    bytes: u64,
    _tag: u32,
) -> c_int {
    // SAFETY: the test passes a call, and the kernel a buffer of that length.
    let (call, to) = unsafe {
        let to = std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes as usize);
        (&*call.cast::<Call>(), to)
    };
    let (start, end) = (offset as usize, (offset + bytes) as usize);
    let Some(part) = call.input.get(start..end).filter(|_| input == 0) else {
        return -1;
    };
    to.copy_from_slice(part);
    0
}

unsafe extern "C" fn put(
    call: *mut c_void,
    output: u32,
    offset: u64,
    from: *const c_void,
    bytes: u64,
    _tag: u32,
) -> c_int {
    // SAFETY: as in `get`.
    let (call, from) = unsafe {
        let from = std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize);
        (&mut *call.cast::<Call>(), from)
    };
    let (start, end) = (offset as usize, (offset + bytes) as usize);
    let Some(part) = call.output.get_mut(start..end).filter(|_| output == 0) else {
        return -1;
    };
    part.copy_from_slice(from);
    0
}

unsafe extern "C" fn wait(_call: *mut c_void, _tags: u32) {}

unsafe extern "C" fn yield_now(call: *mut c_void) -> c_int {
    // SAFETY: as in `get`.
    c_int::from(unsafe { (*call.cast::<Call>()).unwanted })
}

unsafe extern "C" fn fail(call: *mut c_void, text: *const c_char) {
    // SAFETY: as in `get`; the kernel's text ends with 0.
    unsafe { (*call.cast::<Call>()).text = CStr::from_ptr(text).to_string_lossy().into_owned() };
}

static HOST: HostTable = HostTable {
    abi: ABI,
    bytes: size_of::<HostTable>() as u32,
    get,
    put,
    wait,
    yield_now,
    fail,
};

/// Copies input 0 to output 0 in the other order, and counts its runs.
struct Reverse;

impl Loadable for Reverse {
    const NAME: &'static CStr = c"reverse";
    const STORE_BYTES: usize = 64;
    type State = u64;

    fn run(run: &mut Run<'_, u64>) -> Result<(), String> {
        assert_ne!(run.words[0], 13, "an unlucky request");
        if run.host.is_unwanted() {
            return Err("abandoned".to_owned());
        }
        *run.state += 1;
        let bytes = run.input_bytes(0);
        let (part, _) = run.store.split_at_mut(bytes);
        run.host.get(0, 0, part)?;
        part.reverse();
        run.host.put(0, 0, part)?;
        *run.reply = [*run.state, 0, 0, 0, 0, run.words[5]];
        Ok(())
    }
}

/// Runs the kernel once; its status and reply.
fn run(state: *mut c_void, call: &mut Call, words: [u64; WORDS]) -> (c_int, [u64; WORDS]) {
    let (mut store, mut reply) = ([0; 64], [0; WORDS]);
    let (inputs, outputs) = ([call.input.len() as u64], [call.output.len() as u64]);
    let mut raw = RawRun {
        host: &HOST,
        call: std::ptr::from_mut(call).cast(),
        state,
        store: store.as_mut_ptr(),
        store_bytes: store.len() as u64,
        words: words.as_ptr(),
        reply: reply.as_mut_ptr(),
        input_bytes: inputs.as_ptr(),
        output_bytes: outputs.as_ptr(),
        inputs: 1,
        outputs: 1,
    };
    let kernel = export::kernel::<Reverse>();
    // SAFETY: everything that the request points to lives here, and the state is the kernel's.
    let status = unsafe { kernel.run.unwrap()(&mut raw) };
    (status, reply)
}

#[test]
fn a_kernel_works_fails_panics_and_keeps_its_state() {
    let kernel = export::kernel::<Reverse>();
    // SAFETY: a function of the kernel, called as the header says.
    let state = unsafe { kernel.create.unwrap()() };
    let mut call = Call {
        input: b"abc".to_vec(),
        output: vec![0; 4],
        ..Call::default()
    };
    assert_eq!(run(state, &mut call, [7; WORDS]), (0, [1, 0, 0, 0, 0, 7]));
    assert_eq!(call.output, b"cba\0");
    call.output.truncate(2);
    assert_eq!(run(state, &mut call, [7; WORDS]).0, -1);
    assert_eq!(call.text, "a transfer beyond the end of its range");
    assert_eq!(run(state, &mut call, [13; WORDS]).0, -1);
    assert_eq!(call.text, "the kernel panicked");
    call.unwanted = true;
    assert_eq!(run(state, &mut call, [7; WORDS]).0, -1);
    assert_eq!(call.text, "abandoned");
    (call.unwanted, call.output) = (false, vec![0; 3]);
    assert_eq!(run(state, &mut call, [7; WORDS]).1[0], 3);
    // SAFETY: as above; it is not used again.
    unsafe { kernel.destroy.unwrap()(state) };
}
