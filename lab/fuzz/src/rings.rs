//! The shared memory of a supervisor and its programs: whatever one side writes, the accesses of
//! the other one stay inside the rings, and report no more bytes than they hold.
//!
//! Input bytes are decisions, one by one; after the last all are 0. An input's effect depends on
//! its bytes alone.

use sidecore_net_rings::{
    LARGE_BYTES, LARGE_RING_BYTES, Lock, Process, RING_BYTES, SEGMENT_BYTES, STREAM_BYTES, STREAMS,
    Served, Stream, WAITERS,
};
use sidecore_sys::{SharedMap, Sharing};

/// Decisions from an input.
struct Decisions<'d>(&'d [u8]);

impl Decisions<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// A number of bytes: few, about a ring's, more than the largest ring's.
    fn count(&mut self) -> usize {
        let small = usize::from(self.byte());
        match self.byte() % 4 {
            0 => small,
            1 => RING_BYTES - 128 + small,
            2 => LARGE_RING_BYTES - 128 + small,
            _ => small * 512,
        }
    }

    /// A position, usually a plausible one.
    fn position(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => self.byte().into(),
            1 => (RING_BYTES as u64).wrapping_sub(self.byte().into()),
            2 => (LARGE_RING_BYTES as u64).wrapping_add(self.byte().into()),
            _ => self.word(),
        }
    }
}

struct Memory {
    stream: SharedMap,
    large: SharedMap,
    process: SharedMap,
}

thread_local! {
    static MEMORY: Option<Memory> = {
        let map = |bytes| SharedMap::reserve("fuzz", bytes, Sharing::ReadWrite).ok();
        let maps = (map(STREAM_BYTES), map(LARGE_BYTES), map(SEGMENT_BYTES));
        match maps {
            (Some(stream), Some(large), Some(process)) => {
                Some(Memory { stream, large, process })
            }
            _ => None,
        }
    };
}

/// A stream's memory and a process's segment, in which either side may write any word at any time.
pub fn fuzz_rings(data: &[u8]) {
    MEMORY.with(|memory| {
        // Without memory there is nothing to test.
        if let Some(memory) = memory {
            play(memory, Decisions(data));
        }
    });
}

fn play(memory: &Memory, mut decisions: Decisions<'_>) {
    let plain = Stream::over(memory.stream.slice());
    let process = Process::over(memory.process.slice());
    let (Some(plain), Some(process)) = (plain, process) else {
        return;
    };
    memory.process.slice().write_at(0, &[0; SEGMENT_BYTES]);
    memory.stream.slice().write_at(0, &[0; HEAD_BYTES]);
    let has_large = decisions.byte() & 1 == 1;
    let stream = plain.with_large(has_large.then(|| memory.large.slice()));
    stream.begin();
    let mut served = Served::default();
    let mut bytes = vec![0_u8; 2 * LARGE_RING_BYTES];
    for _ in 0..STEPS_MAX {
        if decisions.0.is_empty() {
            return;
        }
        step(
            memory,
            &mut decisions,
            stream,
            process,
            &mut served,
            &mut bytes,
        );
    }
}

fn step(
    memory: &Memory,
    decisions: &mut Decisions<'_>,
    stream: Stream<'_>,
    process: Process<'_>,
    served: &mut Served,
    bytes: &mut [u8],
) {
    match decisions.byte() % 12 {
        // Anything in the head of a stream's memory, which either side can write.
        0 => {
            let at = usize::from(decisions.byte()) * 8;
            let value = decisions.position();
            memory.stream.slice().write_at(at, &value.to_ne_bytes());
        }
        1 => {
            let at = usize::from(decisions.byte()) * 4;
            let value = decisions.word() as u32;
            memory.stream.slice().write_at(at, &value.to_ne_bytes());
        }
        2 => {
            let count = decisions.count().min(bytes.len());
            if let Ok(taken) = stream.take(served, &mut bytes[..count]) {
                assert!(taken <= count, "{taken} of {count} bytes are taken");
            }
        }
        3 => {
            let count = decisions.count().min(bytes.len());
            if let Ok(given) = stream.give(served, &bytes[..count]) {
                assert!(given <= count.min(LARGE_RING_BYTES), "{given} are given");
            }
        }
        4 => use_as_program(decisions, stream, bytes),
        5 => {
            let is_back = stream.take_back(decisions.byte() & 1 == 1);
            assert!(
                !is_back || stream.is_taken_back(),
                "a stream taken back is so"
            );
            if let Ok(unread) = stream.unread(served) {
                assert!(unread.len() <= LARGE_RING_BYTES, "{} unread", unread.len());
            }
        }
        6 => stream.begin(),
        7 => {
            if let Ok(state) = stream.state() {
                assert!(state.readable_bytes <= LARGE_RING_BYTES, "{state:?}");
                assert!(state.writable_bytes <= LARGE_RING_BYTES, "{state:?}");
            }
            assert!(stream.tells().count() <= 3, "three waiters at most");
            stream.wait_for_room();
            stream.wait_for_reading();
            let _ = stream.program_waits();
        }
        8 => {
            stream.tell(decisions.byte().into(), Some(decisions.word() as u32 >> 1));
            for waiter in stream.tells() {
                process.tell_waiter(waiter, decisions.byte().into());
            }
        }
        9 => {
            let at = decisions.word() as usize % (SEGMENT_BYTES - 8);
            let value = decisions.word();
            memory.process.slice().write_at(at, &value.to_ne_bytes());
        }
        10 => {
            process.tell_supervisor(decisions.word() as u32);
            process.take_supervisor_news(|stream| {
                assert!(stream < STREAMS, "no stream {stream}");
            });
        }
        _ => {
            let waiter = decisions.word() as u32;
            process.take_waiter_news(waiter, |stream| {
                assert!(stream < STREAMS, "no stream {stream}");
            });
            let has_word = process.waiter_word(waiter).is_some();
            assert_eq!(has_word, (waiter as usize) < WAITERS, "waiter {waiter}");
            let _ = process.has_supervisor_news();
        }
    }
}

fn use_as_program(decisions: &mut Decisions<'_>, stream: Stream<'_>, bytes: &mut [u8]) {
    let Lock::Held(mut held) = stream.lock() else {
        return;
    };
    let count = decisions.count().min(bytes.len());
    let done = match decisions.byte() % 4 {
        0 => held.read(&mut bytes[..count], false, 0),
        1 => held.read(&mut bytes[..count], true, decisions.count()),
        2 => held.write(&bytes[..count]),
        _ => held.skip(count),
    };
    if let Ok(done) = done {
        assert!(done <= count, "{done} of {count} bytes");
    }
    let _ = (held.is_cramped(), held.supervisor_waits());
}

/// Words of a stream's memory that are not bytes of its rings.
const HEAD_BYTES: usize = 4096;
const STEPS_MAX: usize = 512;
