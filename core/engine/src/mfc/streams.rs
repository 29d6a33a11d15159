//! Hints for lent gets: which of them the processor's own prefetcher already follows.
//!
//! Why here: the prefetcher runs ahead of a loop over neighbouring blocks by itself. Hints for the
//! block after this one then displace the lines that it is about to fetch, and cost up to a fifth
//! of the loop. At a jump it knows nothing, and hints hide most of the first misses. So a get is
//! hinted at unless it begins where a recent one ended. Must stay true: a hint changes no result.
//! One thread: the one that runs the kernel. Source: own; `docs/results/offload.md`.

use sidecore_sys::prefetch;
use std::cell::Cell;

/// Ends of the last gets, one for each stream that a kernel reads side by side.
#[derive(Debug, Default)]
pub(super) struct Streams {
    ends: Cell<[usize; STREAMS]>,
}

impl Streams {
    /// Asks for the beginning of `block`, unless a stream that is followed leads into it.
    #[inline]
    pub(super) fn prefetch(&self, block: &[u8]) {
        if !self.leads_to(block) {
            prefetch::for_read(block, PREFETCH_BYTES_MAX);
        }
    }

    /// True if `block` begins where a recent one ended; remembers its end either way.
    #[inline]
    fn leads_to(&self, block: &[u8]) -> bool {
        let range = block.as_ptr_range();
        let (start, end) = (range.start.addr(), range.end.addr());
        let mut ends = self.ends.get();
        let known = ends.iter().position(|&end| end == start);
        // The stream used last comes first; a new one takes the place of the one unused longest.
        ends[..=known.unwrap_or(STREAMS - 1)].rotate_right(1);
        ends[0] = end;
        self.ends.set(ends);
        known.is_some()
    }
}

/// Streams that are tracked separately; hints for more of them are given as for jumps.
const STREAMS: usize = 4;
/// Bytes of a block that are hinted at: from there on the processor's prefetcher follows.
const PREFETCH_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_four_streams_side_by_side_are_followed() {
        let memory = [0; 1024];
        for count in 1..=STREAMS + 1 {
            let streams = Streams::default();
            for step in 0..4 {
                for stream in 0..count {
                    let start = stream * 200 + step * 16;
                    let known = streams.leads_to(&memory[start..start + 16]);
                    assert_eq!(
                        known,
                        step > 0 && count <= STREAMS,
                        "{count}, {step}, {stream}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_jump_is_none_and_the_stream_goes_on_behind_it() {
        let memory = [0; 256];
        let streams = Streams::default();
        assert!(!streams.leads_to(&memory[..16]));
        assert!(!streams.leads_to(&memory[64..80]), "a gap");
        assert!(
            streams.leads_to(&memory[16..32]),
            "the first stream goes on"
        );
        assert!(streams.leads_to(&memory[80..96]), "and the second");
        assert!(!streams.leads_to(&memory[80..96]), "the same block again");
    }
}
