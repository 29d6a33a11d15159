//! LZO1X, one instruction at a time, in safe code.
//!
//! Why here: it is the plain definition of the format. The tests and the fuzzer compare the fast
//! loop with it, and the fast loop leaves rare instructions and those near the end of a slice to
//! it.
//!
//! Must stay true: a [`Cursor`] only moves past an instruction that was executed completely, so
//! after an error it still points to the faulty one; every index is checked. Any thread.
//!
//! Source: docs/formats/lzo1x.md.

/// Fault of an LZO1X stream. Positions are bytes from the start of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lzo1xError {
    /// The stream ends inside an instruction, or without its end marker.
    #[error("the stream is cut short: the instruction at byte {at} needs bytes beyond its end")]
    InputOverrun {
        /// Offset of the instruction.
        at: usize,
    },
    /// The stream's output exceeds the given space.
    #[error("the instruction at byte {at} writes up to byte {needed} of an output of {room} bytes")]
    OutputOverrun {
        /// Offset of the instruction.
        at: usize,
        /// End of its output, in bytes from the frame's start.
        needed: usize,
        /// Size of the output space.
        room: usize,
    },
    /// A match reaches back before the first byte of the output.
    #[error("the match at byte {at} reaches back {distance} bytes where only {have} were written")]
    LookbehindOverrun {
        /// Offset of the instruction.
        at: usize,
        /// Its distance in bytes.
        distance: usize,
        /// Number of bytes.
        have: usize,
    },
    /// Bytes follow the end marker.
    #[error("{count} bytes follow the end marker, which ends at byte {at}")]
    TrailingGarbage {
        /// End of the end marker.
        at: usize,
        /// Number of bytes that follow.
        count: usize,
    },
}

impl Lzo1xError {
    /// The same in fixed words, for [`CodecError`](crate::codec::CodecError), which holds no
    /// numbers.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::InputOverrun { .. } => {
                "the stream is cut short (input overrun); fetch the image again"
            }
            Self::OutputOverrun { .. } => "the stream holds more than the frame (output overrun)",
            Self::LookbehindOverrun { .. } => {
                "a match reaches back before the frame's start (lookbehind overrun)"
            }
            Self::TrailingGarbage { .. } => "bytes follow the end marker (trailing garbage)",
        }
    }
}

/// Meaning of the next instruction byte below 16: it depends on the literals just copied.
pub(super) mod state {
    /// No literal since the last match: a literal run.
    pub(in super::super) const NONE: u8 = 0;
    /// A literal run (four or more): a match of three bytes.
    pub(in super::super) const RUN: u8 = 4;
    /// Nothing was read yet: the first byte has its own rules.
    pub(in super::super) const START: u8 = 5;
    // 1, 2 and 3 are counts: that many literals after a match, then a match of two bytes.
}

/// The state after `count` literals in front of the first match.
pub(super) fn state_after(count: usize) -> u8 {
    match count {
        0..=3 => count.to_le_bytes()[0],
        _ => state::RUN,
    }
}

/// Position of the decompressor, always between two instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Bytes of the stream that were consumed.
    pub(super) input: usize,
    /// Bytes of the output that are final.
    pub(super) output: usize,
    /// One of [`state`], or 1 to 3.
    pub(super) state: u8,
}

impl Cursor {
    pub(super) const START: Self = Self {
        input: 0,
        output: 0,
        state: state::START,
    };
}

/// Outcome of [`step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// An instruction; more follow.
    More,
    /// The end marker, with nothing after it.
    End,
}

/// Decompresses a whole stream, instruction by instruction and without `unsafe`; tests compare
/// [`Inflate`](super::Inflate) with it. Returns how many bytes of `out` it filled.
///
/// # Errors
/// The first fault of the stream. `out` is then unspecified.
pub fn inflate(frame: &[u8], out: &mut [u8]) -> Result<usize, Lzo1xError> {
    let mut cursor = Cursor::START;
    while step(frame, out, &mut cursor)? == Step::More {}
    Ok(cursor.output)
}

/// Executes the instruction under the cursor, trailing literals included.
///
/// # Errors
/// As [`inflate`]; the cursor has then not moved.
pub(super) fn step(frame: &[u8], out: &mut [u8], cursor: &mut Cursor) -> Result<Step, Lzo1xError> {
    let mut reader = Reader {
        frame,
        start: cursor.input,
        at: cursor.input,
    };
    let first = reader.byte()?;
    let mut writer = Writer {
        out,
        start: cursor.input,
        at: cursor.output,
    };

    let next_state = if cursor.state == state::START && first > 17 {
        let count = usize::from(first) - 17;
        writer.literals(reader.bytes(count)?)?;
        state_after(count)
    } else if first < 16 && matches!(cursor.state, state::NONE | state::START) {
        let count = 3 + reader.length(first, 15)?;
        writer.literals(reader.bytes(count)?)?;
        state::RUN
    } else {
        let (length, distance, trailing) = match first {
            0..=15 => {
                let high = usize::from(reader.byte()?);
                let near = (high << 2) + usize::from(first >> 2);
                // After a run, matches of two bytes make no sense; the bits mean one of three.
                match cursor.state {
                    state::RUN => (3, near + 2049, first),
                    _ => (2, near + 1, first),
                }
            }
            16..=31 => {
                let length = 2 + reader.length(first & 7, 7)?;
                let word = reader.word()?;
                let offset = (usize::from(first & 8) << 11) + usize::from(word >> 2);
                // A far match cannot have the distance 0x4000: these bits are the end marker.
                if offset == 0 {
                    return match frame.len() - reader.at {
                        0 => {
                            cursor.input = reader.at;
                            Ok(Step::End)
                        }
                        count => Err(Lzo1xError::TrailingGarbage {
                            at: reader.at,
                            count,
                        }),
                    };
                }
                (length, offset + 0x4000, word.to_le_bytes()[0])
            }
            32..=63 => {
                let length = 2 + reader.length(first & 31, 31)?;
                let word = reader.word()?;
                (length, usize::from(word >> 2) + 1, word.to_le_bytes()[0])
            }
            64..=255 => {
                let high = usize::from(reader.byte()?);
                let distance = (high << 3) + usize::from(first >> 2 & 7) + 1;
                (usize::from(first >> 5) + 1, distance, first)
            }
        };
        writer.copy(length, distance)?;
        let count = trailing & 3;
        writer.literals(reader.bytes(usize::from(count))?)?;
        count
    };

    // Only now: after an error the cursor still stands in front of the instruction.
    *cursor = Cursor {
        input: reader.at,
        output: writer.at,
        state: next_state,
    };
    Ok(Step::More)
}

/// Takes bytes from the stream.
struct Reader<'a> {
    frame: &'a [u8],
    start: usize,
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Lzo1xError> {
        let rest = self.frame.get(self.at..).unwrap_or_default();
        let bytes = rest
            .get(..count)
            .ok_or(Lzo1xError::InputOverrun { at: self.start })?;
        self.at += count;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, Lzo1xError> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    fn word(&mut self) -> Result<u16, Lzo1xError> {
        self.bytes(2)
            .map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// A length whose field in the instruction is `field`. A field of 0 means that it continues in
    /// further bytes, where each zero byte counts 255. Cannot overflow: a stream of `isize::MAX`
    /// zeros is too long to exist in memory.
    fn length(&mut self, field: u8, all_ones: usize) -> Result<usize, Lzo1xError> {
        if field != 0 {
            return Ok(usize::from(field));
        }
        let mut length = all_ones;
        loop {
            match self.byte()? {
                0 => length = length.saturating_add(255),
                last => return Ok(length.saturating_add(usize::from(last))),
            }
        }
    }
}

/// Writes bytes to the output.
struct Writer<'a> {
    out: &'a mut [u8],
    start: usize,
    at: usize,
}

impl Writer<'_> {
    /// The end of the next `count` bytes, if they fit.
    fn end(&self, count: usize) -> Result<usize, Lzo1xError> {
        let needed = self.at.saturating_add(count);
        let room = self.out.len();
        if needed <= room {
            Ok(needed)
        } else {
            Err(Lzo1xError::OutputOverrun {
                at: self.start,
                needed,
                room,
            })
        }
    }

    fn literals(&mut self, bytes: &[u8]) -> Result<(), Lzo1xError> {
        let end = self.end(bytes.len())?;
        self.out[self.at..end].copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }

    fn copy(&mut self, length: usize, distance: usize) -> Result<(), Lzo1xError> {
        if distance > self.at {
            let (at, have) = (self.start, self.at);
            return Err(Lzo1xError::LookbehindOverrun { at, distance, have });
        }
        let end = self.end(length)?;
        let from = self.at - distance;
        // A match may overlap its own output: the bytes from `from` on repeat, so each turn can
        // copy twice as much.
        while self.at < end {
            let count = (end - self.at).min(self.at - from);
            self.out.copy_within(from..from + count, self.at);
            self.at += count;
        }
        Ok(())
    }
}
