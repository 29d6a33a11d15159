//! Use at the edges of a stream: memory that runs out, fork and threads in the middle,
//! calls that zlib answers in its own way. Each case is one that went wrong before.

#![allow(unsafe_code)] // the tests call C functions
#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

mod common;

use common::{bytes, ours, theirs};
use libz_rs_sys::*;
use std::cell::Cell;
use std::ffi::c_void;
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;

/// Two raw streams become one: empty blocks of the fixed codes fill the first up to a byte's end,
/// as pigz does.
/// codes, as pigz does.
#[test]
fn a_flush_after_primed_bits_gives_them_out() {
    let raw = bytes(21, 300_000);
    for block in [1, 1_000, 40_000, 131_072] {
        let mut stream = Vec::new();
        let mut out = vec![0; 400_000];
        let mut z = ours::deflate_init(6, -15, 0);
        for (index, part) in raw.chunks(block).take(40).enumerate() {
            let is_last = (index + 1) * block >= raw.len() || index == 39;
            // SAFETY: the buffers are there.
            unsafe {
                assert_eq!(sidecore_z::deflateReset(&mut *z), Z_OK);
                assert_eq!(sidecore_z::deflateParams(&mut *z, 6, 0), Z_OK);
                let before = &raw[..index * block];
                let before = &before[before.len().saturating_sub(32_768)..];
                if !before.is_empty() {
                    let bytes = before.len() as u32;
                    let code = sidecore_z::deflateSetDictionary(&mut *z, before.as_ptr(), bytes);
                    assert_eq!(code, Z_OK);
                }
                (z.next_in, z.avail_in) = (part.as_ptr(), part.len() as u32);
                (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
                if is_last {
                    assert_eq!(sidecore_z::deflate(&mut *z, Z_FINISH), Z_STREAM_END);
                } else {
                    assert_eq!(sidecore_z::deflate(&mut *z, Z_BLOCK), Z_OK);
                    to_byte(&mut z);
                }
                stream.extend(&out[..out.len() - z.avail_out as usize]);
            }
        }
        let raw = &raw[..raw.len().min(40 * block)];
        assert!(theirs::inflate(&stream, -15, raw.len()) == raw, "{block}");
        // SAFETY: not used again.
        unsafe { sidecore_z::deflateEnd(&mut *z) };
    }
}

/// # Safety
/// A stream with room.
unsafe fn to_byte(z: &mut z_stream) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut bits = -1;
        sidecore_z::deflatePending(z, ptr::null_mut(), &mut bits);
        assert!((0..8).contains(&bits), "{bits}");
        if bits & 1 == 1 {
            assert_eq!(sidecore_z::deflate(z, Z_SYNC_FLUSH), Z_OK);
        } else if bits != 0 {
            while bits != 0 {
                assert_eq!(sidecore_z::deflatePrime(z, 10, 2), Z_OK);
                sidecore_z::deflatePending(z, ptr::null_mut(), &mut bits);
            }
            assert_eq!(sidecore_z::deflate(z, Z_BLOCK), Z_OK);
        }
        sidecore_z::deflatePending(z, ptr::null_mut(), &mut bits);
        assert_eq!(bits, 0, "a byte's end");
    }
}

#[test]
fn a_stored_block_is_read_with_every_flush() {
    let stream = [
        0, 5, 0, 0xfa, 0xff, b'h', b'e', b'l', b'l', b'o', 1, 1, 0, 0xfe, 0xff, b'!',
    ];
    for flush in [Z_NO_FLUSH, Z_SYNC_FLUSH, Z_BLOCK, Z_TREES] {
        for (piece, room) in [(16, 64), (1, 1), (3, 64)] {
            let mut z = ours::inflate_init(-15);
            let (mut raw, mut at, mut code) = (Vec::new(), 0, Z_OK);
            for _ in 0..200 {
                let mut out = vec![0; room];
                let part = &stream[at..stream.len().min(at + piece)];
                (z.next_in, z.avail_in) = (part.as_ptr(), part.len() as u32);
                (z.next_out, z.avail_out) = (out.as_mut_ptr(), room as u32);
                // SAFETY: the buffers are there.
                code = unsafe { sidecore_z::inflate(&mut *z, flush) };
                at += part.len() - z.avail_in as usize;
                raw.extend(&out[..room - z.avail_out as usize]);
                if code != Z_OK && code != Z_BUF_ERROR {
                    break;
                }
            }
            assert_eq!(
                (code, &raw[..]),
                (Z_STREAM_END, &b"hello!"[..]),
                "{flush} {piece}"
            );
            // SAFETY: not used again.
            unsafe { sidecore_z::inflateEnd(&mut *z) };
        }
    }
}

/// A finish without room, then another flush: an error where zlib has one, and never a byte less.
#[test]
fn what_follows_an_unfinished_finish_is_not_lost() {
    let raw = bytes(8, 60_000);
    for (level, strategy, first) in [(6, 0, 50_000), (6, 2, 50_000), (0, 0, 50_000), (6, 0, 10)] {
        for room in [1, 20, 4_000, 30_000] {
            let mut z = ours::deflate_init(level, 15, strategy);
            let mut stream = Vec::new();
            let mut taken = 0;
            for flush in [Z_FINISH, Z_NO_FLUSH, Z_SYNC_FLUSH, Z_FINISH] {
                let end = if flush == Z_FINISH {
                    first
                } else {
                    first + 5_000
                };
                let part = &raw[taken..end.max(taken)];
                let mut out = vec![0; room];
                (z.next_in, z.avail_in) = (part.as_ptr(), part.len() as u32);
                (z.next_out, z.avail_out) = (out.as_mut_ptr(), room as u32);
                // SAFETY: the buffers are there.
                let code = unsafe { sidecore_z::deflate(&mut *z, flush) };
                assert!(matches!(
                    code,
                    Z_OK | Z_STREAM_ERROR | Z_BUF_ERROR | Z_STREAM_END
                ));
                let used = part.len() - z.avail_in as usize;
                assert!(used == 0 || code == Z_OK || code == Z_STREAM_END, "{code}");
                taken += used;
                stream.extend(&out[..room - z.avail_out as usize]);
            }
            loop {
                let mut out = vec![0; 1_000];
                z.avail_in = 0;
                (z.next_out, z.avail_out) = (out.as_mut_ptr(), 1_000);
                // SAFETY: the buffer is there.
                let code = unsafe { sidecore_z::deflate(&mut *z, Z_FINISH) };
                stream.extend(&out[..1_000 - z.avail_out as usize]);
                if code == Z_STREAM_END {
                    break;
                }
                assert_eq!(code, Z_OK);
            }
            assert!(
                theirs::inflate(&stream, 15, taken) == raw[..taken],
                "{level} {room}"
            );
            // SAFETY: not used again.
            assert_eq!(unsafe { sidecore_z::deflateEnd(&mut *z) }, Z_OK);
        }
    }
}

#[test]
fn the_checksum_field_of_a_raw_stream_is_the_programs() {
    let mut out = [0; 100];
    let mut z = ours::deflate_init(6, -15, 0);
    assert_eq!(z.adler, 1);
    z.adler = 0x1234_5678;
    (z.next_in, z.avail_in) = (b"hello".as_ptr(), 5);
    (z.next_out, z.avail_out) = (out.as_mut_ptr(), 100);
    // SAFETY: the buffers are there; the stream is not used again.
    unsafe {
        assert_eq!(sidecore_z::deflate(&mut *z, Z_FINISH), Z_STREAM_END);
        sidecore_z::deflateEnd(&mut *z);
    }
    assert_eq!(z.adler, 0x1234_5678);
    let mut again = [0; 5];
    let mut z = ours::inflate_init(-15);
    z.adler = 0x1234_5678;
    (z.next_in, z.avail_in) = (out.as_ptr(), 100);
    (z.next_out, z.avail_out) = (again.as_mut_ptr(), 5);
    // SAFETY: the buffers are there; the stream is not used again.
    unsafe {
        assert_eq!(sidecore_z::inflate(&mut *z, Z_FINISH), Z_STREAM_END);
        sidecore_z::inflateEnd(&mut *z);
    }
    assert_eq!((z.adler, &again), (0x1234_5678, b"hello"));
}

/// An allocator that fails from some call on, and counts its live blocks.
struct Short {
    left: Cell<i32>,
    lent: Cell<i32>,
}

unsafe extern "C" fn allocate(short: *mut c_void, items: u32, size: u32) -> *mut c_void {
    // SAFETY: as the tests pass it.
    let short = unsafe { &*short.cast::<Short>() };
    if short.left.get() == 0 {
        return ptr::null_mut();
    }
    short.left.set(short.left.get() - 1);
    short.lent.set(short.lent.get() + 1);
    // SAFETY: malloc takes any size.
    unsafe { libc::malloc(items as usize * size as usize) }
}

unsafe extern "C" fn free(short: *mut c_void, address: *mut c_void) {
    // SAFETY: as the tests pass it.
    let short = unsafe { &*short.cast::<Short>() };
    short.lent.set(short.lent.get() - 1);
    // SAFETY: from malloc above.
    unsafe { libc::free(address) };
}

fn short_stream(short: &Short) -> Box<z_stream> {
    Box::new(z_stream {
        zalloc: Some(allocate),
        zfree: Some(free),
        opaque: ptr::from_ref(short).cast_mut().cast(),
        ..common::blank()
    })
}

/// zlib has all of its memory when a stream begins: no later call of `deflate` may fail for want of
/// it. Nothing is kept, whichever call fails.
#[test]
fn memory_that_runs_out_is_an_error_once_and_never_a_leak() {
    let raw = bytes(17, 400_000);
    let mut out = vec![0; 500_000];
    let version = sidecore_z::zlibVersion();
    for level in [6, 0] {
        for window_bits in [15, 31, -9] {
            for allowed in 0..6 {
                let short = Short {
                    left: Cell::new(allowed),
                    lent: Cell::new(0),
                };
                let mut z = short_stream(&short);
                let bytes = size_of::<z_stream>() as i32;
                // SAFETY: the buffers and the allocator are there.
                unsafe {
                    let code = sidecore_z::deflateInit2_(
                        &mut *z,
                        level,
                        8,
                        window_bits,
                        8,
                        0,
                        version,
                        bytes,
                    );
                    assert!(
                        code == Z_OK || (code == Z_MEM_ERROR && allowed < 3),
                        "{code}"
                    );
                    if code == Z_OK {
                        (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
                        for (part, flush) in [(&raw[..9], Z_SYNC_FLUSH), (&raw[9..], Z_FINISH)] {
                            (z.next_in, z.avail_in) = (part.as_ptr(), part.len() as u32);
                            let code = sidecore_z::deflate(&mut *z, flush);
                            assert!(code == Z_OK || code == Z_STREAM_END, "{code}");
                        }
                        let made = &out[..z.total_out as usize];
                        assert!(theirs::inflate(made, window_bits, raw.len()) == raw);
                        assert_eq!(sidecore_z::deflateEnd(&mut *z), Z_OK);
                    }
                }
                assert_eq!(short.lent.get(), 0, "{level} {window_bits} {allowed}");
            }
        }
    }
    let stream = theirs::deflate(&raw, 6, 15);
    for allowed in 0..3 {
        let short = Short {
            left: Cell::new(allowed),
            lent: Cell::new(0),
        };
        let mut z = short_stream(&short);
        // SAFETY: the buffers and the allocator are there.
        unsafe {
            let code =
                sidecore_z::inflateInit2_(&mut *z, 15, version, size_of::<z_stream>() as i32);
            assert_eq!(code, if allowed == 0 { Z_MEM_ERROR } else { Z_OK });
            if code == Z_OK {
                (z.next_in, z.avail_in) = (stream.as_ptr(), 1_000);
                (z.next_out, z.avail_out) = (out.as_mut_ptr(), 500);
                let wanted = if allowed == 1 { Z_MEM_ERROR } else { Z_OK };
                assert_eq!(sidecore_z::inflate(&mut *z, Z_NO_FLUSH), wanted);
                let mut copy = Box::new(common::blank());
                let code = sidecore_z::inflateCopy(&mut *copy, &mut *z);
                assert_eq!(code, Z_MEM_ERROR, "{allowed}");
                assert_eq!(sidecore_z::inflateEnd(&mut *z), Z_OK);
            }
        }
        assert_eq!(short.lent.get(), 0, "inflate {allowed}");
    }
}

/// A child goes on with a stream that its parent began, and so does the parent.
#[test]
fn fork_in_the_middle_of_a_stream() {
    let raw = bytes(31, 900_000);
    let mut out = vec![0; 1_000_000];
    for strategy in [0, 2] {
        let mut z = ours::deflate_init(6, 15, strategy);
        (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
        (z.next_in, z.avail_in) = (raw.as_ptr(), 400_000);
        // SAFETY: the buffers are there.
        assert_eq!(unsafe { sidecore_z::deflate(&mut *z, Z_NO_FLUSH) }, Z_OK);
        let finish = |z: &mut z_stream| {
            (z.next_in, z.avail_in) = (raw[400_000..].as_ptr(), 500_000);
            // SAFETY: the buffers are there.
            unsafe { sidecore_z::deflate(z, Z_FINISH) == Z_STREAM_END }
        };
        // SAFETY: the child only makes the tested calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                finish(&mut z)
                    && theirs::inflate(&out[..z.total_out as usize], 15, raw.len()) == raw
            }));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_right.unwrap_or(false))) };
        }
        assert!(finish(&mut z));
        assert!(theirs::inflate(&out[..z.total_out as usize], 15, raw.len()) == raw);
        let mut status = -1;
        // SAFETY: our child; the stream is not used again.
        unsafe {
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            sidecore_z::deflateEnd(&mut *z);
        }
        assert_eq!(status, 0, "the child's stream");
    }
}

/// A stream is one thread's at a time, and any thread's after another.
#[test]
fn threads_hand_streams_on() {
    struct Moved(Box<z_stream>);
    // SAFETY: as zlib allows: one thread at a time.
    unsafe impl Send for Moved {}
    let raw = bytes(41, 600_000);
    std::thread::scope(|scope| {
        for seed in 0..4_i32 {
            let raw = &raw;
            scope.spawn(move || {
                let (strategy, mut stream) = (seed % 2 * 2, Vec::new());
                let mut moved = Moved(ours::deflate_init(1 + seed * 2, 31, strategy));
                let mut parts = raw.chunks(70_000 + seed as usize).peekable();
                while let Some(part) = parts.next() {
                    let flush = if parts.peek().is_none() {
                        Z_FINISH
                    } else {
                        Z_NO_FLUSH
                    };
                    let work = move || {
                        let mut moved = moved;
                        let z = &mut moved.0;
                        let mut out = vec![0; 700_000];
                        (z.next_in, z.avail_in) = (part.as_ptr(), part.len() as u32);
                        (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
                        // SAFETY: the buffers are there.
                        let code = unsafe { sidecore_z::deflate(&mut **z, flush) };
                        assert!(code == Z_OK || code == Z_STREAM_END, "{code}");
                        out.truncate(out.len() - z.avail_out as usize);
                        (moved, out)
                    };
                    let (back, out) = std::thread::scope(|one| one.spawn(work).join().unwrap());
                    moved = back;
                    stream.extend(out);
                }
                // SAFETY: not used again.
                assert_eq!(unsafe { sidecore_z::deflateEnd(&mut *moved.0) }, Z_OK);
                assert!(theirs::inflate(&stream, 31, raw.len()) == *raw);
            });
        }
    });
}

#[test]
fn a_gap_in_a_gzip_file_is_filled_with_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gap.gz");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // Uninitialized memory must not appear in a file: leave some contents there.
    for _ in 0..4 {
        drop(vec![0xaa_u8; 300_000]);
    }
    // By every function that fills it; the last one writes nothing behind the gap.
    for (fill, more) in [1, 1, 1, 1, 0, 0, 0].into_iter().enumerate() {
        let mut raw = [7_u8; 3_000];
        // SAFETY: the buffers are there.
        unsafe {
            let file = sidecore_z::gzopen(name.as_ptr(), c"wb".as_ptr());
            // The size of the buffer may be chosen until then, as with zlib.
            assert_eq!(sidecore_z::gzseek(file, 0, 1), 0);
            assert_eq!(sidecore_z::gzbuffer(file, 500), 0);
            assert_eq!(sidecore_z::gzseek(file, 2_000, 0), 2_000);
            assert_eq!(sidecore_z::gzbuffer(file, 1_000), 0);
            assert!(match fill {
                0 => sidecore_z::gzputc(file, 9) == 9,
                1 => sidecore_z::gzputs(file, c"\t".as_ptr()) == 1,
                2 => sidecore_z::gzwrite(file, [9_u8].as_ptr().cast(), 1) == 1,
                3 => sidecore_z::gzfwrite([9_u8].as_ptr().cast(), 1, 1, file) == 1,
                4 => sidecore_z::gzflush(file, Z_SYNC_FLUSH) == Z_OK,
                5 => sidecore_z::gzsetparams(file, 1, 0) == Z_OK,
                _ => true,
            });
            assert_eq!(sidecore_z::gzclose(file), Z_OK);
            let file = sidecore_z::gzopen(name.as_ptr(), c"rb".as_ptr());
            let read = sidecore_z::gzread(file, raw.as_mut_ptr().cast(), 3_000);
            assert_eq!(read, 2_000 + more as i32);
            // A file that is read keeps its seeks.
            assert_eq!(sidecore_z::gzseek(file, 0, 0), 0);
            assert_eq!(sidecore_z::gzseek(file, 5, 0), 5);
            assert_eq!(sidecore_z::gzwrite(file, raw.as_ptr().cast(), 1), 0);
            assert_eq!(sidecore_z::gztell(file), 5);
            assert_eq!(sidecore_z::gzclose(file), Z_OK);
        }
        assert!(raw[..2_000].iter().all(|&byte| byte == 0));
        assert!(raw[2_000..2_000 + more].iter().all(|&byte| byte == 9));
    }
}

#[test]
fn a_file_that_cannot_be_written_says_so_until_it_is_closed() {
    if !std::path::Path::new("/dev/full").exists() {
        eprintln!("NOT TESTED: /dev/full is missing");
        return;
    }
    // More than a block, which does not fit the buffer, and noise, which stays as long as it is.
    let raw = common::noise(5, 300_000);
    // SAFETY: C strings, and the buffers are there.
    unsafe {
        let file = sidecore_z::gzopen(c"/dev/full".as_ptr(), c"wb".as_ptr());
        assert_eq!(sidecore_z::gzbuffer(file, 600), 0);
        let write = || sidecore_z::gzwrite(file, raw.as_ptr().cast(), 300_000);
        assert_eq!(write(), 0);
        let mut code = Z_OK;
        let text = std::ffi::CStr::from_ptr(sidecore_z::gzerror(file, &mut code));
        assert_eq!(code, Z_ERRNO);
        assert_eq!(text, c"/dev/full: No space left on device");
        assert_eq!(write(), 0, "it has failed before");
        assert_eq!(sidecore_z::gzputc(file, 1), -1);
        assert_eq!(sidecore_z::gzflush(file, Z_SYNC_FLUSH), Z_STREAM_ERROR);
        sidecore_z::gzclearerr(file);
        sidecore_z::gzerror(file, &mut code);
        assert_eq!(code, Z_OK);
        assert_eq!(write(), 0, "there is no more room than before");
        // Not a function of a file that is written.
        let mut byte = 0_u8;
        assert_eq!(sidecore_z::gzread(file, (&raw mut byte).cast(), 1), -1);
        assert!(sidecore_z::gzgets(file, (&raw mut byte).cast(), 1).is_null());
        assert_eq!(sidecore_z::gzclose_r(file), Z_STREAM_ERROR);
        assert_eq!(sidecore_z::gzclose(file), Z_ERRNO);
        // Its end is not lost by an earlier call that could not write it.
        let file = sidecore_z::gzopen(c"/dev/full".as_ptr(), c"wb".as_ptr());
        assert_eq!(sidecore_z::gzputs(file, c"one".as_ptr()), 3);
        assert_eq!(sidecore_z::gzflush(file, Z_FINISH), Z_ERRNO);
        assert_eq!(sidecore_z::gzclose(file), Z_ERRNO);
    }
}

/// As of a program that does not block, and goes on once its reader has taken some.
#[test]
fn the_end_of_a_member_waits_for_its_reader() {
    // An end that fits the buffer, and one that is written in parts; with and without more input.
    for (buffer, len, more) in [
        (600, 3, 0),
        (600, 3, 5),
        (70_001, 70_000, 0),
        (70_001, 70_000, 5),
    ] {
        let (mut reader, mut writer) = UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let mut filled = 0;
        while let Ok(count) = writer.write(&[0_u8; 1_000]) {
            filled += count;
        }
        let raw = common::noise(7, len + more);
        // SAFETY: the descriptor is the file's from here on, and the buffers are there.
        let file = unsafe { sidecore_z::gzdopen(writer.into_raw_fd(), c"wb".as_ptr()) };
        let write = |part: &[u8]| {
            let (bytes, len) = (part.as_ptr().cast(), part.len());
            // SAFETY: as above.
            let written = unsafe { sidecore_z::gzfwrite(bytes, 1, len, file) };
            assert_eq!(written, len);
        };
        // SAFETY: as above.
        unsafe {
            assert_eq!(sidecore_z::gzbuffer(file, buffer), 0);
            write(&raw[..len]);
            assert_eq!(sidecore_z::gzflush(file, Z_FINISH), Z_ERRNO);
            sidecore_z::gzclearerr(file);
            if more > 0 {
                write(&raw[len..]);
            }
            reader.read_exact(&mut vec![0_u8; filled]).unwrap();
            assert_eq!(sidecore_z::gzclose(file), Z_OK);
        }
        let mut stream = Vec::new();
        reader.read_to_end(&mut stream).unwrap();
        let (code, taken, made) = ours::inflate_once(&stream, 31, len + 1);
        assert!(code == Z_STREAM_END && made == raw[..len], "{buffer} {len}");
        let rest = &stream[taken as usize..];
        assert_eq!(rest.is_empty(), more == 0);
        if more > 0 {
            let (code, _, made) = ours::inflate_once(rest, 31, more + 1);
            assert!(code == Z_STREAM_END && made == raw[len..], "{buffer} {len}");
        }
    }
}

#[test]
fn a_file_of_several_members_is_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("members.gz");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let raw = bytes(31, 400_000);
    let parts = [&raw[..150_000], &raw[150_000..150_001], &raw[150_001..]];
    // SAFETY: C strings, and the buffers are there.
    unsafe {
        for (mode, parts) in [(c"wb9", &parts[..2]), (c"ab", &parts[2..])] {
            let file = sidecore_z::gzopen(name.as_ptr(), mode.as_ptr());
            for part in parts {
                let len = part.len();
                assert_eq!(
                    sidecore_z::gzfwrite(part.as_ptr().cast(), 1, len, file),
                    len
                );
                assert_eq!(sidecore_z::gzflush(file, Z_FINISH), Z_OK);
                assert_eq!(sidecore_z::gzsetparams(file, 1, 0), Z_OK);
            }
            // Nothing is left: no empty member follows.
            assert_eq!(sidecore_z::gzclose(file), Z_OK);
        }
    }
    let file = std::fs::read(&path).unwrap();
    let mut rest = file.as_slice();
    for part in parts {
        let (code, taken, made) = ours::inflate_once(rest, 31, part.len() + 1);
        assert!(code == Z_STREAM_END && made == part);
        rest = &rest[taken as usize..];
    }
    assert!(rest.is_empty());
}
