//! Framed units of MPA (RFC 5044, sections 4 and 5): a length, a segment, padding, a CRC; markers.
//!
//! Must stay true: only a complete unit with correct CRC and markers is passed on; a unit that is
//! contiguous in the input is passed on without a copy; at most one unit is buffered. Without CRC
//! and markers the head of a long unit may be passed on first (`Deframer::head`): then nothing
//! behind it could still refuse its payload.

use crate::wire::ddp::UNTAGGED_BYTES;
use crate::wire::terminate::Cause;
use crate::wire::word16;
use sidecore_bare::width::{ToU64, ToUsize};

/// Distance of markers in the stream, in bytes.
const MARKER_DISTANCE: usize = 512;
const MARKER_BYTES: usize = 4;
const LENGTH_BYTES: usize = 2;
const CRC_BYTES: usize = 4;
/// The longest unit without markers, in bytes.
const UNIT_BYTES_MAX: usize = unit_bytes(SEGMENT_LENGTH_MAX);
/// The shortest segment whose payload is sent from its place, or placed as it comes: a copy of less
/// costs less than a call of the system more.
pub(crate) const LONG_BYTES: usize = 2048;
/// The longest head of a unit: its length and the segment's header.
pub(crate) const HEAD_BYTES: usize = LENGTH_BYTES + UNTAGGED_BYTES;
/// The longest segment: its length field has 16 bits.
const SEGMENT_LENGTH_MAX: usize = 0xffff;

/// Length of a unit without markers.
const fn unit_bytes(segment_bytes: usize) -> usize {
    (LENGTH_BYTES + segment_bytes).next_multiple_of(4) + CRC_BYTES
}

/// Bytes from `position` of the stream to the next marker, 0 if one is there.
fn before_marker(position: u64) -> usize {
    // Markers count from the first byte after the start frames (RFC 5044, section 4.3).
    let past = (position % MARKER_DISTANCE.to_u64()).to_usize();
    (MARKER_DISTANCE - past) % MARKER_DISTANCE
}

/// Markers within a unit of `bytes` bytes that begins at `position`.
fn markers_within(position: u64, bytes: usize) -> usize {
    let before = before_marker(position);
    if bytes <= before {
        return 0; // one that stands exactly behind belongs to the next unit
    }
    // Each marker takes four of the 512 bytes, so fewer of the unit's own lie between two.
    1 + (bytes - before - 1) / (MARKER_DISTANCE - MARKER_BYTES)
}

/// A marker's pointer: the distance `at` from its unit's beginning (RFC 5044, section 4.3).
fn marker_pointer(at: usize) -> [u8; 2] {
    // Truncated: a unit of 64 KiB with its markers slightly exceeds the pointer's range.
    (at as u16).to_be_bytes()
}

/// Parser of a stream's units.
#[derive(Debug)]
pub struct Deframer {
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    /// Bytes of the stream before the next unit.
    position: u64,
    held: Vec<u8>,
    /// The heads of long units are passed on: [`Self::head`].
    shows_heads: bool,
    /// The unit whose head was passed on is buffered as a whole.
    is_refused: bool,
}

/// Result of one parsing step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// More bytes are needed; the present ones are buffered.
    More,
    /// A segment, in place; the unit's position and its CRC.
    There(&'a [u8], u64, u32),
    /// A segment in the buffer, see [`Deframer::take_held`]; the unit's position and its CRC.
    Held(u64, u32),
}

impl Deframer {
    /// One at the beginning of a stream, with or without CRC and markers.
    #[must_use]
    pub fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            markers,
            position: 0,
            held: Vec::new(),
            shows_heads: false,
            is_refused: false,
        }
    }

    /// One that passes on the heads of long units, where that is possible.
    pub(crate) fn showing_heads(crc: bool, markers: bool) -> Self {
        Self {
            shows_heads: !crc && !markers,
            ..Self::new(crc, markers)
        }
    }

    /// The head of a long unit, behind its length, and the segment's length: after [`Step::More`].
    pub(crate) fn head(&self) -> Option<(&[u8], usize)> {
        let length = word16(&self.held, 0).map(usize::from)?;
        let is_shown = self.shows_heads && !self.is_refused && length >= LONG_BYTES;
        let head = self.held.get(LENGTH_BYTES..HEAD_BYTES)?;
        (is_shown && self.held.len() == HEAD_BYTES).then_some((head, length))
    }

    /// Buffers the unit whose head was passed on.
    pub(crate) fn refuse_head(&mut self) {
        self.is_refused = true;
    }

    /// Leaves the rest of the unit whose head was passed on to the caller.
    pub(crate) fn leave_head(&mut self) {
        self.pass(self.held.len());
        self.held.clear();
    }

    /// The caller has taken `count` bytes of a unit.
    pub(crate) fn pass(&mut self, count: usize) {
        self.position += count.to_u64();
    }

    /// Bytes of the stream before the next expected one.
    pub(crate) fn awaited(&self) -> u64 {
        self.position + self.held.len().to_u64()
    }

    /// True between two units.
    pub(crate) fn is_between(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes the next unit, or all of its bytes that are present, from the front of `bytes`.
    pub fn step<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Step<'a>, Cause> {
        // The usual case: the whole unit is contiguous, and nothing has to be cut out of it.
        if self.held.is_empty()
            && !self.markers
            && let Some(length) = word16(bytes, 0)
        {
            let (length, count) = (usize::from(length), unit_bytes(length.into()));
            if let Some((unit, rest)) = bytes.split_at_checked(count) {
                let crc = self.check(unit)?;
                *bytes = rest;
                let position = self.position;
                self.position += count.to_u64();
                let segment = &unit[LENGTH_BYTES..LENGTH_BYTES + length];
                return Ok(Step::There(segment, position, crc));
            }
        }
        // Units begin at multiples of four bytes, as markers do: one may stand before the length,
        // never within it.
        let front = if self.markers && before_marker(self.position) == 0 {
            MARKER_BYTES
        } else {
            0
        };
        self.hold(bytes, front + LENGTH_BYTES);
        let Some(length) = word16(&self.held, front) else {
            return Ok(Step::More);
        };
        if self.shows_heads && !self.is_refused && usize::from(length) >= LONG_BYTES {
            self.hold(bytes, HEAD_BYTES);
            return Ok(Step::More);
        }
        let count = unit_bytes(length.into());
        let markers = if self.markers {
            markers_within(self.position, count)
        } else {
            0
        };
        let total = count + markers * MARKER_BYTES;
        self.hold(bytes, total);
        if self.held.len() < total {
            return Ok(Step::More);
        }
        // The CRC covers the markers, so they go only now (RFC 5044, section 4.4).
        let crc = self.check(&self.held)?;
        if self.markers {
            self.remove_markers()?;
        }
        self.held.truncate(LENGTH_BYTES + usize::from(length));
        self.held.drain(..LENGTH_BYTES);
        self.is_refused = false;
        let position = self.position;
        self.position += total.to_u64();
        Ok(Step::Held(position, crc))
    }

    /// The segment of the last [`Step::Held`]; the buffer must be returned.
    pub fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Takes memory back for units to come.
    pub fn give_back(&mut self, mut held: Vec<u8>) {
        held.clear();
        self.held = held;
    }

    fn hold(&mut self, bytes: &mut &[u8], count: usize) {
        // Never more than the unit: what is behind it may be passed on in place.
        let missing = count.saturating_sub(self.held.len()).min(bytes.len());
        let (now, rest) = bytes.split_at(missing);
        self.held.extend_from_slice(now);
        *bytes = rest;
    }

    fn check(&self, unit: &[u8]) -> Result<u32, Cause> {
        check_crc(unit, self.crc)
    }

    fn remove_markers(&mut self) -> Result<(), Cause> {
        let first = before_marker(self.position);
        let (mut at, mut to) = (first, first);
        while at < self.held.len() {
            if self.held.get(at + 2..at + 4) != Some(&marker_pointer(at)) {
                return Err(Cause::Framing);
            }
            let from = at + MARKER_BYTES;
            let end = self.held.len().min(at + MARKER_DISTANCE);
            self.held.copy_within(from..end, to);
            to += end - from;
            at = end;
        }
        self.held.truncate(to);
        Ok(())
    }
}

/// Bytes behind the payload of a unit with a segment of that length: padding and the CRC.
pub(crate) fn tail_bytes(segment_bytes: usize) -> usize {
    unit_bytes(segment_bytes) - LENGTH_BYTES - segment_bytes
}

/// A unit's received CRC, which must be correct if CRCs are in use.
fn check_crc(unit: &[u8], is_used: bool) -> Result<u32, Cause> {
    let (covered, crc) = unit.split_at(unit.len() - CRC_BYTES);
    // The first byte is the lowest, as in iSCSI; that of all other fields is the highest.
    let crc = crate::wire::array(crc, 0).map_or(0, u32::from_le_bytes);
    if is_used && crc32c::crc32c(covered) != crc {
        return Err(Cause::Crc);
    }
    Ok(crc)
}

/// The unit at the front of `bytes`, if it is complete, without markers, with a correct CRC: its
/// segment, its length, its CRC.
pub(crate) fn whole_unit(bytes: &[u8]) -> Option<(&[u8], usize, u32)> {
    let length = usize::from(word16(bytes, 0)?);
    let count = unit_bytes(length);
    let unit = bytes.get(..count)?;
    let crc = check_crc(unit, true).ok()?;
    Some((&unit[LENGTH_BYTES..LENGTH_BYTES + length], count, crc))
}

/// Writer of a stream's units.
#[derive(Debug)]
pub struct Framer {
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    position: u64,
}

impl Framer {
    /// One at the beginning of a stream, with or without CRC and markers.
    #[must_use]
    pub fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            markers,
            position: 0,
        }
    }

    /// The head of a unit that its caller writes itself, without CRC and markers; none with these.
    pub(crate) fn head(&self, segment_bytes: usize) -> Option<[u8; LENGTH_BYTES]> {
        let length = u16::try_from(segment_bytes).ok()?;
        (!self.crc && !self.markers).then_some(length.to_be_bytes())
    }

    /// A unit that its caller has written.
    pub(crate) fn pass(&mut self, segment_bytes: usize) {
        self.position += unit_bytes(segment_bytes).to_u64();
    }

    /// Longest segment whose unit fits into `room` bytes.
    pub fn segment_bytes_max(&self, room: usize) -> usize {
        let mut room = room.min(UNIT_BYTES_MAX);
        if self.markers {
            // As many as the worst position in the stream could need.
            room = room.saturating_sub(MARKER_BYTES * (room / 508 + 1));
        }
        let segment = (room & !3).saturating_sub(LENGTH_BYTES + CRC_BYTES);
        segment.min(SEGMENT_LENGTH_MAX)
    }

    /// Writes a unit to the front of `target`, which has room for it; `fill` writes the segment of
    /// `segment_bytes` bytes. Returns the unit's length.
    pub fn write<E>(
        &mut self,
        target: &mut [u8],
        segment_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let count = unit_bytes(segment_bytes);
        let end = LENGTH_BYTES + segment_bytes;
        // Callers keep to `segment_bytes_max`.
        let length = u16::try_from(segment_bytes).unwrap_or(u16::MAX);
        target[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        // An error leaves the position: the peer sees nothing of a unit that was not filled.
        fill(&mut target[LENGTH_BYTES..end])?;
        // Padding must be zero (RFC 5044, section 4.1), and the buffer has earlier data.
        target[end..count].fill(0);
        let total = if self.markers {
            self.insert_markers(target, count)
        } else {
            count
        };
        if self.crc {
            let (covered, crc) = target[..total].split_at_mut(total - CRC_BYTES);
            crc.copy_from_slice(&crc32c::crc32c(covered).to_le_bytes());
        }
        self.position += total.to_u64();
        Ok(total)
    }

    /// Makes room for markers, from the last to the first, and writes them; returns the unit's
    /// length.
    fn insert_markers(&self, target: &mut [u8], count: usize) -> usize {
        let markers = markers_within(self.position, count);
        let total = count + markers * MARKER_BYTES;
        let first = before_marker(self.position);
        let mut end = count;
        for index in (0..markers).rev() {
            let at = first + index * MARKER_DISTANCE;
            let from = at - index * MARKER_BYTES;
            target.copy_within(from..end, at + MARKER_BYTES);
            target[at..at + 2].fill(0);
            target[at + 2..at + 4].copy_from_slice(&marker_pointer(at));
            end = from;
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(framer: &mut Framer, segment: &[u8]) -> Vec<u8> {
        let mut target = vec![0xee; segment.len() + 700];
        let count = framer.write(&mut target, segment.len(), |bytes| {
            bytes.copy_from_slice(segment);
            Ok::<_, ()>(())
        });
        target.truncate(count.expect("it is filled"));
        target
    }

    /// All segments of a stream that arrives in pieces of `step` bytes.
    fn segments(
        deframer: &mut Deframer,
        stream: &[u8],
        step: usize,
    ) -> Result<Vec<Vec<u8>>, Cause> {
        let mut found = Vec::new();
        for mut piece in stream.chunks(step) {
            loop {
                match deframer.step(&mut piece)? {
                    Step::More => break,
                    Step::There(segment, ..) => found.push(segment.to_vec()),
                    Step::Held(..) => {
                        let held = deframer.take_held();
                        found.push(held.clone());
                        deframer.give_back(held);
                    }
                }
            }
        }
        Ok(found)
    }

    #[test]
    fn units_are_read_as_they_were_written_however_they_are_cut() {
        let sent: Vec<Vec<u8>> = (0..60_usize)
            .map(|index| {
                (0..index * 37 % 1400)
                    .map(|byte| (byte * index) as u8)
                    .collect()
            })
            .collect();
        for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut framer = Framer::new(crc, markers);
            let stream: Vec<u8> = sent.iter().flat_map(|one| unit(&mut framer, one)).collect();
            for step in [1, 2, 3, 5, 64, 508, 512, 1460, stream.len()] {
                let mut deframer = Deframer::new(crc, markers);
                assert_eq!(
                    segments(&mut deframer, &stream, step),
                    Ok(sent.clone()),
                    "{step}"
                );
                assert!(deframer.is_between());
                assert_eq!(deframer.awaited(), stream.len() as u64);
            }
        }
    }

    #[test]
    fn markers_stand_at_every_512_bytes_and_point_to_their_unit() {
        let mut framer = Framer::new(true, true);
        let first = unit(&mut framer, &[1; 502]);
        // A marker, the length, 502 bytes, no padding, the CRC: 512.
        assert_eq!(first[..6], [0, 0, 0, 0, 1, 246]);
        assert_eq!(first.len(), 512);
        let second = unit(&mut framer, &[2; 1000]);
        assert_eq!(
            second[..4],
            [0; 4],
            "one that stands between two units points to the second"
        );
        assert_eq!(second[512..516], [0, 0, 2, 0]);
        assert_eq!(second.len(), unit_bytes(1000) + 2 * MARKER_BYTES);
    }

    #[test]
    fn what_is_damaged_is_told() {
        let mut stream = unit(&mut Framer::new(true, false), b"segment");
        stream[4] ^= 1;
        let read = |stream: &[u8], markers| {
            segments(&mut Deframer::new(true, markers), stream, 7).map(|found| found.len())
        };
        assert_eq!(read(&stream, false), Err(Cause::Crc));
        stream[4] ^= 1;
        assert_eq!(read(&stream, false), Ok(1));
        let mut framer = Framer::new(false, true);
        let mut stream = unit(&mut framer, &[7; 900]);
        stream[515] ^= 4;
        let found = segments(&mut Deframer::new(false, true), &stream, 600);
        assert_eq!(found, Err(Cause::Framing));
    }

    #[test]
    fn a_unit_fits_into_its_room() {
        for markers in [false, true] {
            for room in (128..3000).chain([65_000, 65_535, 66_000, 70_000]) {
                let mut framer = Framer::new(true, markers);
                for _ in 0..3 {
                    let bytes = framer.segment_bytes_max(room);
                    assert!(
                        unit(&mut framer, &vec![0; bytes]).len() <= room,
                        "{room} {bytes}"
                    );
                }
            }
        }
    }
}
