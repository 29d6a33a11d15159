//! Both slices at the very end, and at the very start, of memory whose neighbours cannot be
//! touched: a byte read or written outside ends the test by a fault.

// Pages that may not be touched need the memory calls of the operating system; nothing else here is
// unsafe.
#![allow(unsafe_code)]

use super::super::Inflate;
use super::super::fuzzing::{Random, mutate, random_stream};
use super::{deflated, frames, inflate, samples};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const PAGE: usize = 4096;

/// Pages to use between two that fault.
struct Guarded {
    base: *mut u8,
    bytes: usize,
}

impl Guarded {
    fn new(room: usize) -> Self {
        let bytes = room.next_multiple_of(PAGE) + 2 * PAGE;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping wherever the kernel likes; its first and last page are made
        // untouchable.
        unsafe {
            let base = mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags).unwrap();
            mprotect(base, PAGE, MprotectFlags::empty()).unwrap();
            mprotect(base.byte_add(bytes - PAGE), PAGE, MprotectFlags::empty()).unwrap();
            Self {
                base: base.cast(),
                bytes,
            }
        }
    }

    /// This many bytes, ending where the last page starts.
    fn at_end(&mut self, count: usize) -> &mut [u8] {
        assert!(count <= self.bytes - 2 * PAGE);
        // SAFETY: inside the pages that may be used, borrowed as long as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(self.bytes - PAGE - count), count) }
    }

    /// This many bytes, starting where the first page ends.
    fn at_start(&mut self, count: usize) -> &mut [u8] {
        assert!(count <= self.bytes - 2 * PAGE);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(PAGE), count) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, whole; no borrow outlives `self`.
        unsafe { munmap(self.base.cast(), self.bytes).unwrap() };
    }
}

/// Inflates with both slices against the guard, at targets `step` apart.
fn guarded(pages: &mut [Guarded; 2], stream: &[u8], room: usize, step: usize) {
    let expected = inflate(stream, room);
    let [input, output] = pages;
    for at_end in [true, false] {
        let (frame, out) = if at_end {
            (input.at_end(stream.len()), output.at_end(room))
        } else {
            (input.at_start(stream.len()), output.at_start(room))
        };
        frame.copy_from_slice(stream);
        let mut inflate = Inflate::new();
        let mut target = 0;
        let got = loop {
            target = room.min(target + step);
            match inflate.try_advance(frame, out, target) {
                Ok(count) if inflate.has_ended() => break Ok(out[..count].to_vec()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        assert!(got == expected, "fast and plain differ");
    }
}

#[test]
fn real_streams_stay_inside() {
    let mut pages = [Guarded::new(80_000), Guarded::new(80_000)];
    for (_, raw) in samples() {
        for frame in frames(&raw) {
            for level in [1, 5] {
                let stream = deflated(level, frame);
                guarded(&mut pages, &stream, frame.len(), frame.len().max(1));
                guarded(&mut pages, &stream, frame.len(), 1000);
                // Cut, and with less room than it needs.
                guarded(
                    &mut pages,
                    &stream[..stream.len() * 2 / 3],
                    frame.len(),
                    5000,
                );
                guarded(&mut pages, &stream, frame.len() / 2, frame.len().max(1));
            }
        }
    }
}

#[test]
fn damaged_streams_stay_inside() {
    let seed = 99;
    let mut random = Random(seed);
    let mut pages = [Guarded::new(80_000), Guarded::new(80_000)];
    for case in 0..30_000 {
        let output_max = 1 + random.below(if case % 100 == 0 { 60_000 } else { 600 });
        let (mut stream, room) = random_stream(&mut random, output_max, 50);
        mutate(&mut random, &mut stream);
        stream.truncate(79_000);
        let room = (room + random.below(3)).min(79_000);
        guarded(&mut pages, &stream, room, 1 + random.below(700));
    }
}
