//! `inflate` and all that goes with it: both libraries must answer each call with the same code,
//! the same bytes and the same stream, to the last field.

use crate::api::{Api, Pair, STREAM_BYTES, text};
use crate::common;
use crate::streams::{self, Made, one};
use crate::{Case, without_each};
use libz_rs_sys::*;
use sidecore_random::choices::Choices;
use std::fmt;
use std::ptr;

#[derive(Debug, Clone)]
enum Op {
    /// Input at most, room, flush.
    Inflate(usize, usize, i32),
    Null(bool),
    Reset,
    ResetKeep,
    Reset2(i32),
    Sync(usize),
    SyncPoint,
    Prime(i32, i32),
    Mark,
    Copy,
    SetDictionary(bool),
    GetDictionary,
    Header(u32, u32, u32),
    Validate(i32),
    Undermine,
    /// Values that programs leave in the field.
    Adler(u32),
    /// The input again, from a place in it.
    Seek(usize),
    EndInit(i32),
    UseEnded,
}

#[derive(Clone)]
pub(crate) struct Inflating {
    made: Made,
    window_bits: i32,
    adler: u32,
    ops: Vec<Op>,
}

impl Inflating {
    /// Sequences that once showed a difference, however the generator changes.
    pub(crate) fn kept() -> Vec<Self> {
        // Bits of `inflatePrime` behind the two bytes of flags and system show in the system.
        let made = Made {
            stream: vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3],
            window_bits: 31,
            dictionary: Vec::new(),
        };
        vec![Self {
            made,
            window_bits: 31,
            adler: 0,
            ops: vec![
                Op::Header(9, 9, 9),
                Op::Inflate(1, 88, 0),
                Op::Inflate(7, 173_229, 0),
                Op::Prime(14, -1_350_492_126),
                Op::Inflate(226, 97, 6),
            ],
        }]
    }
}

impl fmt::Debug for Inflating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = &self.made.stream;
        write!(
            f,
            "window {} stream ({}) {:02x?} ops {:?}",
            self.window_bits,
            stream.len(),
            &stream[..stream.len().min(80)],
            self.ops
        )
    }
}

fn inflate_op(choices: &mut Choices) -> Op {
    let most = one(choices, &[1, 2, 20, 20, 500, 500, 1 << 20]);
    let take = match most {
        1 | 1_048_576 => most as usize,
        _ => choices.below(most) as usize,
    };
    let most = one(choices, &[1, 2, 20, 20, 400, 400, 70_000, 70_000]);
    let room = match most {
        1 => 1,
        70_000 => 33_000 + choices.below(400_000) as usize,
        _ => choices.below(most) as usize,
    };
    let flush = match choices.below(20) {
        0..7 => Z_NO_FLUSH,
        7..10 => Z_SYNC_FLUSH,
        10..13 => Z_FINISH,
        13..16 => Z_BLOCK,
        16..19 => Z_TREES,
        _ => one(choices, &[1, 3, 7, -1, 1000]),
    };
    Op::Inflate(take, room, flush)
}

fn window_bits(choices: &mut Choices) -> i32 {
    match choices.below(3) {
        0 => choices.below(70) as i32 - 18,
        _ => one(choices, &[-15, 15, 31, 47, 32, 0, 9, -9]),
    }
}

fn op(choices: &mut Choices, len: usize) -> Op {
    match choices.below(100) {
        0..74 => inflate_op(choices),
        74 => Op::Null(choices.below(2) == 0),
        75 | 76 => Op::Reset,
        77 => Op::ResetKeep,
        78 => Op::Reset2(window_bits(choices)),
        79 | 80 => Op::Sync(one(choices, &[0, 1, 5, 100, 1 << 20])),
        81 => Op::SyncPoint,
        82 | 83 => Op::Prime(choices.below(20) as i32 - 1, choices.bits() as i32),
        84 | 85 => Op::Mark,
        86 | 87 => Op::Copy,
        88 | 89 => Op::SetDictionary(choices.below(4) != 0),
        90 | 91 => Op::GetDictionary,
        92 | 93 => {
            let mut room = || choices.below(12) as u32;
            Op::Header(room(), room(), room())
        }
        94 => Op::Validate(choices.below(2) as i32),
        95 => Op::Undermine,
        96 => Op::Adler(choices.bits() as u32),
        97 => Op::Seek(choices.below(len as u64 + 1) as usize),
        98 => Op::EndInit(window_bits(choices)),
        _ => Op::UseEnded,
    }
}

impl Case for Inflating {
    fn draw(pair: &Pair, choices: &mut Choices) -> Self {
        let made = streams::any(&pair.zlib, choices);
        let window_bits = match choices.below(10) {
            0 => window_bits(choices),
            1 | 2 if made.window_bits > 0 => one(choices, &[47, 32]),
            3 if (8..16).contains(&made.window_bits) => one(choices, &[0, 15]),
            _ => made.window_bits,
        };
        let (first, count) = (choices.below(12) == 0, 4 + choices.below(40));
        let mut ops: Vec<Op> = Vec::new();
        if made.window_bits > 15 && choices.below(2) == 0 {
            ops.push(Op::Header(9, 9, 9));
        }
        if made.window_bits < 0 && !made.dictionary.is_empty() {
            ops.push(Op::SetDictionary(true));
        }
        if first {
            // All of it at once.
            let room = one(choices, &[700, 50_000, 400_000]);
            ops.push(Op::Inflate(1 << 20, room, one(choices, &[0, 2, 4])));
        }
        ops.extend((0..count).map(|_| op(choices, made.stream.len())));
        Self {
            made,
            window_bits,
            adler: choices.bits() as u32,
            ops,
        }
    }

    fn run(&self, pair: &Pair) -> Result<u64, String> {
        let mut sides = pair.both().map(|api| Side::new(api, self));
        for (number, op) in self.ops.iter().enumerate() {
            let [ours, zlib] = sides.each_mut().map(|side| side.step(self, op));
            if ours != zlib && ours.starts_with("code 1 ") && crate::is_excused(&zlib) {
                crate::excuse();
                return Ok(number as u64 + 1);
            }
            if ours != zlib {
                return Err(format!(
                    "call {number} {op:?}:\n  ours {ours}\n  zlib {zlib}"
                ));
            }
        }
        let [ours, zlib] = sides.map(Side::end);
        if ours != zlib {
            return Err(format!("end: ours {ours}, zlib {zlib}"));
        }
        Ok(self.ops.len() as u64 + 2)
    }

    fn smaller(&self) -> Vec<Self> {
        let mut all: Vec<Self> = without_each(&self.ops)
            .map(|ops| Self {
                ops,
                ..self.clone()
            })
            .collect();
        let len = self.made.stream.len();
        for keep in [len / 2, len * 3 / 4, len.saturating_sub(1)] {
            let mut smaller = self.clone();
            smaller.made.stream.truncate(keep);
            if keep < len {
                all.push(smaller);
            }
        }
        all
    }
}

/// A header's fields with memory for its texts.
struct Header {
    header: gz_header,
    extra: [u8; 16],
    name: [u8; 16],
    comment: [u8; 16],
}

impl Header {
    fn text(&self) -> String {
        let h = &self.header;
        format!(
            "text {} time {} xflags {} os {} extra {} {} name {} comment {} hcrc {} done {} \
             {:x?} {:x?} {:x?}",
            h.text,
            h.time,
            h.xflags,
            h.os,
            h.extra.is_null(),
            h.extra_len,
            h.name.is_null(),
            h.comment.is_null(),
            h.hcrc,
            h.done,
            self.extra,
            self.name,
            self.comment
        )
    }
}

/// One library's stream.
struct Side<'a> {
    api: &'a Api,
    z: Box<z_stream>,
    at: usize,
    #[allow(clippy::vec_box, reason = "the library keeps their addresses")]
    headers: Vec<Box<Header>>,
    out: Vec<u8>,
    is_damaged: bool,
    /// Bits that the library holds, or [`FRESH`].
    held: i32,
}

/// Before a wrapper's header, which takes 16 bits.
const FRESH: i32 = -1;

impl<'a> Side<'a> {
    fn new(api: &'a Api, case: &Inflating) -> Self {
        let mut z = Box::new(common::blank());
        (z.adler, z.data_type) = (case.adler.into(), 77);
        let mut side = Self {
            api,
            z,
            at: 0,
            headers: Vec::new(),
            out: Vec::new(),
            is_damaged: false,
            held: 0,
        };
        side.init(case.window_bits);
        side
    }

    fn init(&mut self, window_bits: i32) -> i32 {
        self.held = if window_bits >= 0 { FRESH } else { 0 };
        // SAFETY: a stream that is to be begun.
        unsafe {
            let version = (self.api.zlibVersion)();
            (self.api.inflateInit2_)(&mut *self.z, window_bits, version, STREAM_BYTES)
        }
    }

    fn end(mut self) -> i32 {
        // SAFETY: the stream is not used again.
        unsafe { (self.api.inflateEnd)(&mut *self.z) }
    }

    /// All that can be seen of a call.
    fn step(&mut self, case: &Inflating, op: &Op) -> String {
        let input = &case.made.stream;
        let rest = &input[self.at..];
        let z: *mut z_stream = &mut *self.z;
        let api = self.api;
        let mut seen = String::new();
        let mut made = 0;
        // SAFETY: all buffers are there for the time of the call; headers for that of the case.
        let code = unsafe {
            match *op {
                Op::Inflate(take, room, flush) => {
                    let take = take.min(rest.len());
                    if self.out.len() < room {
                        self.out.resize(room, 0);
                    }
                    // Behind an end, an empty room has an address too.
                    self.out.reserve(1);
                    ((*z).next_in, (*z).avail_in) = (rest.as_ptr(), take as u32);
                    ((*z).next_out, (*z).avail_out) = (self.out.as_mut_ptr(), room as u32);
                    let code = (api.inflate)(z, flush);
                    let used = take - (*z).avail_in as usize;
                    made = room - (*z).avail_out as usize;
                    let moved = (
                        (*z).next_in as usize - rest.as_ptr() as usize,
                        (*z).next_out as usize - self.out.as_ptr() as usize,
                    );
                    assert_eq!(moved, (used, made));
                    self.at += used;
                    self.is_damaged = code == Z_DATA_ERROR;
                    self.held = (*z).data_type & 63;
                    seen = format!("used {used} made {made}");
                    code.into()
                }
                Op::Null(output) => {
                    ((*z).next_in, (*z).avail_in) = (rest.as_ptr(), 0);
                    ((*z).next_out, (*z).avail_out) = (ptr::null_mut(), 10);
                    if !output {
                        self.out.reserve(100);
                        ((*z).next_in, (*z).avail_in) = (ptr::null(), 10);
                        ((*z).next_out, (*z).avail_out) = (self.out.as_mut_ptr(), 10);
                    }
                    (api.inflate)(z, 0).into()
                }
                Op::Reset => (api.inflateReset)(z).into(),
                Op::ResetKeep => (api.inflateResetKeep)(z).into(),
                Op::Reset2(bits) => (api.inflateReset2)(z, bits).into(),
                Op::Sync(take) => {
                    let take = take.min(rest.len());
                    ((*z).next_in, (*z).avail_in) = (rest.as_ptr(), take as u32);
                    let code = (api.inflateSync)(z);
                    self.at += take - (*z).avail_in as usize;
                    seen = format!("at {}", self.at);
                    code.into()
                }
                Op::SyncPoint => (api.inflateSyncPoint)(z).into(),
                Op::Prime(bits, value) => {
                    // More than a byte's bits in the middle of a block make zlib's fast loop read
                    // before the input.
                    let free = if self.held == FRESH {
                        16
                    } else {
                        7 - self.held.min(7)
                    };
                    let bits = if bits > 16 { bits } else { bits.min(free) };
                    // Of no bits, zlib 1.2.13 says that they are too many where 1.3 does not.
                    let code = match bits {
                        0 => Z_OK,
                        _ => (api.inflatePrime)(z, bits, value),
                    };
                    self.held = match bits {
                        ..0 => 0,
                        0..=16 if self.held != FRESH => self.held + bits,
                        1..=16 => bits,
                        _ => self.held,
                    };
                    code.into()
                }
                // Behind an error it says which of two loops met it.
                Op::Mark if self.is_damaged => 0,
                Op::Mark => (api.inflateMark)(z),
                Op::Copy => {
                    let mut copy = Box::new(common::blank());
                    let code = (api.inflateCopy)(&mut *copy, z);
                    if code == Z_OK {
                        let ended = (api.inflateEnd)(z);
                        seen = format!("ended {ended}");
                        self.z = copy;
                    }
                    code.into()
                }
                Op::SetDictionary(right) => {
                    let given = &case.made.dictionary;
                    let given = if right {
                        &given[..]
                    } else {
                        &given[given.len() / 2..]
                    };
                    let bytes = given.len() as u32;
                    // No address of a length of nothing: zlib's own copies would take it.
                    (api.inflateSetDictionary)(z, given.as_ptr(), bytes).into()
                }
                Op::GetDictionary => {
                    let (mut dictionary, mut bytes) = (vec![0; 1 << 15], 0);
                    let code = (api.inflateGetDictionary)(z, dictionary.as_mut_ptr(), &mut bytes);
                    seen = format!("{bytes}: {:x}", sum(&dictionary[..bytes as usize]));
                    code.into()
                }
                Op::Header(extra, name, comment) => {
                    let mut header = Box::new(Header {
                        header: gz_header {
                            text: 5,
                            time: 5,
                            xflags: 5,
                            os: 5,
                            extra: ptr::null_mut(),
                            extra_len: 5,
                            extra_max: extra,
                            name: ptr::null_mut(),
                            name_max: name,
                            comment: ptr::null_mut(),
                            comm_max: comment,
                            hcrc: 5,
                            done: 5,
                        },
                        extra: [0xee; 16],
                        name: [0xee; 16],
                        comment: [0xee; 16],
                    });
                    if extra > 2 {
                        header.header.extra = header.extra.as_mut_ptr();
                    }
                    if name > 2 {
                        header.header.name = header.name.as_mut_ptr();
                    }
                    if comment > 2 {
                        header.header.comment = header.comment.as_mut_ptr();
                    }
                    let code = (api.inflateGetHeader)(z, &mut header.header);
                    self.headers.push(header);
                    code.into()
                }
                Op::Validate(check) => (api.inflateValidate)(z, check).into(),
                Op::Undermine => (api.inflateUndermine)(z, 1).into(),
                Op::Adler(adler) => {
                    (*z).adler = adler.into();
                    0
                }
                Op::Seek(place) => {
                    self.at = place.min(input.len());
                    0
                }
                Op::EndInit(bits) => {
                    let ended = (api.inflateEnd)(z);
                    seen = format!("ended {ended}");
                    self.init(bits).into()
                }
                Op::UseEnded => {
                    let ended = (api.inflateEnd)(z);
                    let again = (api.inflateEnd)(z);
                    let (reset, mark) = ((api.inflateReset)(z), (api.inflateMark)(z));
                    let used = (api.inflate)(z, 0);
                    seen = format!("ended {ended} {again} reset {reset} mark {mark} used {used}");
                    self.init(case.window_bits).into()
                }
            }
        };
        let z = &*self.z;
        let header = self.headers.last().map_or(String::new(), |h| h.text());
        format!(
            "code {code} {seen} totals {} {} adler {:x} type {} msg {} {:x} {header}",
            z.total_in,
            z.total_out,
            z.adler,
            z.data_type,
            text(z.msg),
            sum(&self.out[..made])
        )
    }
}

pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
