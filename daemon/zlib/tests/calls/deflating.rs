//! `deflate` and all that goes with it.
//!
//! zlib does not promise its bytes, so both libraries are held to its rules, call by call: the code
//! that the arguments, the pending output and the flushes before require; totals and positions;
//! nothing left when there is room; flushed data can be inflated; the end where it belongs. A rule
//! that is wrong here shows with zlib itself. Where there is room for everything in each call, no
//! rule leaves a choice: codes, counts, checksums, messages and dictionaries of both must be equal.

use crate::api::Pair;
use crate::common;
use crate::deflate_side::Side;
use crate::streams::one;
use crate::{Case, without_each};
use libz_rs_sys::*;
use sidecore_random::choices::Choices;
use std::ptr;

#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Input at most, room, flush.
    Deflate(usize, usize, i32),
    Null(bool),
    /// Level, strategy, input at most, room.
    Params(i32, i32, usize, usize),
    Copy,
    Reset,
    EndInit(Start),
    Pending,
    /// Empty blocks of the fixed codes: 10 bits each.
    Prime(u32),
    PrimeWrong(i32),
    Tune,
    Header(u64),
    SetDictionary(usize),
    GetDictionary,
    /// All of some input in one room of the size that `deflateBound` gives.
    Bound(usize),
    UseEnded,
}

/// Parameters of a new stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    pub(crate) level: i32,
    pub(crate) window_bits: i32,
    pub(crate) memory_level: i32,
    pub(crate) strategy: i32,
}

#[derive(Debug, Clone)]
pub(crate) struct Deflating {
    /// Of the input, which repeats itself after a while.
    seed: u64,
    noise: bool,
    pub(crate) start: Start,
    pub(crate) is_ample: bool,
    pub(crate) ops: Vec<Op>,
}

const AMPLE: usize = 1 << 20;

fn start(choices: &mut Choices) -> Start {
    let window_bits = match choices.below(8) {
        0 => choices.below(60) as i32 - 18,
        1 | 2 => one(choices, &[8, 9, 10, 12, -9, -12, 25, 27, 30]),
        _ => one(choices, &[15, -15, 31]),
    };
    let levels = if choices.below(30) == 0 { 13 } else { 11 };
    let strategies = if choices.below(20) == 0 { 7 } else { 5 };
    Start {
        level: choices.below(levels) as i32 - 1,
        window_bits,
        memory_level: match choices.below(4) {
            0 => choices.below(11) as i32,
            _ => 8,
        },
        strategy: match choices.below(3) {
            0 => choices.below(strategies) as i32,
            _ => 0,
        },
    }
}

fn take(choices: &mut Choices) -> usize {
    let most = one(choices, &[1, 1, 5, 5, 40, 300, 300, 3_000]);
    let most = match choices.below(150) {
        0 => 400_000,
        1..5 => 60_000,
        _ => most,
    };
    choices.below(most) as usize
}

fn room(choices: &mut Choices, is_ample: bool) -> usize {
    if is_ample {
        return AMPLE;
    }
    let most = one(choices, &[2, 6, 6, 30, 30, 300, 300, 5_000, 200_000]);
    choices.below(most) as usize
}

fn op(choices: &mut Choices, is_ample: bool) -> Op {
    match choices.below(100) {
        0..62 => {
            let flush = match choices.below(20) {
                0..7 => Z_NO_FLUSH,
                7..9 => Z_PARTIAL_FLUSH,
                9..12 => Z_SYNC_FLUSH,
                12..14 => Z_FULL_FLUSH,
                14..17 => Z_BLOCK,
                17..19 => Z_FINISH,
                _ => one(choices, &[-1, 6, 100]),
            };
            Op::Deflate(take(choices), room(choices, is_ample), flush)
        }
        62 => Op::Null(choices.below(2) == 0),
        63..68 => {
            let strategy = match choices.below(2) {
                0 => 0,
                _ => choices.below(6) as i32,
            };
            let level = choices.below(12) as i32 - 1;
            Op::Params(level, strategy, take(choices), room(choices, is_ample))
        }
        68..72 => Op::Copy,
        72..76 => Op::Reset,
        76 | 77 => Op::EndInit(start(choices)),
        78..82 => Op::Pending,
        82..88 => Op::Prime(1 + choices.below(3) as u32),
        88 => Op::PrimeWrong(one(choices, &[-1, 17, 33])),
        89 => Op::Tune,
        90 | 91 => Op::Header(choices.below(16)),
        92 | 93 => Op::SetDictionary(one(choices, &[0, 1, 2, 3, 100, 3_000, 40_000])),
        94..97 => Op::GetDictionary,
        97 | 98 => Op::Bound(take(choices)),
        _ => Op::UseEnded,
    }
}

impl Case for Deflating {
    fn draw(_: &Pair, choices: &mut Choices) -> Self {
        let is_ample = choices.below(2) == 0;
        let count = 3 + choices.below(40);
        Self {
            seed: choices.bits() % 64,
            noise: choices.below(5) == 0,
            start: start(choices),
            is_ample,
            ops: (0..count).map(|_| op(choices, is_ample)).collect(),
        }
    }

    fn run(&self, pair: &Pair) -> Result<u64, String> {
        let raw = input(self.seed, self.noise);
        let [ours, zlib] = pair.both().map(|api| {
            let side = Side::new(api, &pair.zlib, &raw, self);
            side.run(self)
                .map_err(|error| format!("{}: {error}", api.name))
        });
        let (ours, zlib) = (ours?, zlib?);
        if self.is_ample {
            for (number, (ours, zlib)) in ours.iter().zip(&zlib).enumerate() {
                if ours != zlib {
                    let op = &self.ops.get(number);
                    return Err(format!(
                        "call {number} {op:?}:\n  ours {ours}\n  zlib {zlib}"
                    ));
                }
            }
        }
        Ok(self.ops.len() as u64 + 2)
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

/// The input of a seed; kept, as making it takes longer than most cases.
fn input(seed: u64, noise: bool) -> std::rc::Rc<Vec<u8>> {
    type Inputs = std::collections::HashMap<(u64, bool), std::rc::Rc<Vec<u8>>>;
    thread_local! {
        static KEPT: std::cell::RefCell<Inputs> = std::cell::RefCell::default();
    }
    KEPT.with_borrow_mut(|kept| {
        let make = || {
            let mut raw = if noise {
                common::noise(seed, 100_000)
            } else {
                common::bytes(seed, 400_000)
            };
            while raw.len() < 1 << 21 {
                raw.extend_from_within(..raw.len().min(300_000));
            }
            std::rc::Rc::new(raw)
        };
        kept.entry((seed, noise)).or_insert_with(make).clone()
    })
}

/// A gzip header and the fields that it points to.
pub(crate) struct Header {
    pub(crate) header: gz_header,
    extra: [u8; 4],
    name: [u8; 5],
    comment: [u8; 8],
}

impl Header {
    /// A header with the fields of these bits: extra, name, comment, checksum.
    pub(crate) fn given(given: u64) -> Box<Self> {
        let mut header = Box::new(Self {
            header: gz_header {
                text: 1,
                time: 123,
                xflags: 0,
                os: 7,
                extra: ptr::null_mut(),
                extra_len: 4,
                extra_max: 0,
                name: ptr::null_mut(),
                name_max: 0,
                comment: ptr::null_mut(),
                comm_max: 0,
                hcrc: i32::from(given & 8 != 0),
                done: 0,
            },
            extra: *b"abcd",
            name: *b"name\0",
            comment: *b"comment\0",
        });
        if given & 1 != 0 {
            header.header.extra = header.extra.as_mut_ptr();
        }
        if given & 2 != 0 {
            header.header.name = header.name.as_mut_ptr();
        }
        if given & 4 != 0 {
            header.header.comment = header.comment.as_mut_ptr();
        }
        header
    }
}
