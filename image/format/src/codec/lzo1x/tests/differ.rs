//! Compares the fast decompressor with the plain one.
//!
//! Why here: the codec's properties are tested with it, also under Miri. `lab/fuzz` includes this
//! file for its target; names of the codec are imported from the parent module, which differs.
//!
//! Must stay true: any difference panics: in the bytes, in their number, in the *kind and place* of
//! the error, for any sequence of targets; so does a byte written outside `out`. Any thread.

use super::{Inflate, inflate_plainly};

/// Bytes before and after `out` that must not change.
const FENCE: usize = 64;
const FENCE_BYTE: u8 = 0xa5;
/// The largest output tried.
const ROOM_MAX: usize = (1 << 16) + 512;

/// Decompresses `data` in both ways; its first four bytes choose the output size and the targets.
///
/// # Panics
/// If the two differ.
pub fn fuzz_inflate(data: &[u8]) {
    Differ::new().compare(data);
}

/// The buffers of [`fuzz_inflate`], reused from call to call.
pub struct Differ {
    plain: Vec<u8>,
    fast: Vec<u8>,
}

impl Default for Differ {
    fn default() -> Self {
        Self::new()
    }
}

impl Differ {
    /// Buffers for all output sizes that are tried.
    #[must_use]
    pub fn new() -> Self {
        Self {
            plain: vec![0; ROOM_MAX],
            fast: vec![FENCE_BYTE; ROOM_MAX + 2 * FENCE],
        }
    }

    /// As [`fuzz_inflate`]; returns true if the stream was valid.
    ///
    /// # Panics
    /// If the two differ.
    pub fn compare(&mut self, data: &[u8]) -> bool {
        let Some((&[low, middle, high, pace], stream)) = data.split_first_chunk::<4>() else {
            return false;
        };
        let room = usize::from_le_bytes([low, middle, high & 1, 0, 0, 0, 0, 0]).min(ROOM_MAX);
        let plain = &mut self.plain[..room];
        let expected = inflate_plainly(stream, plain);

        // In one go, then with targets that grow by `pace`, then by large steps.
        for step in [
            room.max(1),
            1 + usize::from(pace),
            257 * (1 + usize::from(pace)),
        ] {
            let fenced = &mut self.fast[..room + 2 * FENCE];
            fenced[FENCE + room..].fill(FENCE_BYTE);
            let out = &mut fenced[FENCE..FENCE + room];
            let mut inflate = Inflate::new();
            let (mut target, mut done) = (0, 0);
            let got = loop {
                target = room.min((target + step).max(done));
                match inflate.try_advance(stream, out, target) {
                    Ok(_) if inflate.has_ended() => break Ok(inflate.output()),
                    Ok(final_bytes) => {
                        assert!(final_bytes >= target && final_bytes >= done, "no progress");
                        assert!(final_bytes < room, "stopped before the end marker");
                        done = final_bytes;
                    }
                    Err(error) => break Err(error),
                }
            };
            assert_eq!(got, expected, "room {room} step {step}");
            if let Ok(count) = got {
                assert!(
                    out[..count] == plain[..count],
                    "other bytes: room {room} step {step}"
                );
            }
            let (before, behind) = (&fenced[..FENCE], &fenced[FENCE + room..]);
            assert!(
                before.iter().chain(behind).all(|&byte| byte == FENCE_BYTE),
                "written outside the output: room {room} step {step}"
            );
        }
        expected.is_ok()
    }
}
