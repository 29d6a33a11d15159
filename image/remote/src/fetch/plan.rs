//! Joins neighbouring frames into one request.
//!
//! Must stay true: every frame is in exactly one request. A request spans at most
//! [`REQUEST_BYTES_MAX`] unless it holds a single frame. Between two of its frames lie at most
//! [`GAP_BYTES_MAX`] bytes that were not requested. Pure.

use sidecore_block::format::Frame;

/// Splits `frames` into requests. Frames may be in any order; requests are sorted by offset.
pub(super) fn join(mut frames: Vec<Frame>) -> Vec<Vec<Frame>> {
    frames.sort_unstable_by_key(|frame| (frame.offset, frame.stored_bytes));
    let mut requests: Vec<Vec<Frame>> = Vec::new();
    for frame in frames {
        let joined = requests.last_mut().filter(|request| {
            let (start, end) = span(request);
            let whole = end_of(&frame).saturating_sub(start);
            // Bytes of a small gap are fetched and dropped: a request of its own would cost more.
            frame.offset <= end + GAP_BYTES_MAX && whole <= limit(start)
        });
        match joined {
            Some(request) => request.push(frame),
            None => requests.push(vec![frame]),
        }
    }
    requests
}

/// Length limit of a request that begins at `start`, between a quarter of the maximum and the
/// maximum.
///
/// Requests of equal length that began together share the link evenly and end together. Then all
/// begin again at once, and for a round trip no bytes are in flight. Requests of different lengths
/// drift apart.
fn limit(start: u64) -> u64 {
    let mixed = (start >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
    REQUEST_BYTES_MAX / 4 + REQUEST_BYTES_MAX / 4 * 3 / 15 * mixed
}

/// First byte of a request's frames, and the byte after the last.
pub(super) fn span(request: &[Frame]) -> (u64, u64) {
    let start = request.first().map_or(0, |frame| frame.offset);
    (start, request.iter().map(end_of).max().unwrap_or(start))
}

fn end_of(frame: &Frame) -> u64 {
    frame.offset + u64::from(frame.stored_bytes)
}

/// Long enough that headers do not matter, short enough that many requests are in flight.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Frames of zeros are never requested and take some tens of bytes each.
const GAP_BYTES_MAX: u64 = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_block::codec::CodecId;
    use sidecore_block::format::FrameCheck;
    use sidecore_random::Random;

    #[test]
    fn every_frame_is_in_one_request_and_neighbours_in_the_same() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut offset = random.below(1 << 40);
            let mut frames: Vec<Frame> = (0..random.below(300))
                .map(|_| {
                    offset += random.below(3) * random.below(3000);
                    let frame = Frame {
                        offset,
                        stored_bytes: random.below(200_000) as u32 + 1,
                        raw_bytes: 1 << 16,
                        raw_offset: 0,
                        number: 0,
                        codec: CodecId::Zstd,
                        check: FrameCheck::None,
                    };
                    offset += u64::from(frame.stored_bytes);
                    frame
                })
                .collect();
            let requests = join(frames.clone());
            frames.sort_by_key(|frame| frame.offset);
            assert_eq!(requests.concat(), frames, "seed {seed}");
            for request in &requests {
                let (start, end) = span(request);
                assert!(end - start <= REQUEST_BYTES_MAX, "seed {seed}");
                for pair in request.windows(2) {
                    assert!(
                        pair[1].offset - end_of(&pair[0]) <= GAP_BYTES_MAX,
                        "seed {seed}"
                    );
                }
            }
            for pair in requests.windows(2) {
                let (start, end) = (span(&pair[0]).0, end_of(&pair[1][0]));
                let near = pair[1][0].offset - span(&pair[0]).1 <= GAP_BYTES_MAX;
                assert!(!near || end - start > limit(start), "seed {seed}");
            }
        }
    }
}
