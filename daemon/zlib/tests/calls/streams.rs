//! Streams to inflate: made by the system's zlib in many ways, put together by hand, and damaged.

use crate::api::{Api, STREAM_BYTES};
use crate::common;
use libz_rs_sys::*;
use sidecore_random::choices::Choices;
use std::ptr;

/// Parameters of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) stream: Vec<u8>,
    pub(crate) window_bits: i32,
    /// Empty where none is needed.
    pub(crate) dictionary: Vec<u8>,
}

/// One of `values`.
pub(crate) fn one<T: Copy>(choices: &mut Choices, values: &[T]) -> T {
    values[choices.below(values.len() as u64) as usize]
}

/// Raw bytes, mostly few.
pub(crate) fn raw(choices: &mut Choices) -> Vec<u8> {
    let most = one(choices, &[4, 40, 40, 600, 600, 600, 5_000, 5_000, 40_000]);
    let most = if choices.below(40) == 0 {
        300_000
    } else {
        most
    };
    let len = choices.below(most) as usize;
    if choices.below(5) == 0 {
        common::noise(choices.bits(), len)
    } else {
        common::bytes(choices.bits(), len)
    }
}

/// A stream, perhaps with something behind it, perhaps damaged.
pub(crate) fn any(zlib: &Api, choices: &mut Choices) -> Made {
    let mut made = match choices.below(12) {
        0 => by_hand(choices),
        1 => Made {
            stream: choices.take(60),
            window_bits: one(choices, &[-15, -8, -15, 15, 47]),
            dictionary: Vec::new(),
        },
        _ => deflated(zlib, choices),
    };
    let bytes = &mut made.stream;
    match choices.below(8) {
        0 if !bytes.is_empty() => {
            let at = match choices.below(2) {
                0 => choices.below(bytes.len().min(30) as u64),
                _ => choices.below(bytes.len() as u64),
            };
            bytes[at as usize] ^= 1 << choices.below(8);
        }
        1 => {
            let len = choices.below(bytes.len() as u64 + 1) as usize;
            bytes.truncate(len);
        }
        2 => {
            let more = deflated(zlib, choices).stream;
            bytes.extend(more);
        }
        3 | 4 => {
            let more = choices.below(12) as usize;
            let more = choices.take(more);
            bytes.extend(more);
        }
        _ => {}
    }
    made
}

/// Made by the system's zlib.
fn deflated(zlib: &Api, choices: &mut Choices) -> Made {
    let raw = raw(choices);
    let window_bits = match choices.below(3) {
        0 => one(choices, &[8, 9, 10, 12, -9, -12, 25, 27, 30]),
        _ => one(choices, &[15, -15, 31]),
    };
    let level = choices.below(11) as i32 - 1;
    let strategy = match choices.below(3) {
        0 => choices.below(5) as i32,
        _ => 0,
    };
    let memory_level = 1 + choices.below(9) as i32;
    let dictionary = match choices.below(4) {
        0 if window_bits < 16 => common::bytes(choices.bits(), 1 + choices.below(900) as usize),
        _ => Vec::new(),
    };
    let (mut extra, mut name, mut comment) = (choices.take(5), *b"a name\0", *b"a comment\0");
    let given = choices.below(16);
    let pointer = |wanted: u64, place: *mut u8| {
        if given & wanted == 0 {
            ptr::null_mut()
        } else {
            place
        }
    };
    let mut header = gz_header {
        text: choices.below(2) as i32,
        time: choices.below(1 << 32),
        xflags: 0,
        os: 3,
        extra: pointer(1, extra.as_mut_ptr()),
        extra_len: extra.len() as u32,
        extra_max: 0,
        name: pointer(2, name.as_mut_ptr()),
        name_max: 0,
        comment: pointer(4, comment.as_mut_ptr()),
        comm_max: 0,
        hcrc: i32::from(given & 8 != 0),
        done: 0,
    };
    let with_header = choices.below(2) == 0;
    let mut z = common::blank();
    let mut out = vec![0; raw.len() * 2 + 100_000];
    // SAFETY: the buffers are there.
    unsafe {
        let version = (zlib.zlibVersion)();
        let code = (zlib.deflateInit2_)(
            &mut z,
            level,
            8,
            window_bits,
            memory_level,
            strategy,
            version,
            STREAM_BYTES,
        );
        assert_eq!(code, Z_OK);
        if window_bits > 15 && with_header {
            (zlib.deflateSetHeader)(&mut z, &mut header);
        }
        if !dictionary.is_empty() {
            let bytes = dictionary.len() as u32;
            (zlib.deflateSetDictionary)(&mut z, dictionary.as_ptr(), bytes);
        }
        (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
        let mut rest = &raw[..];
        while !rest.is_empty() && choices.below(3) != 0 {
            let take = choices.below(rest.len() as u64 + 1) as usize;
            (z.next_in, z.avail_in) = (rest.as_ptr(), take as u32);
            (zlib.deflate)(
                &mut z,
                choices.below(6) as i32 % 4 + choices.below(2) as i32,
            );
            if z.avail_in > 0 || (zlib.deflate)(&mut z, Z_NO_FLUSH) == Z_STREAM_ERROR {
                break;
            }
            rest = &rest[take..];
            if choices.below(4) == 0 {
                let level = choices.below(10) as i32;
                (zlib.deflateParams)(&mut z, level, choices.below(5) as i32);
            }
        }
        (z.next_in, z.avail_in) = (rest.as_ptr(), rest.len() as u32);
        (zlib.deflate)(&mut z, Z_FINISH);
        out.truncate(z.total_out as usize);
        (zlib.deflateEnd)(&mut z);
    }
    Made {
        stream: out,
        window_bits,
        dictionary,
    }
}

/// Stored blocks, empty ones too, and empty blocks of the fixed codes; raw.
fn by_hand(choices: &mut Choices) -> Made {
    let mut stream = Vec::new();
    for left in (0..choices.below(6)).rev() {
        let is_last = u8::from(left == 0);
        if choices.below(5) == 0 {
            // The three bits of a block's head, its end, and zeros, which begin a stored block.
            stream.extend([2 | is_last, 0]);
            if is_last == 0 {
                stream.extend([0, 0, 0xff, 0xff]);
            }
            continue;
        }
        let len = one(choices, &[0, 1, 3, 100, 300]) as u16;
        stream.push(is_last);
        stream.extend(len.to_le_bytes());
        stream.extend((!len).to_le_bytes());
        stream.extend(common::bytes(choices.bits(), len.into()));
    }
    Made {
        stream,
        window_bits: -15,
        dictionary: Vec::new(),
    }
}
