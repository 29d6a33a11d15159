//! zstd frames, decoded in two ways: at once, and step by step.
//!
//! Must stay true: a finding can be reproduced from its bytes alone.

use sidecore_zstd::{Decoder, Error, Progress};

/// Maximum length of the contents.
const ROOM_MAX: usize = 256 << 10;

/// Decodes frames in two ways: at once (two blocks at a time), and step by step. The first bytes of
/// `data` are the output's size (three bytes, little-endian) and the step size. Both ways must give
/// the same bytes, or refuse. Returns true if the frames were accepted.
///
/// # Panics
/// If the results differ.
pub fn compare(data: &[u8]) -> bool {
    let Some((&[low, middle, high, pace], input)) = data.split_first_chunk::<4>() else {
        return false;
    };
    let room = u32::from_le_bytes([low, middle, high, 0]) as usize % (ROOM_MAX + 1);
    let mut decoder = Decoder::new();
    let mut whole = vec![0; room];
    let at_once = decoder.decode(input, &mut whole);
    let mut pieces = vec![0xFF; room];
    let by_steps = steps(&mut decoder, input, &mut pieces, usize::from(pace) * 64 + 1);
    match (at_once, by_steps) {
        (Ok(one), Ok(other)) => {
            assert_eq!(one, other, "as long, whatever the pace");
            assert!(whole[..one] == pieces[..one], "the same, whatever the pace");
            true
        }
        (Err(_), Err(_)) => false,
        (one, other) => panic!("at once {one:?}, by steps {other:?}"),
    }
}

fn steps(decoder: &mut Decoder, input: &[u8], out: &mut [u8], step: usize) -> Result<usize, Error> {
    decoder.reset();
    let mut progress = Progress::default();
    let mut target = 0;
    loop {
        target = (target + step).min(out.len());
        let before = progress.written;
        decoder.advance(input, out, &mut progress, target)?;
        assert!(before <= progress.written && progress.written <= out.len());
        if progress.written < target || target == out.len() {
            return Ok(progress.written);
        }
    }
}
