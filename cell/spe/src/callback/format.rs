//! Formatted output of the SPU's own library, which leaves `printf` and its like to the host.
//!
//! Its arguments lie in the store, a quadword each: those that came in registers first, and behind
//! them, 32 bytes further, those that came on the stack.
//!
//! Must stay true: nothing of a program's reaches the C library's formatting but one conversion at
//! a time, whose width and precision are bounded, with a value of our own. Source: the SPU's
//! application binary interface 1.9 for lists of arguments, newlib for the calls.

use super::call::Call;
use crate::store::STORE_BYTES;
use sidecore_bare::width::ToUsize;
use std::ffi::{CString, c_char, c_int};

/// A list of arguments: the next one, and where those in registers end.
pub(super) struct Arguments {
    next: u32,
    skip: u32,
}

impl Arguments {
    /// The list in two slots.
    pub(super) fn of(call: &Call, slot: u32) -> Self {
        Self {
            next: call.word(slot),
            skip: call.word(slot + 1),
        }
    }

    /// The place of the next argument.
    pub(super) fn take(&mut self) -> u32 {
        let ends = self.next <= self.skip && self.next.saturating_add(SLOT) > self.skip;
        let place = if ends {
            self.skip.wrapping_add(STACK_FRAME)
        } else {
            self.next
        };
        self.next = place.wrapping_add(SLOT);
        place
    }
}

/// A conversion: what stands between the percent sign and its letter.
#[derive(Default)]
struct Conversion {
    flags: String,
    width: Option<i32>,
    precision: Option<i32>,
    /// Bits of a number.
    bits: u32,
    /// True behind one `l`.
    long: bool,
}

/// The text of a format in `slot` with the arguments behind it; nothing for a format without an
/// end.
pub(super) fn text(call: &Call, slot: u32) -> Option<Vec<u8>> {
    let mut arguments = Arguments::of(call, slot + 1);
    let format = bytes_at(call, call.word(slot))?;
    let mut format = format.iter().copied().peekable();
    let mut text = Vec::new();
    while let Some(byte) = format.next() {
        // A program that prints for ever must not fill the host's memory.
        if text.len() > TEXT_MAX {
            break;
        }
        if byte != b'%' {
            text.push(byte);
            continue;
        }
        let mut conversion = Conversion {
            bits: 32,
            ..Conversion::default()
        };
        let mut pointed = false;
        for byte in format.by_ref() {
            match byte {
                b'-' | b'+' | b' ' | b'#' => conversion.flags.push(byte.into()),
                b'0' if !pointed && conversion.width.is_none() => conversion.flags.push('0'),
                b'.' => {
                    pointed = true;
                    conversion.precision = Some(0);
                }
                b'*' => {
                    let value = call.word_at(arguments.take()).cast_signed();
                    conversion.set(pointed, value);
                }
                b'0'..=b'9' => conversion.digit(pointed, i32::from(byte - b'0')),
                b'h' => conversion.bits = (conversion.bits / 2).max(8),
                // A long of the SPU's is a word.
                b'l' if !conversion.long => conversion.long = true,
                b'l' | b'q' | b'j' => conversion.bits = 64,
                b'L' | b'z' | b't' => {}
                _ => {
                    conversion.write(call, &mut arguments, byte, &mut text);
                    break;
                }
            }
        }
    }
    Some(text)
}

impl Conversion {
    /// Sets the width or the precision by an argument.
    fn set(&mut self, precision: bool, value: i32) {
        let value = value.clamp(-FIELD_MAX, FIELD_MAX);
        match (precision, value < 0) {
            // As if it were not there.
            (true, true) => self.precision = None,
            (true, false) => self.precision = Some(value),
            (false, true) => {
                self.flags.push('-');
                self.width = Some(-value);
            }
            (false, false) => self.width = Some(value),
        }
    }

    fn digit(&mut self, precision: bool, digit: i32) {
        let field = if precision {
            &mut self.precision
        } else {
            &mut self.width
        };
        *field = Some((field.unwrap_or(0) * 10 + digit).min(FIELD_MAX));
    }

    /// Writes an argument by a letter.
    fn write(&self, call: &Call, arguments: &mut Arguments, letter: u8, text: &mut Vec<u8>) {
        if letter == b'%' {
            text.push(b'%');
            return;
        }
        let place = arguments.take();
        match letter {
            b'd' | b'i' => {
                let value = self.number(call, place);
                let shift = 64 - self.bits;
                let value = (value << shift).cast_signed() >> shift;
                self.format("ll", b'd', text, |to, format| {
                    // SAFETY: a buffer of the length that is named; one conversion of this type.
                    unsafe { libc::snprintf(to.as_mut_ptr().cast(), to.len(), format, value) }
                });
            }
            b'u' | b'o' | b'x' | b'X' => {
                let shift = 64 - self.bits;
                let value = self.number(call, place) << shift >> shift;
                self.format("ll", letter, text, |to, format| {
                    // SAFETY: as above.
                    unsafe { libc::snprintf(to.as_mut_ptr().cast(), to.len(), format, value) }
                });
            }
            b'c' => {
                let value = call.word_at(place).cast_signed();
                self.format("", b'c', text, |to, format| {
                    // SAFETY: as above.
                    unsafe { libc::snprintf(to.as_mut_ptr().cast(), to.len(), format, value) }
                });
            }
            b'p' => {
                let value = call.word_at(place);
                self.format("", b'x', text, |to, _| {
                    // SAFETY: as above.
                    unsafe {
                        libc::snprintf(to.as_mut_ptr().cast(), to.len(), c"%#x".as_ptr(), value)
                    }
                });
            }
            b'e' | b'E' | b'f' | b'F' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(call.wide_at(place));
                self.format("", letter, text, |to, format| {
                    // SAFETY: as above.
                    unsafe { libc::snprintf(to.as_mut_ptr().cast(), to.len(), format, value) }
                });
            }
            b's' => self.string(call, call.word_at(place), text),
            b'n' => {
                let count = u32::try_from(text.len()).unwrap_or(u32::MAX);
                call.set_word_at(call.word_at(place), count);
            }
            // None that C has: it stands in the text.
            _ => text.extend([b'%', letter]),
        }
    }

    fn number(&self, call: &Call, place: u32) -> u64 {
        if self.bits == 64 {
            call.wide_at(place)
        } else {
            call.word_at(place).into()
        }
    }

    fn string(&self, call: &Call, place: u32, text: &mut Vec<u8>) {
        let found = if place == 0 {
            Some(b"(null)".to_vec())
        } else {
            // With a precision the text need not end.
            bytes_at(call, place).or_else(|| self.precision.map(|_| whole(call, place)))
        };
        let mut found = found.unwrap_or_default();
        if let Some(most) = self.precision {
            found.truncate(usize::try_from(most).unwrap_or(0));
        }
        let width = self.width.and_then(|width| usize::try_from(width).ok());
        let blanks = width.unwrap_or(0).saturating_sub(found.len());
        let blanks = vec![b' '; blanks];
        let left = self.flags.contains('-');
        let parts = if left {
            [found, blanks]
        } else {
            [blanks, found]
        };
        text.extend(parts.concat());
    }

    /// Lets the C library write one conversion.
    fn format(
        &self,
        length: &str,
        letter: u8,
        text: &mut Vec<u8>,
        print: impl Fn(&mut [u8], *const c_char) -> c_int,
    ) {
        let mut format = format!("%{}", self.flags);
        if let Some(width) = self.width {
            format += &width.to_string();
        }
        if let Some(precision) = self.precision {
            format += &format!(".{precision}");
        }
        format += length;
        format.push(char::from(letter));
        let Ok(format) = CString::new(format) else {
            return;
        };
        let mut buffer = vec![0; BUFFER_BYTES];
        let printed = print(&mut buffer, format.as_ptr());
        let printed = usize::try_from(printed).unwrap_or(0).min(BUFFER_BYTES - 1);
        text.extend(&buffer[..printed]);
    }
}

/// A copy of a text of the store's; nothing without an end.
pub(super) fn bytes_at(call: &Call, place: u32) -> Option<Vec<u8>> {
    call.text_at(place).map(copied)
}

/// A copy of all bytes of the store from a place on.
fn whole(call: &Call, place: u32) -> Vec<u8> {
    let (at, bytes) = call.part(place, STORE_BYTES);
    copied(std::ptr::slice_from_raw_parts(at.cast::<u8>(), bytes))
}

/// A copy of bytes of the store, which its program may change meanwhile.
fn copied(bytes: *const [u8]) -> Vec<u8> {
    let mut copy = vec![0; bytes.len()];
    // SAFETY: inside the store, and a buffer as long.
    unsafe { std::ptr::copy_nonoverlapping(bytes.cast(), copy.as_mut_ptr(), copy.len()) };
    copy
}

/// Puts a text and its end into the store, cut to `room` bytes.
pub(super) fn put(call: &Call, place: u32, text: &[u8], room: usize) {
    let (at, room) = call.part(place, room);
    if room == 0 {
        return;
    }
    let bytes = text.len().min(room - 1);
    // SAFETY: inside the store, with room for one byte more.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), at.cast::<u8>(), bytes);
        at.cast::<u8>().add(bytes).write(0);
    }
}

/// The room that a size names.
pub(super) fn room(size: u32) -> usize {
    size.to_usize().min(STORE_BYTES)
}

/// Bytes of an argument.
const SLOT: u32 = 16;
/// Bytes between the arguments of registers and those of the stack.
const STACK_FRAME: u32 = 32;
/// Width and precision at most.
const FIELD_MAX: i32 = 4096;
/// One conversion's text: a double has 309 digits before its point.
const BUFFER_BYTES: usize = 3 * 4096;
/// A whole text at most; a store's strings and a few fields.
pub(super) const TEXT_MAX: usize = 1 << 20;
