//! Formatted input of the SPU's own library, which leaves `scanf` and its like to the host.
//!
//! Must stay true: what is stored is cut at the store's end; a scan takes a bounded number of
//! bytes. Source: newlib for the calls, C99 (7.19.6.2) for the conversions.

use super::call::Call;
use super::format::{Arguments, TEXT_MAX, bytes_at};
use crate::store::STORE_BYTES;
use sidecore_bare::width::ToU64;
use std::ffi::CString;

/// The input of a scan, byte by byte.
pub(super) enum Input {
    /// An open stream.
    Stream(*mut libc::FILE),
    /// A text, the last byte first.
    Text(Vec<u8>),
}

/// A scan: its input, and how much of it was read.
struct Scan<'a> {
    input: &'a mut Input,
    taken: usize,
    /// True once there was no further byte.
    ended: bool,
}

/// A conversion of a scan: what stands between the percent sign and its letter.
struct Wanted {
    /// True where nothing is stored.
    dropped: bool,
    width: Option<usize>,
    halves: usize,
    longs: usize,
}

/// Scans by the format in `slot`, with the list of places behind it; the number of conversions that
/// were stored, or -1 where the input ends before the first. Nothing for a format without an end.
pub(super) fn scan(call: &Call, slot: u32, input: &mut Input) -> Option<i64> {
    let mut arguments = Arguments::of(call, slot + 1);
    let format = bytes_at(call, call.word(slot))?;
    let mut format = format.as_slice();
    let mut scan = Scan {
        input,
        taken: 0,
        ended: false,
    };
    let (mut stored, mut done) = (0, 0);
    while let [byte, rest @ ..] = format {
        format = rest;
        if is_blank(*byte) {
            scan.skip_blanks();
            // An end behind blanks alone is no failure; what comes next finds it again.
            scan.ended = false;
        } else if *byte != b'%' {
            if !scan.takes(*byte) {
                break;
            }
        } else {
            let wanted = Wanted::read(&mut format);
            let [letter, rest @ ..] = format else {
                break;
            };
            format = rest;
            if *letter == b'%' {
                scan.skip_blanks();
                if !scan.takes(b'%') {
                    break;
                }
                continue;
            }
            let set = (*letter == b'[').then(|| set(&mut format));
            let place = (!wanted.dropped).then(|| arguments.take());
            let place = place.map(|place| call.word_at(place));
            if *letter == b'n' {
                if let Some(place) = place {
                    wanted.store(call, place, scan.taken.to_u64());
                }
                continue;
            }
            if !scan.convert(call, &wanted, *letter, set.as_ref(), place) {
                break;
            }
            done += 1;
            stored += i64::from(place.is_some());
        }
    }
    Some(if done == 0 && scan.ended { -1 } else { stored })
}

/// The bytes that a set in brackets takes, whose format begins behind the first bracket.
fn set(format: &mut &[u8]) -> [bool; 256] {
    let inverted = format.first() == Some(&b'^');
    let start = usize::from(inverted);
    // A bracket at the begin is one of the set.
    let end = format.iter().skip(start + 1).position(|byte| *byte == b']');
    let end = end.map_or(format.len(), |at| at + start + 1);
    let all = &format[start.min(end)..end];
    let mut taken = [false; 256];
    for (at, byte) in all.iter().enumerate() {
        let range = *byte == b'-' && at > 0 && at + 1 < all.len();
        let first = if range { all[at - 1] } else { *byte };
        let last = if range { all[at + 1] } else { *byte };
        for one in first..=last {
            taken[usize::from(one)] = true;
        }
    }
    *format = &format[(end + 1).min(format.len())..];
    if inverted {
        taken.map(|one| !one)
    } else {
        taken
    }
}

impl Wanted {
    fn read(format: &mut &[u8]) -> Self {
        let mut wanted = Self {
            dropped: false,
            width: None,
            halves: 0,
            longs: 0,
        };
        while let [byte, rest @ ..] = *format {
            match byte {
                b'*' => wanted.dropped = true,
                b'0'..=b'9' => {
                    let width = wanted.width.unwrap_or(0) * 10 + usize::from(byte - b'0');
                    wanted.width = Some(width.min(TEXT_MAX));
                }
                b'h' => wanted.halves += 1,
                // A long of the SPU's is a word.
                b'l' => wanted.longs += 1,
                b'L' | b'q' | b'j' => wanted.longs += 2,
                b'z' | b't' => {}
                _ => break,
            }
            *format = rest;
        }
        wanted
    }

    /// Stores an integer.
    fn store(&self, call: &Call, place: u32, value: u64) {
        let bytes = match (self.longs, self.halves) {
            (2.., _) => 8,
            (_, 0) => 4,
            (_, 1) => 2,
            _ => 1,
        };
        call.set_number_at(place, value, bytes);
    }
}

impl Scan<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = match self.input {
            // A stream without an end must not hold the host for ever.
            _ if self.taken >= TEXT_MAX => None,
            // SAFETY: an open stream.
            Input::Stream(file) => u8::try_from(unsafe { libc::fgetc(*file) }).ok(),
            Input::Text(text) => text.pop(),
        };
        self.taken += usize::from(byte.is_some());
        self.ended |= byte.is_none();
        byte
    }

    /// Gives the last byte back.
    fn back(&mut self, byte: u8) {
        self.taken -= 1;
        match self.input {
            // SAFETY: an open stream; one byte is always taken back.
            Input::Stream(file) => unsafe {
                libc::ungetc(byte.into(), *file);
            },
            Input::Text(text) => text.push(byte),
        }
    }

    /// The bytes that a test takes, `most` of them at most.
    fn run(&mut self, most: usize, mut test: impl FnMut(&[u8], u8) -> bool) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < most {
            match self.next() {
                Some(byte) if test(&all, byte) => all.push(byte),
                Some(byte) => {
                    self.back(byte);
                    break;
                }
                None => break,
            }
        }
        all
    }

    fn skip_blanks(&mut self) {
        self.run(TEXT_MAX, |_, byte| is_blank(byte));
    }

    fn takes(&mut self, wanted: u8) -> bool {
        !self.run(1, |_, byte| byte == wanted).is_empty()
    }

    /// Reads by a letter and stores; false where the input does not match.
    fn convert(
        &mut self,
        call: &Call,
        wanted: &Wanted,
        letter: u8,
        set: Option<&[bool; 256]>,
        place: Option<u32>,
    ) -> bool {
        if !matches!(letter, b'c' | b'[') {
            self.skip_blanks();
        }
        let most = wanted.width.unwrap_or(TEXT_MAX);
        match letter {
            b'd' | b'i' | b'u' | b'o' | b'x' | b'X' | b'p' => {
                let base = match letter {
                    b'i' => 0,
                    b'o' => 8,
                    b'd' | b'u' => 10,
                    _ => 16,
                };
                let text = self.run(most, |before, byte| is_integers(before, byte, base));
                let Some(value) = integer(&text, base) else {
                    return false;
                };
                if let Some(place) = place {
                    wanted.store(call, place, value);
                }
            }
            b'a' | b'A' | b'e' | b'E' | b'f' | b'F' | b'g' | b'G' => {
                let text = self.run(most.min(FLOAT_MAX), is_floats);
                let Some(value) = float(text) else {
                    return false;
                };
                match place {
                    Some(place) if wanted.longs > 0 => {
                        call.set_number_at(place, value.to_bits(), 8);
                    }
                    // C's own narrowing.
                    #[allow(clippy::cast_possible_truncation)]
                    Some(place) => {
                        call.set_number_at(place, (value as f32).to_bits().into(), 4);
                    }
                    None => {}
                }
            }
            b's' | b'[' | b'c' => return self.text(call, wanted, letter, set, place),
            // None that C has.
            _ => return false,
        }
        true
    }

    /// A word, the bytes of a set, or a number of bytes.
    fn text(
        &mut self,
        call: &Call,
        wanted: &Wanted,
        letter: u8,
        set: Option<&[bool; 256]>,
        place: Option<u32>,
    ) -> bool {
        let single = letter == b'c';
        let most = wanted.width.unwrap_or(if single { 1 } else { STORE_BYTES });
        let mut text = self.run(most, |_, byte| match set {
            Some(set) => set[usize::from(byte)],
            None => single || !is_blank(byte),
        });
        if text.is_empty() || (single && text.len() < most) {
            return false;
        }
        if !single {
            text.push(0);
        }
        if let Some(place) = place {
            call.set_bytes(place, &text);
        }
        true
    }
}

/// C's `isspace`, which has the vertical tab as well.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// True for a further byte of an integer with the bytes `before`.
fn is_integers(before: &[u8], byte: u8, base: u32) -> bool {
    let digits = before
        .strip_prefix(b"-")
        .or(before.strip_prefix(b"+"))
        .unwrap_or(before);
    let prefix = matches!(digits, [b'0', b'x' | b'X', ..]);
    let radix = match base {
        0 if prefix => 16,
        0 if digits.first() == Some(&b'0') => 8,
        0 => 10,
        base => base,
    };
    match byte {
        b'+' | b'-' => before.is_empty(),
        // `%o` of `0x7` takes the zero alone.
        b'x' | b'X' => digits == b"0" && matches!(base, 0 | 16),
        _ => char::from(byte).is_digit(radix),
    }
}

/// The number that the bytes are; nothing for none.
fn integer(text: &[u8], base: u32) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.trim_start_matches(['-', '+']);
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match (base, lower.strip_prefix("0x")) {
        (0 | 16, Some(rest)) => (16, rest),
        (0, None) if lower.starts_with('0') => (8, lower.as_str()),
        (0, None) => (10, lower.as_str()),
        (base, _) => (base, lower.as_str()),
    };
    if digits.is_empty() {
        return None;
    }
    let value = digits.chars().try_fold(0_u64, |value, digit| {
        let digit = u64::from(digit.to_digit(base)?);
        Some(value.saturating_mul(base.into()).saturating_add(digit))
    })?;
    Some(if text.starts_with('-') {
        value.wrapping_neg()
    } else {
        value
    })
}

/// True for a further byte of a number with the bytes `before`.
fn is_floats(before: &[u8], byte: u8) -> bool {
    let lower = before.to_ascii_lowercase();
    let digits = lower
        .strip_prefix(b"-")
        .or(lower.strip_prefix(b"+"))
        .unwrap_or(&lower);
    let hexadecimal = digits.starts_with(b"0x");
    let exponent = if hexadecimal { b'p' } else { b'e' };
    let word = [&b"infinity"[..], b"nan"]
        .iter()
        .any(|word| word.starts_with(&[digits, &[byte.to_ascii_lowercase()]].concat()));
    match byte {
        b'+' | b'-' => before.is_empty() || lower.last() == Some(&exponent),
        b'.' => !digits.contains(&b'.') && !digits.contains(&exponent),
        b'x' | b'X' => digits == b"0",
        b'0'..=b'9' => !digits.starts_with(b"i") && !digits.starts_with(b"n"),
        _ if word => true,
        _ if byte.to_ascii_lowercase() == exponent => {
            !digits.contains(&exponent) && digits.iter().any(u8::is_ascii_digit)
        }
        _ => hexadecimal && byte.is_ascii_hexdigit() && !digits.contains(&exponent),
    }
}

/// The number that all of the bytes are.
fn float(text: Vec<u8>) -> Option<f64> {
    if text.is_empty() {
        return None;
    }
    let bytes = text.len();
    let text = CString::new(text).ok()?;
    let mut end = std::ptr::null_mut();
    // SAFETY: a text with an end, and a pointer of our own.
    let value = unsafe { libc::strtod(text.as_ptr(), &raw mut end) };
    (end.addr() == text.as_ptr().addr() + bytes).then_some(value)
}

/// The text at a slot's place as a scan's input.
pub(super) fn text_input(call: &Call, slot: u32) -> Option<Input> {
    let mut text = bytes_at(call, call.word(slot))?;
    text.reverse();
    Some(Input::Text(text))
}

/// Bytes of a scanned number at most.
const FLOAT_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::super::tests::{BUFFER, C99, OTHER, Program, TEXT};
    use super::*;

    #[test]
    fn formats_of_the_spus_own_library_are_scanned() {
        let program = Program::new();
        program.put(OTHER, b" -12 0x1f:2.5;abc]4294967295 xyz 7");
        program.put(TEXT, b"%hd %i:%lf;%[^]]]%lld %*s%2hhu%n %d");
        for (at, place) in (0..).zip([0, 8, 16, 32, 48, 64, 72, 80]) {
            program.words(0x5000 + 16 * at, &[BUFFER + place]);
        }
        program.words(BUFFER, &[0; 24]);
        let scanned = || program.call(C99, 41, &[OTHER, TEXT, 0x5000, 0x8000]);
        assert_eq!(scanned(), (6, 0));
        let first = program.bytes(BUFFER, 10);
        assert_eq!(first, [0xf4, 0xff, 0, 0, 0, 0, 0, 0, 31, 0]);
        let double = program.wide(BUFFER + 16);
        assert_eq!(double, 2.5_f64.to_bits().cast_signed());
        assert_eq!(program.text(BUFFER + 32), b"abc");
        assert_eq!(program.wide(BUFFER + 48), u32::MAX.into());
        assert_eq!(program.word(BUFFER + 64), 7);
        assert_eq!(program.word(BUFFER + 72), 34);
        // The input ends before the first, a number that is none, and a format without an end.
        program.put(OTHER, b"  ");
        assert_eq!(scanned(), (-1, 0));
        program.put(OTHER, b"x");
        assert_eq!(scanned(), (0, 0));
        // The number of base 8 ends before the letter; blanks at the end are no failure.
        program.put(OTHER, b"\x0b0x7");
        program.put(TEXT, b"%lox%lo");
        assert_eq!(scanned(), (2, 0));
        assert_eq!((program.word(BUFFER), program.word(BUFFER + 8)), (0, 7));
        program.put(TEXT, b"\t0x7 ");
        assert_eq!(scanned(), (0, 0));
        assert!(program.0.write(STORE_BYTES - 4, b"%d%d"));
        let end = u32::try_from(STORE_BYTES).unwrap() - 4;
        assert_eq!(program.call(C99, 38, &[end, 0, 0]), (-1, libc::EFAULT));
    }

    #[test]
    fn numbers_are_scanned_as_c_has_them() {
        for (text, base, value) in [
            ("-0x10", 0, Some(0_u64.wrapping_sub(16))),
            ("017", 0, Some(15)),
            ("ff", 16, Some(255)),
            ("0", 0, Some(0)),
            ("+", 10, None),
            ("0x", 16, None),
            ("99999999999999999999999", 10, Some(u64::MAX)),
        ] {
            assert_eq!(integer(text.as_bytes(), base), value, "{text}");
        }
        for (text, wanted) in [("1.5e2x", "1.5e2"), ("-.5.", "-.5"), ("0x1p3q", "0x1p3")] {
            let mut input = Input::Text(text.bytes().rev().collect());
            let mut scan = Scan {
                input: &mut input,
                taken: 0,
                ended: false,
            };
            assert_eq!(scan.run(99, is_floats), wanted.as_bytes());
        }
        assert_eq!(float(b"0x1p3".to_vec()), Some(8.0));
        assert_eq!(float(b"1e".to_vec()), None);
    }
}
