#![doc = include_str!("../README.md")]
//!
//! Top-down: [`Loadable`] is a kernel, [`Run`] one request of it, [`export_kernels!`] makes an
//! object of kernels; [`raw`] are the types of the header, for loaders of objects.
//!
//! Must stay true: [`raw`] and include/sidecore_kernel.h are the same (a test of sidecore-loader
//! runs kernels of both); a panic of a kernel is a failure of its request. The local store is lent
//! for one run. No dependency, so that an object is small.

#[doc(hidden)]
pub mod export;
pub mod raw;
mod run;

pub use run::{Host, OutOfRange, Run};

use core::ffi::CStr;

/// A kernel of a shared object. The rules are those at the top of sidecore_kernel.h.
pub trait Loadable: 'static {
    /// Name by which clients call it; 1 to 40 bytes.
    const NAME: &'static CStr;
    /// Changes when words, ranges or results change their meaning.
    const VERSION: u32 = 1;
    /// Bytes of local store that a run needs at most.
    const STORE_BYTES: usize = 0;
    /// State that stays on an engine between runs.
    type State: Default + Send + 'static;

    /// Runs one request on an engine.
    ///
    /// # Errors
    /// Whatever keeps it from giving a result; the client gets the first 64 bytes of the text.
    fn run(run: &mut Run<'_, Self::State>) -> Result<(), String>;
}

/// Exports kernels from a shared object (`crate-type = ["cdylib"]`). Once in an object.
#[macro_export]
macro_rules! export_kernels {
    ($($kernel:ty),+ $(,)?) => {
        /// The one function that a daemon looks for.
        #[unsafe(no_mangle)]
        pub extern "C" fn sidecore_kernel_module() -> *const $crate::raw::Module {
            static KERNELS: &[$crate::raw::Kernel] = &[$($crate::export::kernel::<$kernel>()),+];
            static MODULE: $crate::raw::Module = $crate::raw::Module::of(KERNELS);
            &MODULE
        }
    };
}

/// Exports the limits that an object's kernels need: microseconds of processor time for a request,
/// bytes of memory and of stack for their process; 0 for a daemon's default. At most once in an
/// object.
#[macro_export]
macro_rules! export_limits {
    ($time_us:expr, $memory_bytes:expr, $stack_bytes:expr $(,)?) => {
        /// The function by which a daemon asks for limits.
        #[unsafe(no_mangle)]
        pub extern "C" fn sidecore_kernel_limits() -> *const $crate::raw::Limits {
            static LIMITS: $crate::raw::Limits =
                $crate::raw::Limits::of($time_us, $memory_bytes, $stack_bytes);
            &LIMITS
        }
    };
}

/// The text of sidecore_kernel.h, for programs that compile kernels.
pub const HEADER: &str = include_str!("../include/sidecore_kernel.h");

#[cfg(test)]
mod tests {
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
        unsafe {
            (*call.cast::<Call>()).text = CStr::from_ptr(text).to_string_lossy().into_owned()
        };
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
}
