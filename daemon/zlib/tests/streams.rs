//! Any sequence of calls gives a stream that the base library inflates, and the other way about.

#![allow(unsafe_code)] // the tests call C functions
#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

mod common;

use common::{bytes, inflate_in_pieces, ours, theirs};
use libz_rs_sys::*;
use proptest::prelude::*;
use std::ptr;

/// One call, or a few, on a deflating stream.
#[derive(Debug, Clone)]
enum Step {
    /// Input, the room of each call, and the flush that is repeated until it is done.
    Deflate(usize, usize, i32),
    Parameters(i32, i32),
    /// Goes on with a copy of the stream.
    Copy,
    Tune,
}

fn step() -> impl Strategy<Value = Step> {
    let input = prop_oneof![0usize..20, 0usize..5_000, 0usize..300_000];
    // Less than 7 would ask for the same flush again and again, says the manual.
    let room = prop_oneof![7usize..30, 100usize..20_000, Just(1 << 20)];
    prop_oneof![
        8 => (input, room, 0..=5i32).prop_map(|(input, room, flush)| {
            // Rooms of a few bytes take long for much input.
            let room = if input > 5_000 { room.max(100) } else { room };
            Step::Deflate(input, room, flush)
        }),
        1 => (-1..=9i32, 0..=4i32).prop_map(|(level, strategy)| Step::Parameters(level, strategy)),
        1 => Just(Step::Copy),
        1 => Just(Step::Tune),
    ]
}

fn window_bits() -> impl Strategy<Value = i32> {
    prop_oneof![
        4 => prop::sample::select(vec![15, 31, -15]),
        1 => prop::sample::select(vec![9, 12, 25, -9, -12]),
    ]
}

/// A stream that was made by steps, with its length after each flush that promises all input so
/// far: bytes of output, bytes of input.
struct Made {
    stream: Vec<u8>,
    promised: Vec<(usize, usize)>,
}

/// # Safety
/// None beyond zlib's own: the buffers are this function's.
unsafe fn run(raw: &[u8], level: i32, window_bits: i32, strategy: i32, steps: &[Step]) -> Made {
    let mut z = ours::deflate_init(level, window_bits, strategy);
    let (mut stream, mut promised) = (Vec::new(), Vec::new());
    let mut fed = 0_usize;
    let finish = [Step::Deflate(usize::MAX, 100_000, Z_FINISH)];
    for step in steps.iter().chain(&finish) {
        match *step {
            Step::Deflate(input, room, flush) => {
                // A forbidden call is left out: nothing follows the end.
                let flush = if flush == Z_FINISH && input != usize::MAX {
                    Z_NO_FLUSH
                } else {
                    flush
                };
                let part = &raw[fed..raw.len().min(fed.saturating_add(input))];
                fed += part.len();
                z.next_in = part.as_ptr();
                z.avail_in = part.len() as u32;
                loop {
                    let mut out = vec![0; room];
                    z.next_out = out.as_mut_ptr();
                    z.avail_out = room as u32;
                    // SAFETY: both buffers are there.
                    let code = unsafe { sidecore_z::deflate(&mut *z, flush) };
                    let written = room - z.avail_out as usize;
                    stream.extend(&out[..written]);
                    if code == Z_STREAM_END {
                        assert_eq!((flush, z.avail_in), (Z_FINISH, 0));
                        break;
                    }
                    // Nothing to do, which ends no stream.
                    assert!(code == Z_OK || code == Z_BUF_ERROR, "{code}");
                    assert!(code == Z_OK || written == 0 || flush != Z_FINISH, "{code}");
                    if flush != Z_FINISH && z.avail_in == 0 && z.avail_out > 0 {
                        break;
                    }
                    assert!(written > 0 || z.avail_in == 0, "it stands still");
                }
                assert_eq!(z.total_in as usize, fed);
                assert_eq!(z.total_out as usize, stream.len());
                if matches!(flush, Z_SYNC_FLUSH | Z_FULL_FLUSH | Z_PARTIAL_FLUSH) {
                    promised.push((stream.len(), fed));
                }
            }
            Step::Parameters(level, strategy) => loop {
                let mut out = vec![0; 1000];
                (z.next_out, z.avail_out) = (out.as_mut_ptr(), 1000);
                z.avail_in = 0;
                // SAFETY: the buffer is there.
                let code = unsafe { sidecore_z::deflateParams(&mut *z, level, strategy) };
                stream.extend(&out[..1000 - z.avail_out as usize]);
                assert!(code == Z_OK || code == Z_BUF_ERROR, "{code}");
                // Out of room: again; or nothing to write, which zlib says the same way.
                if code == Z_OK || z.avail_out == 1000 {
                    break;
                }
            },
            Step::Copy => {
                let mut copy = Box::new(common::blank());
                // SAFETY: a stream, and one to be.
                let code = unsafe { sidecore_z::deflateCopy(&mut *copy, &mut *z) };
                assert_eq!(code, Z_OK);
                // SAFETY: it is not used again.
                unsafe { sidecore_z::deflateEnd(&mut *z) };
                z = copy;
            }
            Step::Tune => {
                // SAFETY: a stream.
                let code = unsafe { sidecore_z::deflateTune(&mut *z, 4, 8, 16, 32) };
                assert_eq!(code, Z_OK);
            }
        }
    }
    // SAFETY: a stream that is not used again.
    assert_eq!(unsafe { sidecore_z::deflateEnd(&mut *z) }, Z_OK);
    Made { stream, promised }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn any_calls_make_a_stream_that_the_base_inflates(
        seed: u64,
        level in -1..=9i32,
        window_bits in window_bits(),
        strategy in prop_oneof![6 => Just(0), 1 => 1..=4i32],
        steps in prop::collection::vec(step(), 0..8),
        rest in prop_oneof![Just(0usize), 0usize..400_000],
    ) {
        let wanted: usize = steps.iter().map(|step| match step {
            Step::Deflate(input, ..) => *input,
            _ => 0,
        }).sum();
        let raw = bytes(seed, wanted + rest);
        // SAFETY: see there.
        let made = unsafe { run(&raw, level, window_bits, strategy, &steps) };
        prop_assert!(theirs::inflate(&made.stream, window_bits, raw.len()) == raw);
        for (output, input) in made.promised {
            let got = theirs::inflate_part(&made.stream[..output], window_bits);
            prop_assert!(got == raw[..input], "{} of {} after a flush", got.len(), input);
        }
    }

    #[test]
    fn what_the_base_deflates_is_inflated_in_any_pieces(
        seed: u64,
        len in prop_oneof![0usize..100, 0usize..300_000],
        level in 0..=9i32,
        window_bits in window_bits(),
        piece in prop_oneof![1usize..50, 1_000usize..40_000, Just(1usize << 20)],
        room in prop_oneof![1usize..50, 1_000usize..40_000, Just(1usize << 20)],
        finish: bool,
        tail in 0usize..20,
    ) {
        let raw = bytes(seed, len.min(piece * 3_000).min(room * 3_000));
        let mut stream = theirs::deflate(&raw, level, window_bits);
        let len = stream.len();
        stream.extend(std::iter::repeat_n(0xee, tail));
        let (got, consumed) = inflate_in_pieces(&stream, window_bits, piece, room, finish);
        prop_assert!(got == raw, "{} of {}", got.len(), raw.len());
        prop_assert_eq!(consumed, len);
    }

    #[test]
    fn damaged_streams_end_as_they_do_in_the_base(
        seed: u64,
        len in 1usize..20_000,
        window_bits in prop::sample::select(vec![15, 31, -15]),
        place in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let raw = bytes(seed, len);
        let mut stream = theirs::deflate(&raw, 6, window_bits);
        let place = place.index(stream.len());
        stream[place] ^= 1 << bit;
        let theirs = theirs::inflate_once(&stream, window_bits, len * 2 + 100);
        let ours = ours::inflate_once(&stream, window_bits, len * 2 + 100);
        // FTEXT, FNAME and so on may turn up; both see the same.
        prop_assert_eq!(ours.0, theirs.0);
        if ours.0 == Z_STREAM_END {
            prop_assert!(ours == theirs);
        }
    }

    #[test]
    fn one_call_fits_the_bound(
        seed: u64,
        len in prop_oneof![0usize..300, 0usize..600_000],
        level in 0..=9i32,
        window_bits in window_bits(),
        noise: bool,
    ) {
        let raw = if noise { common::noise(seed, len) } else { bytes(seed, len) };
        let mut z = ours::deflate_init(level, window_bits, 0);
        // SAFETY: a stream.
        let bound = unsafe { sidecore_z::deflateBound(&mut *z, len as u64) } as usize;
        let mut out = vec![0; bound];
        (z.next_in, z.avail_in) = (raw.as_ptr(), len as u32);
        (z.next_out, z.avail_out) = (out.as_mut_ptr(), bound as u32);
        // SAFETY: both buffers are there.
        prop_assert_eq!(unsafe { sidecore_z::deflate(&mut *z, Z_FINISH) }, Z_STREAM_END);
        out.truncate(z.total_out as usize);
        // SAFETY: a stream that is not used again.
        prop_assert_eq!(unsafe { sidecore_z::deflateEnd(&mut *z) }, Z_OK);
        prop_assert!(theirs::inflate(&out, window_bits, len) == raw);

        let mut bytes = sidecore_z::compressBound(len as u64);
        let mut out = vec![0; bytes as usize];
        // SAFETY: both buffers are there.
        let code = unsafe {
            sidecore_z::compress2(out.as_mut_ptr(), &mut bytes, raw.as_ptr(), len as u64, level)
        };
        prop_assert_eq!(code, Z_OK);
        out.truncate(bytes as usize);
        prop_assert!(theirs::inflate(&out, 15, len) == raw);

        let (mut room, mut used) = (len as u64 + 1, bytes);
        let mut again = vec![0; len + 1];
        // SAFETY: both buffers are there.
        let code = unsafe {
            sidecore_z::uncompress2(again.as_mut_ptr(), &mut room, out.as_ptr(), &mut used)
        };
        prop_assert_eq!((code, room, used), (Z_OK, len as u64, bytes));
        prop_assert!(again[..len] == raw);
    }

    #[test]
    fn chunks_do_not_change_the_bytes(
        seed: u64,
        len in 0usize..900_000,
        chunk in 1_000usize..300_000,
        level in 1..=9i32,
    ) {
        let raw = bytes(seed, len);
        let steps: Vec<Step> = (0..len / chunk).map(|_| Step::Deflate(chunk, 70_000, 0)).collect();
        // SAFETY: see there.
        let cut = unsafe { run(&raw, level, 15, 0, &steps) };
        // SAFETY: see there.
        let whole = unsafe { run(&raw, level, 15, 0, &[]) };
        prop_assert!(cut.stream == whole.stream);
    }
}

#[test]
fn dictionaries_go_both_ways() {
    let dictionary = bytes(3, 5_000);
    let raw: Vec<u8> = dictionary.repeat(3);
    for window_bits in [15, -15] {
        let mut z = ours::deflate_init(6, window_bits, 0);
        let mut out = vec![0; 20_000];
        // SAFETY: the buffers are there.
        let (code, end) = unsafe {
            let bytes = dictionary.len() as u32;
            let code = sidecore_z::deflateSetDictionary(&mut *z, dictionary.as_ptr(), bytes);
            (z.next_in, z.avail_in) = (raw.as_ptr(), raw.len() as u32);
            (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
            (code, sidecore_z::deflate(&mut *z, Z_FINISH))
        };
        assert_eq!((code, end), (Z_OK, Z_STREAM_END));
        out.truncate(z.total_out as usize);
        assert!(
            out.len() < 1_000,
            "the dictionary was not used: {}",
            out.len()
        );
        // SAFETY: a stream that is not used again.
        unsafe { sidecore_z::deflateEnd(&mut *z) };

        let mut z = ours::inflate_init(window_bits);
        let mut again = vec![0; raw.len()];
        (z.next_in, z.avail_in) = (out.as_ptr(), out.len() as u32);
        (z.next_out, z.avail_out) = (again.as_mut_ptr(), again.len() as u32);
        // SAFETY: the buffers are there.
        unsafe {
            if window_bits > 0 {
                assert_eq!(sidecore_z::inflate(&mut *z, Z_FINISH), Z_NEED_DICT);
            }
            let bytes = dictionary.len() as u32;
            let code = sidecore_z::inflateSetDictionary(&mut *z, dictionary.as_ptr(), bytes);
            assert_eq!(code, Z_OK);
            assert_eq!(sidecore_z::inflate(&mut *z, Z_FINISH), Z_STREAM_END);
            sidecore_z::inflateEnd(&mut *z);
        }
        assert!(again == raw);
    }
}

#[test]
fn a_header_comes_back_as_it_was_given() {
    let (mut name, mut comment, mut extra) = (*b"name\0", *b"a comment\0", *b"xyz");
    let mut z = ours::deflate_init(9, 31, 0);
    let mut given = gz_header {
        text: 1,
        time: 12345,
        xflags: 0,
        os: 7,
        extra: extra.as_mut_ptr(),
        extra_len: 3,
        extra_max: 0,
        name: name.as_mut_ptr(),
        name_max: 0,
        comment: comment.as_mut_ptr(),
        comm_max: 0,
        hcrc: 1,
        done: 0,
    };
    let mut out = [0; 200];
    (z.next_in, z.avail_in) = (b"hello".as_ptr(), 5);
    (z.next_out, z.avail_out) = (out.as_mut_ptr(), 200);
    // SAFETY: the buffers are there.
    unsafe {
        assert_eq!(sidecore_z::deflateSetHeader(&mut *z, &mut given), Z_OK);
        assert_eq!(sidecore_z::deflate(&mut *z, Z_FINISH), Z_STREAM_END);
        sidecore_z::deflateEnd(&mut *z);
    }
    let (mut read_name, mut read_comment, mut read_extra) = ([0; 20], [0; 20], [0; 20]);
    let mut read = gz_header {
        text: 0,
        time: 0,
        xflags: 0,
        os: 0,
        extra: read_extra.as_mut_ptr(),
        extra_len: 0,
        extra_max: 20,
        name: read_name.as_mut_ptr(),
        name_max: 20,
        comment: read_comment.as_mut_ptr(),
        comm_max: 20,
        hcrc: 0,
        done: 0,
    };
    let mut z = ours::inflate_init(31);
    let mut again = [0; 5];
    (z.next_in, z.avail_in) = (out.as_ptr(), 200);
    (z.next_out, z.avail_out) = (again.as_mut_ptr(), 5);
    // SAFETY: the buffers are there.
    unsafe {
        assert_eq!(sidecore_z::inflateGetHeader(&mut *z, &mut read), Z_OK);
        assert_eq!(sidecore_z::inflate(&mut *z, Z_FINISH), Z_STREAM_END);
        sidecore_z::inflateEnd(&mut *z);
    }
    assert_eq!(&again, b"hello");
    assert_eq!(
        (read.text, read.time, read.os, read.hcrc, read.done),
        (1, 12345, 7, 1, 1)
    );
    assert!(read_name.starts_with(&name) && read_comment.starts_with(&comment));
    assert!(read_extra.starts_with(&extra) && read.extra_len == 3);
}

#[test]
fn what_is_no_stream_is_refused() {
    // SAFETY: null, and streams that were not begun, as the manual allows.
    unsafe {
        assert_eq!(sidecore_z::deflate(ptr::null_mut(), 0), Z_STREAM_ERROR);
        let mut z = common::blank();
        assert_eq!(sidecore_z::deflate(&mut z, 0), Z_STREAM_ERROR);
        assert_eq!(sidecore_z::inflate(&mut z, 0), Z_STREAM_ERROR);
        assert_eq!(sidecore_z::deflateEnd(&mut z), Z_STREAM_ERROR);
        assert_eq!(sidecore_z::inflateEnd(ptr::null_mut()), Z_STREAM_ERROR);
        let mut inflating = ours::inflate_init(15);
        assert_eq!(sidecore_z::deflate(&mut *inflating, 0), Z_STREAM_ERROR);
        let mut copied = common::blank();
        ptr::copy_nonoverlapping(&*inflating, &mut copied, 1);
        assert_eq!(sidecore_z::inflate(&mut copied, 0), Z_STREAM_ERROR);
        assert_eq!(sidecore_z::inflateEnd(&mut *inflating), Z_OK);
        assert_eq!(sidecore_z::inflateEnd(&mut *inflating), Z_STREAM_ERROR);
        let bytes = size_of::<z_stream>() as i32;
        let version = sidecore_z::zlibVersion();
        for (level, window_bits) in [(10, 15), (6, 16), (6, 7), (6, -8), (6, 24), (6, 48)] {
            let code =
                sidecore_z::deflateInit2_(&mut z, level, 8, window_bits, 8, 0, version, bytes);
            assert_eq!(code, Z_STREAM_ERROR, "{level} {window_bits}");
        }
        let code = sidecore_z::deflateInit_(&mut z, 6, version, bytes - 1);
        assert_eq!(code, Z_VERSION_ERROR);
        assert_eq!(
            sidecore_z::inflateInit_(&mut z, c"2.0".as_ptr(), bytes),
            Z_VERSION_ERROR
        );
    }
}

#[test]
fn memory_is_the_programs_and_all_of_it_comes_back() {
    use std::sync::atomic::{AtomicIsize, Ordering};
    static HELD: AtomicIsize = AtomicIsize::new(0);
    unsafe extern "C" fn allocate(
        _: *mut std::ffi::c_void,
        items: u32,
        size: u32,
    ) -> *mut std::ffi::c_void {
        HELD.fetch_add(1, Ordering::Relaxed);
        // SAFETY: calloc takes any size.
        unsafe { libc::calloc(items as usize, size as usize) }
    }
    unsafe extern "C" fn free(_: *mut std::ffi::c_void, address: *mut std::ffi::c_void) {
        HELD.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: from calloc above.
        unsafe { libc::free(address) };
    }
    let raw = bytes(5, 700_000);
    let mut out = vec![0; 700_000];
    for flush in [Z_NO_FLUSH, Z_SYNC_FLUSH] {
        let mut z = z_stream {
            zalloc: Some(allocate),
            zfree: Some(free),
            ..common::blank()
        };
        // SAFETY: the buffers are there.
        unsafe {
            let version = sidecore_z::zlibVersion();
            let bytes = size_of::<z_stream>() as i32;
            assert_eq!(sidecore_z::deflateInit_(&mut z, 6, version, bytes), Z_OK);
            (z.next_in, z.avail_in) = (raw.as_ptr(), 1000);
            (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
            assert_eq!(sidecore_z::deflate(&mut z, flush), Z_OK);
            z.avail_in = raw.len() as u32 - 1000;
            assert_eq!(sidecore_z::deflate(&mut z, Z_FINISH), Z_STREAM_END);
            assert!(HELD.load(Ordering::Relaxed) > 0);
            assert_eq!(sidecore_z::deflateEnd(&mut z), Z_OK);
        }
        assert_eq!(HELD.load(Ordering::Relaxed), 0);
        assert!(theirs::inflate(&out[..z.total_out as usize], 15, raw.len()) == raw);
    }
}

#[test]
fn one_room_too_small_says_so() {
    let raw = common::noise(1, 50_000);
    let mut out = vec![0; 60_000];
    let mut bytes = 49_000;
    // SAFETY: both buffers are there.
    let code = unsafe {
        sidecore_z::compress(out.as_mut_ptr(), &mut bytes, raw.as_ptr(), raw.len() as u64)
    };
    assert_eq!(code, Z_BUF_ERROR);
    assert!(
        out[49_000..].iter().all(|&byte| byte == 0),
        "written behind the end"
    );
}

/// Text is compressed, noise is stored; the third is stored and ends like an empty stored block.
#[test]
fn a_reader_that_looks_for_a_flush_is_behind_it() {
    let text = b"I am a HAL 9000 computer".repeat(2001);
    let like_an_end = [common::noise(1, 1000), vec![0, 0, 0xff, 0xff]].concat();
    for (raw, has_two) in [
        (text, false),
        (common::noise(2, 200_000), false),
        (like_an_end, true),
    ] {
        let mut z = ours::deflate_init(6, 15, Z_DEFAULT_STRATEGY);
        let mut stream = vec![0; raw.len() + 1000];
        let first_bytes;
        // SAFETY: the buffers are as the fields say.
        unsafe {
            (z.next_in, z.avail_in) = (raw.as_ptr(), raw.len() as u32);
            // A flush that has to be repeated, for more room, makes its mark once.
            (z.next_out, z.avail_out) = (stream.as_mut_ptr(), 13);
            assert_eq!(sidecore_z::deflate(&mut *z, Z_FULL_FLUSH), Z_OK);
            assert_eq!(z.avail_out, 0);
            z.avail_out = stream.len() as u32 - 13;
            assert_eq!(sidecore_z::deflate(&mut *z, Z_FULL_FLUSH), Z_OK);
            first_bytes = z.total_out as usize;
            (z.next_in, z.avail_in) = (raw.as_ptr(), 100);
            assert_eq!(sidecore_z::deflate(&mut *z, Z_FINISH), Z_STREAM_END);
            stream.truncate(z.total_out as usize);
            assert_eq!(sidecore_z::deflateEnd(&mut *z), Z_OK);
        }
        let (before, mark) = stream[..first_bytes].split_at(first_bytes - 4);
        assert_eq!(mark, [0, 0, 0xff, 0xff]);
        // A second empty block behind one would leave such a reader in front of it.
        assert_eq!(before.ends_with(&[0, 0, 0xff, 0xff, 0]), has_two);
        let (back, taken) = inflate_in_pieces(&stream, 15, 1 << 16, 1 << 16, false);
        assert_eq!(
            (&back[..raw.len()], &back[raw.len()..]),
            (&raw[..], &raw[..100])
        );
        assert_eq!(taken, stream.len());
    }
}
