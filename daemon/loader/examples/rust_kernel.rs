//! A kernel in Rust, as a shared object: rotates letters by 13 places.
//!
//! Input 0 is the text, output 0 gets as many bytes; word 0 of the reply is how many. Built by
//! `cargo build -p sidecore-loader --example rust_kernel` as `librust_kernel.so`.

use sidecore_kernel_abi::{Loadable, Run, export_kernels};
use std::ffi::CStr;

struct Rot13;

impl Loadable for Rot13 {
    const NAME: &'static CStr = c"rot13";
    const STORE_BYTES: usize = 16 << 10;
    type State = ();

    fn run(run: &mut Run<'_, ()>) -> Result<(), String> {
        let total = run.input_bytes(0);
        let mut at = 0;
        while at < total {
            if run.host.is_unwanted() {
                return Err("rot13: abandoned".to_owned());
            }
            let bytes = run.store.len().min(total - at);
            let (part, _) = run.store.split_at_mut(bytes);
            run.host.get(0, at, part)?;
            part.iter_mut()
                .for_each(|letter| *letter = rotated(*letter));
            run.host.put(0, at, part)?;
            at += bytes;
        }
        run.reply[0] = total as u64;
        Ok(())
    }
}

fn rotated(letter: u8) -> u8 {
    let base = match letter {
        b'a'..=b'z' => b'a',
        b'A'..=b'Z' => b'A',
        other => return other,
    };
    base + (letter - base + 13) % 26
}

export_kernels!(Rot13);
