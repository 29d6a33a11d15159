//! The steps of a gzip header (RFC 1952, 2.3), and the fields that a program requested.

use super::machine::{Mode, PAUSE, Step};
use super::run::Run;
use crate::forward::crc32_of;
use crate::io::available;
use libc::c_int;
use libz_rs_sys::{Z_DEFLATED, gz_header};
use sidecore_bare::width::ToUsize;
use std::ptr;

impl Run<'_> {
    /// # Safety
    /// The stream's buffers are as its fields say, and the given header has the room that its
    /// fields say.
    pub(super) unsafe fn gzip_header(&mut self) -> Step {
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            match self.machine.mode {
                Mode::Flags => self.flags(),
                Mode::Time => {
                    self.need(32)?;
                    // The checksum of the header covers each field as it stands in the stream.
                    if let Some(head) = self.given() {
                        head.time = self.machine.hold;
                    }
                    self.continue_check(4);
                    self.go(Mode::Os)
                }
                Mode::Os => {
                    self.need(16)?;
                    if let Some(head) = self.given() {
                        let [xflags, os @ .., _, _, _] = self.machine.hold.to_le_bytes();
                        head.xflags = xflags.into();
                        // zlib does not mask it: bits of `inflatePrime` behind these bytes show.
                        head.os = i32::from_le_bytes(os);
                    }
                    self.continue_check(2);
                    self.go(Mode::ExtraLength)
                }
                Mode::ExtraLength => self.extra_length(),
                Mode::Extra => self.extra(),
                Mode::Name => self.text(Field::Name),
                Mode::Comment => self.text(Field::Comment),
                _ => self.header_end(),
            }
        }
    }

    /// The program's header.
    ///
    /// # Safety
    /// As [`Self::gzip_header`]; one reference at a time.
    unsafe fn given<'h>(&self) -> Option<&'h mut gz_header> {
        // SAFETY: the caller's promise.
        unsafe { self.machine.head.as_mut() }
    }

    /// True where the header ends with a checksum that is looked at.
    fn is_checked(&self) -> bool {
        self.machine.flags & HEADER_CHECKSUM != 0 && self.machine.wrap & 4 != 0
    }

    /// The bit buffer's bytes are the header's.
    fn continue_check(&mut self, bytes: usize) {
        if self.is_checked() {
            self.check_header(bytes);
        }
        self.drop_all_bits();
    }

    /// # Safety
    /// As [`Self::gzip_header`].
    unsafe fn flags(&mut self) -> Step {
        // SAFETY: the caller's promise.
        unsafe { self.need(16)? };
        // 16 bits: the method, and the flags.
        self.machine.flags = self.held_word().cast_signed();
        // The order of zlib's checks, which decides on the message.
        if self.machine.flags & 0xff != Z_DEFLATED {
            return self.bad(c"unknown compression method");
        }
        if self.machine.flags & 0xe000 != 0 {
            return self.bad(c"unknown header flags set");
        }
        // SAFETY: the caller's promise.
        if let Some(head) = unsafe { self.given() } {
            head.text = self.machine.flags >> 8 & 1;
        }
        self.continue_check(2);
        self.go(Mode::Time)
    }

    /// # Safety
    /// As [`Self::gzip_header`].
    unsafe fn extra_length(&mut self) -> Step {
        if self.machine.flags & EXTRA != 0 {
            // SAFETY: the caller's promise.
            unsafe { self.need(16)? };
            self.machine.length = self.held_word();
            // SAFETY: the caller's promise.
            if let Some(head) = unsafe { self.given() } {
                head.extra_len = self.machine.length;
            }
            self.continue_check(2);
        // SAFETY: the caller's promise.
        } else if let Some(head) = unsafe { self.given() } {
            // NULL tells the program that the header has no such field.
            head.extra = ptr::null_mut();
        }
        self.go(Mode::Extra)
    }

    /// # Safety
    /// As [`Self::gzip_header`].
    unsafe fn extra(&mut self) -> Step {
        if self.machine.flags & EXTRA != 0 {
            let count = self.machine.length.to_usize().min(self.have);
            if count > 0 {
                // SAFETY: the caller's promise.
                if let Some(head) = unsafe { self.given() }
                    && !head.extra.is_null()
                {
                    // A header that is requested in the middle has no earlier bytes.
                    let at = head.extra_len.wrapping_sub(self.machine.length).to_usize();
                    let room = head.extra_max.to_usize().saturating_sub(at);
                    // SAFETY: there is that room, and input.
                    unsafe {
                        let target = head.extra.wrapping_add(at);
                        ptr::copy_nonoverlapping(self.next, target, count.min(room));
                    }
                }
                // SAFETY: the caller's promise.
                unsafe { self.take(count) };
                self.machine.length -= available(count);
            }
            // The field goes on in the next call's input.
            if self.machine.length > 0 {
                return PAUSE;
            }
        }
        self.machine.length = 0;
        self.go(Mode::Name)
    }

    /// # Safety
    /// As [`Self::gzip_header`].
    unsafe fn text(&mut self, field: Field) -> Step {
        // SAFETY: the caller's promise.
        let head = unsafe { self.given() };
        let place = head.map(|head| match field {
            Field::Name => (&mut head.name, head.name_max),
            Field::Comment => (&mut head.comment, head.comm_max),
        });
        if self.machine.flags & field.flag() != 0 {
            if self.have == 0 {
                return PAUSE;
            }
            // SAFETY: the caller's promise.
            let input = unsafe { std::slice::from_raw_parts(self.next, self.have) };
            // The end is part of the text, and of the checksum.
            let end = input.iter().position(|&byte| byte == 0);
            let part = &input[..end.map_or(input.len(), |end| end + 1)];
            if let Some((text, room)) = place
                && !text.is_null()
            {
                let at = self.machine.length;
                let count = part.len().min(room.saturating_sub(at).to_usize());
                // SAFETY: there is that room, and input.
                unsafe {
                    let target = text.wrapping_add(at.to_usize());
                    ptr::copy_nonoverlapping(part.as_ptr(), target, count);
                }
                self.machine.length += available(count);
            }
            // SAFETY: the caller's promise.
            unsafe { self.take(part.len()) };
            if end.is_none() {
                return PAUSE;
            }
        } else if let Some((text, _)) = place {
            *text = ptr::null_mut();
        }
        match field {
            Field::Name => {
                self.machine.length = 0;
                self.go(Mode::Comment)
            }
            Field::Comment => self.go(Mode::HeaderCheck),
        }
    }

    /// Goes over input of the header.
    ///
    /// # Safety
    /// There is that much.
    unsafe fn take(&mut self, count: usize) {
        if self.is_checked() {
            // SAFETY: the caller's promise.
            let part = unsafe { std::slice::from_raw_parts(self.next, count) };
            self.machine.check = crc32_of(self.machine.check, part);
        }
        self.next = self.next.wrapping_add(count);
        self.have -= count;
    }

    /// # Safety
    /// As [`Self::gzip_header`].
    unsafe fn header_end(&mut self) -> Step {
        if self.machine.flags & HEADER_CHECKSUM != 0 {
            // SAFETY: the caller's promise.
            unsafe { self.need(16)? };
            // Its lower 16 bits (RFC 1952, 2.3.1).
            let check = u64::from(self.machine.check & 0xffff);
            if self.machine.wrap & 4 != 0 && self.machine.hold != check {
                return self.bad(c"header crc mismatch");
            }
            self.drop_all_bits();
        }
        // SAFETY: the caller's promise.
        if let Some(head) = unsafe { self.given() } {
            head.hcrc = self.machine.flags >> 9 & 1;
            head.done = 1;
        }
        // From here on the checksum is that of the inflated bytes.
        self.set_check(0);
        self.go(Mode::Type)
    }
}

/// A text of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Comment,
}

impl Field {
    fn flag(self) -> c_int {
        match self {
            Self::Name => 0x800,
            Self::Comment => 0x1000,
        }
    }
}

const HEADER_CHECKSUM: c_int = 0x200;
const EXTRA: c_int = 0x400;
