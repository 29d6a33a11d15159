//! Calls without a stream: checksums, one buffer to another, `inflateBack`, and gzip files.

use crate::api::{Api, Pair, STREAM_BYTES, text};
use crate::common;
use crate::inflating::sum;
use crate::streams::{self, one};
use crate::{Case, without_each};
use libc::{c_int, c_uchar, c_uint, c_ulong, c_void};
use libz_rs_sys::*;
use sidecore_random::choices::Choices;
use std::cell::RefCell;
use std::ffi::CString;
use std::ptr;

/// A few calls that depend on nothing before them.
#[derive(Debug, Clone)]
pub(crate) enum Single {
    Sums {
        bytes: Vec<u8>,
        cut: usize,
        start: u32,
    },
    /// A stream, room, and whether the used length is requested.
    Uncompress(Vec<u8>, usize, bool),
    /// Seed, length, level, room more or less than the bound.
    Compress(u64, usize, i32, i64),
    Back {
        stream: Vec<u8>,
        window_bits: i32,
        pieces: Vec<usize>,
        /// The number of the output that is refused.
        refused: usize,
    },
}

impl Case for Single {
    fn draw(pair: &Pair, choices: &mut Choices) -> Self {
        match choices.below(4) {
            0 => {
                let bytes = streams::raw(choices);
                Self::Sums {
                    cut: choices.below(bytes.len() as u64 + 1) as usize,
                    bytes,
                    start: choices.bits() as u32,
                }
            }
            1 => {
                let mut made = streams::any(&pair.zlib, choices);
                while !(8..16).contains(&made.window_bits) && choices.below(8) != 0 {
                    made = streams::any(&pair.zlib, choices);
                }
                let room = one(choices, &[1, 20, 600, 600, 6_000, 50_000, 500_000]);
                let room = choices.below(room) as usize;
                Self::Uncompress(made.stream, room, choices.below(2) == 0)
            }
            2 => {
                let len = one(choices, &[0, 10, 600, 5_000, 100_000]);
                let less = choices.below(30) as i64;
                let room = one(choices, &[0, 0, 100, -less, -10 * less]);
                let level = choices.below(14) as i32 - 2;
                let len = choices.below(len + 1) as usize;
                Self::Compress(choices.bits(), len, level, room)
            }
            _ => {
                let mut made = streams::any(&pair.zlib, choices);
                while made.window_bits > 0 && choices.below(10) != 0 {
                    made = streams::any(&pair.zlib, choices);
                }
                let most = one(choices, &[2, 10, 300, 100_000]);
                Self::Back {
                    stream: made.stream,
                    window_bits: match choices.below(4) {
                        0 => one(choices, &[-1, 7, 16, 15]),
                        _ => -made.window_bits.clamp(-15, -8),
                    },
                    pieces: (0..1 + choices.below(6))
                        .map(|_| 1 + choices.below(most) as usize)
                        .collect(),
                    refused: match choices.below(4) {
                        0 => choices.below(4) as usize,
                        _ => usize::MAX,
                    },
                }
            }
        }
    }

    fn run(&self, pair: &Pair) -> Result<u64, String> {
        let [ours, zlib] = pair.both().map(|api| self.by(api, pair));
        // zlib's fast loop lets a match begin before the stream's first byte here, in whatever the
        // window had before.
        let is_refused = matches!(self, Self::Back { .. })
            && ours
                .iter()
                .any(|seen| seen.contains("invalid distance too far back"));
        if let (Self::Uncompress(..), [ours], [zlib]) = (self, &ours[..], &zlib[..])
            && ours.starts_with("0 ")
            && zlib.starts_with("-3 ")
        {
            crate::excuse();
            return Ok(1);
        }
        if ours != zlib && !is_refused {
            return Err(format!("ours {ours:?}\nzlib {zlib:?}"));
        }
        Ok(ours.len() as u64)
    }

    fn smaller(&self) -> Vec<Self> {
        let shorter = |bytes: &[u8]| {
            let len = bytes.len();
            let lens = [len / 2, len * 3 / 4, len.saturating_sub(1)];
            let cut = lens.iter().filter(|&&cut| cut < len);
            cut.map(|&cut| bytes[..cut].to_vec()).collect::<Vec<_>>()
        };
        match self {
            Self::Back {
                stream,
                window_bits,
                pieces,
                refused,
            } => shorter(stream)
                .into_iter()
                .map(|stream| Self::Back {
                    stream,
                    window_bits: *window_bits,
                    pieces: pieces.clone(),
                    refused: *refused,
                })
                .collect(),
            Self::Uncompress(stream, room, length) => shorter(stream)
                .into_iter()
                .map(|stream| Self::Uncompress(stream, *room, *length))
                .collect(),
            _ => Vec::new(),
        }
    }
}

impl Single {
    /// Observations of each call.
    fn by(&self, api: &Api, pair: &Pair) -> Vec<String> {
        // SAFETY: all buffers are there.
        unsafe {
            match self {
                Self::Sums { bytes, cut, start } => sums(api, bytes, *cut, *start),
                Self::Uncompress(stream, room, length) => {
                    let mut out = vec![0; *room + 1];
                    let (mut room, mut used) = (*room as c_ulong, stream.len() as c_ulong);
                    let code = if *length {
                        (api.uncompress2)(out.as_mut_ptr(), &mut room, stream.as_ptr(), &mut used)
                    } else {
                        (api.uncompress)(out.as_mut_ptr(), &mut room, stream.as_ptr(), used)
                    };
                    let sum = sum(&out[..room as usize]);
                    vec![format!("{code} room {room} used {used} {sum:x}")]
                }
                Self::Compress(seed, len, level, more) => {
                    let raw = common::bytes(*seed, *len);
                    let bound = (api.compressBound)(*len as c_ulong);
                    let room = bound.saturating_add_signed(*more) as usize;
                    let mut out = vec![0; room + 1];
                    let mut bytes = room as c_ulong;
                    let code = (api.compress2)(
                        out.as_mut_ptr(),
                        &mut bytes,
                        raw.as_ptr(),
                        *len as c_ulong,
                        *level,
                    );
                    // Which room is too small depends on the bytes.
                    if code == Z_BUF_ERROR && *more < 0 {
                        return vec!["short".to_owned()];
                    }
                    if code != Z_OK {
                        return vec![format!("{code}")];
                    }
                    let (mut again, mut left) = (vec![0; *len + 1], *len as c_ulong + 1);
                    let read = (pair.zlib.uncompress2)(
                        again.as_mut_ptr(),
                        &mut left,
                        out.as_ptr(),
                        &mut { bytes },
                    );
                    let is_same = read == Z_OK && again[..left as usize] == raw[..];
                    let seen = if *more < 0 && is_same { "short" } else { "all" };
                    vec![if is_same {
                        seen.to_owned()
                    } else {
                        format!("read {read} {left}")
                    }]
                }
                Self::Back {
                    stream,
                    window_bits,
                    pieces,
                    refused,
                } => back(api, stream, *window_bits, pieces, *refused),
            }
        }
    }
}

/// # Safety
/// None: slices.
unsafe fn sums(api: &Api, bytes: &[u8], cut: usize, start: u32) -> Vec<String> {
    let (left, right) = bytes.split_at(cut);
    let adler = (start % 65521) | (((start >> 16) % 65521) << 16);
    // SAFETY: slices.
    unsafe {
        let crcs = [left, right, bytes].map(|part| {
            let from_zero = (api.crc32_z)(0, part.as_ptr(), part.len());
            (
                from_zero,
                (api.crc32_z)(start.into(), part.as_ptr(), part.len()),
            )
        });
        let adlers = [left, right, bytes].map(|part| {
            let from_one = (api.adler32_z)(1, part.as_ptr(), part.len());
            (
                from_one,
                (api.adler32_z)(adler.into(), part.as_ptr(), part.len()),
            )
        });
        let len = right.len() as i64;
        let operator = (api.crc32_combine_gen)(len);
        vec![
            format!("{crcs:x?}"),
            format!("{adlers:x?}"),
            format!("{:x}", (api.crc32_combine)(crcs[0].1, crcs[1].0, len)),
            format!(
                "{:x}",
                (api.crc32_combine_op)(crcs[0].1, crcs[1].0, operator)
            ),
            format!("{:x}", (api.adler32_combine)(adlers[0].1, adlers[1].0, len)),
            format!("{:x}", (api.crc32_z)(start.into(), ptr::null(), 5)),
            format!("{:x}", (api.adler32_z)(start.into(), ptr::null(), 5)),
        ]
    }
}

/// The two functions' other side.
struct Behind<'a> {
    input: &'a [u8],
    pieces: &'a [usize],
    asked: usize,
    given: usize,
    out: Vec<u8>,
    outs: Vec<c_uint>,
    refused: usize,
}

unsafe extern "C" fn give(behind: *mut c_void, next: *mut *const c_uchar) -> c_uint {
    // SAFETY: as `back` passes it.
    let (behind, next) = unsafe { (&mut *behind.cast::<Behind<'_>>(), &mut *next) };
    let piece = behind.pieces[behind.asked % behind.pieces.len()];
    behind.asked += 1;
    let part = &behind.input[behind.given..behind.input.len().min(behind.given + piece)];
    behind.given += part.len();
    *next = if part.is_empty() {
        ptr::null()
    } else {
        part.as_ptr()
    };
    part.len() as c_uint
}

unsafe extern "C" fn take(behind: *mut c_void, bytes: *mut c_uchar, len: c_uint) -> c_int {
    // SAFETY: as `back` passes it; the bytes are in the window.
    let (behind, part) = unsafe {
        let part = std::slice::from_raw_parts(bytes, len as usize);
        (&mut *behind.cast::<Behind<'_>>(), part)
    };
    behind.out.extend(part);
    behind.outs.push(len);
    c_int::from(behind.outs.len() > behind.refused)
}

/// # Safety
/// None: slices.
unsafe fn back(
    api: &Api,
    stream: &[u8],
    window_bits: i32,
    pieces: &[usize],
    refused: usize,
) -> Vec<String> {
    let mut z = common::blank();
    (z.total_in, z.total_out, z.adler, z.data_type) = (5, 6, 7, 8);
    let mut window = vec![0; 1 << 15];
    let mut behind = Behind {
        input: stream,
        pieces,
        asked: 0,
        given: 0,
        out: Vec::new(),
        outs: Vec::new(),
        refused,
    };
    // SAFETY: all buffers are there; both functions get their documented arguments.
    unsafe {
        let version = (api.zlibVersion)();
        let window = window.as_mut_ptr();
        let begun = (api.inflateBackInit_)(&mut z, window_bits, window, version, STREAM_BYTES);
        let mut seen = vec![format!("begun {begun} msg {}", text(z.msg))];
        if begun == Z_OK {
            // The first bytes may come with the stream.
            let first = stream.len().min(pieces[0] - 1);
            behind.given = first;
            (z.next_in, z.avail_in) = (stream.as_ptr(), first as u32);
            let with: *mut c_void = (&raw mut behind).cast();
            let code = (api.inflateBack)(&mut z, Some(give), with, Some(take), with);
            let at = match z.next_in.is_null() {
                true => -1,
                false => z.next_in as isize - stream.as_ptr() as isize,
            };
            seen.push(format!(
                "code {code} at {at} left {} asked {} outs {:?} {:x} msg {} {} {} {} {}",
                z.avail_in,
                behind.asked,
                behind.outs,
                sum(&behind.out),
                text(z.msg),
                z.total_in,
                z.total_out,
                z.adler,
                z.data_type
            ));
            seen.push(format!("end {}", (api.inflateBackEnd)(&mut z)));
        }
        seen.push(format!("end {}", (api.inflateBackEnd)(&mut z)));
        seen
    }
}

#[derive(Debug, Clone)]
enum FileOp {
    Read(usize),
    Getc,
    Ungetc(u8),
    Gets(usize),
    Write(usize),
    Putc(u8),
    Puts(usize),
    Flush(i32),
    Params(i32, i32),
    Seek(i64, i32),
    Tell,
    Eof,
    Direct,
    Rewind,
    Error,
    ClearError,
    Offset,
}

/// A gzip file that is read or written.
#[derive(Debug, Clone)]
pub(crate) struct File {
    contents: Option<Vec<u8>>,
    mode: &'static str,
    buffer: u32,
    ops: Vec<FileOp>,
}

impl Case for File {
    fn draw(pair: &Pair, choices: &mut Choices) -> Self {
        let is_read = choices.below(2) == 0;
        let contents = match choices.below(6) {
            0 => streams::raw(choices),
            _ => loop {
                let made = streams::any(&pair.zlib, choices);
                if made.window_bits > 15 {
                    break made.stream;
                }
            },
        };
        let mode = if is_read {
            one(choices, &["r", "rb", "rb", "r+", "rT"])
        } else {
            one(
                choices,
                &["w", "wb1", "wb9h", "w0", "a", "wT", "wR", "wF", "x", "wx"],
            )
        };
        let count = 1 + choices.below(25);
        let op = |choices: &mut Choices| {
            let len = one(choices, &[0, 1, 10, 300, 300, 5_000, 20_000]);
            let len = choices.below(len + 1) as usize;
            match (choices.below(20), is_read) {
                (0..8, true) => FileOp::Read(len),
                (0..8, false) => FileOp::Write(len),
                (8, true) => FileOp::Getc,
                (8, false) => FileOp::Putc(choices.below(256) as u8),
                (9, true) => FileOp::Ungetc(choices.below(256) as u8),
                (9, false) => FileOp::Puts(len.min(200)),
                (10, true) => FileOp::Gets(len),
                (10, false) => FileOp::Flush(choices.below(6) as i32),
                // zlib 1.2.13 lets parameters be set where nothing is deflated, 1.3 does not.
                (11, false) if mode != "wT" => {
                    let level = choices.below(11) as i32 - 1;
                    FileOp::Params(level, choices.below(5) as i32)
                }
                (12 | 13, _) => {
                    let place = choices.below(3_000) as i64 - if is_read { 500 } else { 100 };
                    FileOp::Seek(place, choices.below(2) as i32)
                }
                (14, _) => FileOp::Eof,
                (15, true) => FileOp::Direct,
                (16, true) => FileOp::Rewind,
                (17, _) => FileOp::Error,
                (18, _) => FileOp::ClearError,
                (19, true) => FileOp::Offset,
                _ => FileOp::Tell,
            }
        };
        // Both the same: the bytes read before an error, and `gzoffset`, follow from it.
        let buffer = one(choices, &[8, 20, 512, 8_192, 100_000]);
        let ops = (0..count).map(|_| op(choices)).collect();
        Self {
            contents: is_read.then_some(contents),
            mode,
            buffer,
            ops,
        }
    }

    fn run(&self, pair: &Pair) -> Result<u64, String> {
        let [ours, zlib] = pair.both().map(|api| self.by(api, pair));
        for (number, (ours, zlib)) in ours.iter().zip(&zlib).enumerate() {
            if ours != zlib {
                return Err(format!("call {number}:\n  ours {ours}\n  zlib {zlib}"));
            }
        }
        Ok(ours.len() as u64)
    }

    fn smaller(&self) -> Vec<Self> {
        without_each(&self.ops)
            .map(|ops| Self {
                ops,
                ..self.clone()
            })
            .collect()
    }
}

impl File {
    fn by(&self, api: &Api, pair: &Pair) -> Vec<String> {
        thread_local! {
            static FOLDER: RefCell<tempfile::TempDir> = RefCell::new(
                tempfile::Builder::new().prefix("zlib-calls").tempdir_in("/dev/shm")
                    .or_else(|_| tempfile::tempdir()).unwrap(),
            );
        }
        let path = FOLDER.with_borrow(|folder| folder.path().join("file.gz"));
        std::fs::remove_file(&path).ok();
        if let Some(contents) = &self.contents {
            std::fs::write(&path, contents).unwrap();
        }
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let mode = CString::new(self.mode).unwrap();
        let raw = common::bytes(9, 20_000);
        let mut seen = Vec::new();
        // SAFETY: all buffers are there.
        unsafe {
            let file = (api.gzopen)(name.as_ptr(), mode.as_ptr());
            seen.push(format!("open {}", !file.is_null()));
            if file.is_null() {
                return seen;
            }
            seen.push(format!("buffer {}", (api.gzbuffer)(file, self.buffer)));
            if self.contents.is_none() {
                // zlib fills a gap before the first byte with whatever its memory held.
                seen.push(format!("write {}", (api.gzputc)(file, b'a'.into())));
            }
            let mut has_read = false;
            for op in &self.ops {
                // zlib 1.2.13 writes before its buffer where nothing was read.
                if matches!(op, FileOp::Ungetc(_)) && !has_read {
                    continue;
                }
                let did = file_op(api, file, op, &raw);
                has_read = match op {
                    FileOp::Read(len) => *len > 0 && did.as_bytes()[0].is_ascii_digit(),
                    FileOp::Getc => did != "-1",
                    _ => false,
                } && (api.gzeof)(file) == 0;
                seen.push(format!("{op:?} {did}"));
            }
            let mut code = 7;
            let has_text = !(api.gzerror)(file, &mut code).is_null();
            seen.push(format!("error {code} {has_text}"));
            seen.push(format!("close {}", (api.gzclose)(file)));
        }
        if self.mode.starts_with('w') || self.mode.starts_with('a') {
            seen.push(self.written(&path, pair));
        }
        seen
    }

    /// Contents of the file for a reader.
    fn written(&self, path: &std::path::Path, pair: &Pair) -> String {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let mut all = Vec::new();
        // SAFETY: the buffer is there.
        unsafe {
            let file = (pair.zlib.gzopen)(name.as_ptr(), c"rb".as_ptr());
            if file.is_null() {
                return "no file".to_owned();
            }
            let mut part = vec![0_u8; 100_000];
            loop {
                let len = (pair.zlib.gzread)(file, part.as_mut_ptr().cast(), 100_000);
                if len <= 0 {
                    all.extend(format!(" and {len}").bytes());
                    break;
                }
                all.extend(&part[..len as usize]);
            }
            (pair.zlib.gzclose)(file);
        }
        format!("{} bytes {:x}", all.len(), sum(&all))
    }
}

/// # Safety
/// The file is open.
unsafe fn file_op(api: &Api, file: gzFile, op: &FileOp, raw: &[u8]) -> String {
    // SAFETY: all buffers are there.
    unsafe {
        match *op {
            FileOp::Read(len) => {
                let mut out = vec![0_u8; len + 1];
                let got = (api.gzread)(file, out.as_mut_ptr().cast(), len as c_uint);
                format!("{got} {:x}", sum(&out[..got.max(0) as usize]))
            }
            FileOp::Getc => format!("{}", (api.gzgetc)(file)),
            FileOp::Ungetc(byte) => format!("{}", (api.gzungetc)(byte.into(), file)),
            FileOp::Gets(len) => {
                let mut line = vec![0_u8; len + 1];
                let got = (api.gzgets)(file, line.as_mut_ptr().cast(), len as c_int);
                let end = line.iter().position(|&byte| byte == 0);
                format!("{} {:x}", got.is_null(), sum(&line[..end.unwrap_or(0)]))
            }
            FileOp::Write(len) => {
                format!(
                    "{}",
                    (api.gzwrite)(file, raw.as_ptr().cast(), len as c_uint)
                )
            }
            FileOp::Putc(byte) => format!("{}", (api.gzputc)(file, byte.into())),
            FileOp::Puts(len) => {
                let line = CString::new(vec![b'x'; len]).unwrap();
                format!("{}", (api.gzputs)(file, line.as_ptr()))
            }
            FileOp::Flush(flush) => format!("{}", (api.gzflush)(file, flush)),
            FileOp::Params(level, strategy) => {
                format!("{}", (api.gzsetparams)(file, level, strategy))
            }
            FileOp::Seek(place, whence) => format!("{}", (api.gzseek)(file, place, whence)),
            FileOp::Tell => format!("{}", (api.gztell)(file)),
            FileOp::Eof => format!("{}", (api.gzeof)(file)),
            FileOp::Direct => format!("{}", (api.gzdirect)(file)),
            FileOp::Rewind => format!("{}", (api.gzrewind)(file)),
            FileOp::Offset => format!("{}", (api.gzoffset)(file)),
            FileOp::Error => {
                let mut code = 7;
                (api.gzerror)(file, &mut code);
                format!("{code}")
            }
            FileOp::ClearError => {
                (api.gzclearerr)(file);
                String::new()
            }
        }
    }
}
