//! Streams by this library and by the base library, in the shortest words.

#![allow(dead_code)] // each test uses some

use libz_rs_sys::*;
use sidecore_random::choices::Choices;

/// A stream as C programs begin with: all zero.
pub(crate) fn blank() -> z_stream {
    z_stream {
        zalloc: None,
        zfree: None,
        opaque: std::ptr::null_mut(),
        ..z_stream::default()
    }
}

/// Text of a few letters with repetitions, letters each half as frequent as the one before (whose
/// codes are long), noise, or zeros, from a seed.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut choices = Choices::seeded(seed);
    let letters = [1, 4, 30, 256, 0][choices.below(5) as usize];
    let mut raw: Vec<u8> = Vec::with_capacity(len + 300);
    while raw.len() < len {
        if raw.len() > 10 && choices.below(3) == 0 {
            let back = 1 + choices.below(raw.len().min(40_000) as u64) as usize;
            for _ in 0..3 + choices.below(260) {
                raw.push(raw[raw.len() - back]);
            }
        } else if letters == 0 {
            raw.push(choices.bits().leading_zeros() as u8);
        } else {
            raw.push(choices.below(letters) as u8);
        }
    }
    raw.truncate(len);
    raw
}

/// Bytes that do not compress.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut choices = Choices::seeded(seed);
    (0..len).map(|_| choices.below(256) as u8).collect()
}

/// Inflates with this library, a piece of input and a room at a time; returns its output, and the
/// input that it took.
pub(crate) fn inflate_in_pieces(
    stream: &[u8],
    window_bits: i32,
    piece: usize,
    room: usize,
    finish: bool,
) -> (Vec<u8>, usize) {
    let mut z = ours::inflate_init(window_bits);
    let (mut out, mut raw) = (vec![0; room], Vec::new());
    let mut at = 0;
    loop {
        let part = &stream[at..stream.len().min(at + piece)];
        (z.next_in, z.avail_in) = (part.as_ptr(), part.len() as u32);
        (z.next_out, z.avail_out) = (out.as_mut_ptr(), room as u32);
        let is_rest = at + part.len() == stream.len();
        let flush = if finish && is_rest {
            Z_FINISH
        } else {
            Z_NO_FLUSH
        };
        // SAFETY: both buffers are there.
        let code = unsafe { sidecore_z::inflate(&mut *z, flush) };
        let (took, made) = (
            part.len() - z.avail_in as usize,
            room - z.avail_out as usize,
        );
        at += took;
        raw.extend(&out[..made]);
        assert_eq!((z.total_in as usize, z.total_out as usize), (at, raw.len()));
        if code == Z_STREAM_END {
            break;
        }
        assert!(code == Z_OK || code == Z_BUF_ERROR, "{code} at {at}");
        assert!(
            took + made > 0,
            "it stands still at {at} of {}: {code}",
            stream.len()
        );
    }
    // SAFETY: both are there; the stream is not used again.
    unsafe {
        assert_eq!(sidecore_z::inflate(&mut *z, Z_NO_FLUSH), Z_STREAM_END);
        assert_eq!(sidecore_z::inflateEnd(&mut *z), Z_OK);
    }
    (raw, at)
}

pub(crate) mod ours {
    use super::*;

    pub(crate) fn deflate_init(level: i32, window_bits: i32, strategy: i32) -> Box<z_stream> {
        let mut z = Box::new(blank());
        // SAFETY: a stream that is to be begun.
        let code = unsafe {
            let bytes = size_of::<z_stream>() as i32;
            let version = sidecore_z::zlibVersion();
            sidecore_z::deflateInit2_(&mut *z, level, 8, window_bits, 8, strategy, version, bytes)
        };
        assert_eq!(code, Z_OK);
        z
    }

    pub(crate) fn inflate_init(window_bits: i32) -> Box<z_stream> {
        let mut z = Box::new(blank());
        // SAFETY: a stream that is to be begun.
        let code = unsafe {
            let bytes = size_of::<z_stream>() as i32;
            sidecore_z::inflateInit2_(&mut *z, window_bits, sidecore_z::zlibVersion(), bytes)
        };
        assert_eq!(code, Z_OK);
        z
    }

    /// One call for everything; its code, input taken and output made.
    pub(crate) fn inflate_once(
        stream: &[u8],
        window_bits: i32,
        room: usize,
    ) -> (i32, u64, Vec<u8>) {
        let mut z = inflate_init(window_bits);
        let mut out = vec![0; room];
        (z.next_in, z.avail_in) = (stream.as_ptr(), stream.len() as u32);
        (z.next_out, z.avail_out) = (out.as_mut_ptr(), room as u32);
        // SAFETY: both buffers are there; the stream is not used again.
        let code = unsafe { sidecore_z::inflate(&mut *z, Z_FINISH) };
        out.truncate(z.total_out as usize);
        // SAFETY: as above.
        unsafe { sidecore_z::inflateEnd(&mut *z) };
        (code, z.total_in, out)
    }
}

pub(crate) mod theirs {
    use super::*;

    fn init(window_bits: i32) -> z_stream {
        let mut z = blank();
        // SAFETY: a stream that is to be begun.
        let code = unsafe {
            inflateInit2_(
                &mut z,
                window_bits,
                zlibVersion(),
                size_of::<z_stream>() as i32,
            )
        };
        assert_eq!(code, Z_OK);
        z
    }

    /// The whole stream, which must end where its bytes do.
    pub(crate) fn inflate(stream: &[u8], window_bits: i32, raw_bytes: usize) -> Vec<u8> {
        let (code, consumed, out) = inflate_once(stream, window_bits, raw_bytes + 1);
        assert_eq!((code, consumed as usize), (Z_STREAM_END, stream.len()));
        out
    }

    pub(crate) fn inflate_once(
        stream: &[u8],
        window_bits: i32,
        room: usize,
    ) -> (i32, u64, Vec<u8>) {
        let mut z = init(window_bits);
        let mut out = vec![0; room];
        (z.next_in, z.avail_in) = (stream.as_ptr(), stream.len() as u32);
        (z.next_out, z.avail_out) = (out.as_mut_ptr(), room as u32);
        // SAFETY: both buffers are there; the stream is not used again.
        let code = unsafe { super::inflate(&mut z, Z_FINISH) };
        out.truncate(z.total_out as usize);
        // SAFETY: as above.
        unsafe { inflateEnd(&mut z) };
        (code, z.total_in, out)
    }

    /// The output that the beginning of a stream gives.
    pub(crate) fn inflate_part(stream: &[u8], window_bits: i32) -> Vec<u8> {
        let mut z = init(window_bits);
        (z.next_in, z.avail_in) = (stream.as_ptr(), stream.len() as u32);
        let mut raw = Vec::new();
        loop {
            let mut out = vec![0; 100_000];
            (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
            // SAFETY: both buffers are there.
            let code = unsafe { super::inflate(&mut z, Z_SYNC_FLUSH) };
            raw.extend(&out[..out.len() - z.avail_out as usize]);
            if z.avail_out > 0 {
                assert!(code == Z_OK || code == Z_BUF_ERROR, "{code}");
                break;
            }
        }
        // SAFETY: not used again.
        unsafe { inflateEnd(&mut z) };
        raw
    }

    pub(crate) fn deflate(raw: &[u8], level: i32, window_bits: i32) -> Vec<u8> {
        let mut z = blank();
        let mut out = vec![0; raw.len() * 2 + 1000];
        // SAFETY: the buffers are there.
        unsafe {
            let bytes = size_of::<z_stream>() as i32;
            let code = deflateInit2_(&mut z, level, 8, window_bits, 8, 0, zlibVersion(), bytes);
            assert_eq!(code, Z_OK);
            (z.next_in, z.avail_in) = (raw.as_ptr(), raw.len() as u32);
            (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
            assert_eq!(super::deflate(&mut z, Z_FINISH), Z_STREAM_END);
            deflateEnd(&mut z);
        }
        out.truncate(z.total_out as usize);
        out
    }
}
