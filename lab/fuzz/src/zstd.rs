//! zstd frames, decompressed in two ways: at once, and step by step.
//!
//! Must stay true: a finding can be reproduced from its bytes alone.

use sidecore_block::codec::{CodecError, CodecId, Inflater, make_inflater};

/// Maximum length of the contents.
const ROOM_MAX: usize = 256 << 10;

/// libzstd's message for a window that is larger than a stream may have.
const TOO_MUCH_MEMORY: &str = "Frame requires too much memory for decoding";

/// libzstd's message for most other faults.
const DAMAGED: &str = "Data corruption detected";

/// Decompresses frames in two ways: at once (one call of libzstd), and step by step (block by
/// block). The first bytes of `data` are the contents' length (three bytes, little-endian) and the
/// step size. Both ways must give the same bytes, or refuse; only for a few faults does one alone
/// refuse. Returns true if both accept the frames.
///
/// # Panics
/// If the results differ.
pub fn compare(data: &[u8]) -> bool {
    let Some((&[low, middle, high, pace], input)) = data.split_first_chunk::<4>() else {
        return false;
    };
    let room = u32::from_le_bytes([low, middle, high, 0]) as usize % (ROOM_MAX + 1);
    // Nothing is decompressed to no bytes.
    let room = room.max(1);
    let mut inflater = make_inflater(CodecId::Zstd);
    let mut whole = vec![0; room];
    let at_once = inflater.inflate(input, &mut whole);
    let mut pieces = vec![0xFF; room];
    let step = usize::from(pace) * 64 + 1;
    let by_steps = steps(inflater.as_mut(), input, &mut pieces, step);
    match (at_once, by_steps) {
        (Ok(()), Ok(())) => {
            assert!(whole == pieces, "the same, whatever the pace");
            true
        }
        (Err(_), Err(_)) => false,
        // What no encoder writes: a window between 2 and 4 GiB, and blocks longer than their frame
        // allows, are refused to streams alone.
        (Ok(()), Err(CodecError::Corrupt { reason, .. }))
            if [TOO_MUCH_MEMORY, DAMAGED].contains(&reason) =>
        {
            false
        }
        // Nor this: behind an empty last block the contents' length is compared at once alone.
        (Err(CodecError::Corrupt { reason, .. }), Ok(())) if reason == DAMAGED => false,
        (one, other) => panic!("at once {one:?}, by steps {other:?}"),
    }
}

fn steps(
    inflater: &mut dyn Inflater,
    input: &[u8],
    out: &mut [u8],
    step: usize,
) -> Result<(), CodecError> {
    inflater.reset();
    let mut done = 0;
    while done < out.len() {
        let target = (done + step).min(out.len());
        let now = inflater.advance(input, out, target)?;
        assert!(target <= now && now <= out.len());
        done = now;
    }
    Ok(())
}
