//! One library's stream while a case of `deflating` runs on it, and the rules that it has to keep.

use crate::api::{Api, STREAM_BYTES, text};
use crate::common;
use crate::deflating::{Deflating, Header, Op, Start};
use crate::inflating::sum;
use libz_rs_sys::*;
use std::ptr;

/// The rule's state of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Init,
    Busy,
    /// A requested finish is not done; begun or not, which zlib decides by its buffers.
    MayFinish,
    Finish,
}

/// One library's stream.
pub(crate) struct Side<'a> {
    api: &'a Api,
    reader: &'a Api,
    raw: &'a [u8],
    z: Box<z_stream>,
    is_begun: bool,
    start: Start,
    status: Status,
    last_flush: i32,
    /// The input of this stream begins here.
    begin: usize,
    at: usize,
    made: Vec<u8>,
    dictionary: Vec<u8>,
    /// Bits were put where no stream can have them.
    is_readable: bool,
    #[allow(clippy::vec_box, reason = "the library keeps their addresses")]
    headers: Vec<Box<Header>>,
}

impl<'a> Side<'a> {
    pub(crate) fn new(api: &'a Api, reader: &'a Api, raw: &'a [u8], case: &Deflating) -> Self {
        let mut side = Self {
            api,
            reader,
            raw,
            z: Box::new(common::blank()),
            is_begun: false,
            start: case.start,
            status: Status::Init,
            last_flush: -2,
            begin: 0,
            at: 0,
            made: Vec::new(),
            dictionary: Vec::new(),
            is_readable: true,
            headers: Vec::new(),
        };
        side.init(case.start);
        side
    }

    fn init(&mut self, start: Start) -> i32 {
        // SAFETY: a stream that is to be begun.
        let code = unsafe {
            (self.api.deflateInit2_)(
                &mut *self.z,
                start.level,
                8,
                start.window_bits,
                start.memory_level,
                start.strategy,
                (self.api.zlibVersion)(),
                STREAM_BYTES,
            )
        };
        self.is_begun = code == Z_OK;
        self.start = start;
        if self.start.level == -1 {
            self.start.level = 6;
        }
        self.headers.clear();
        self.restart();
        code
    }

    fn restart(&mut self) {
        self.status = Status::Init;
        self.last_flush = -2;
        self.begin = self.at;
        self.made.clear();
        self.dictionary.clear();
        self.is_readable = true;
    }

    fn is_raw(&self) -> bool {
        self.start.window_bits < 0
    }

    pub(crate) fn run(mut self, case: &Deflating) -> Result<Vec<String>, String> {
        let mut seen = Vec::new();
        for (number, op) in case.ops.iter().enumerate() {
            let step = self
                .step(op)
                .map_err(|error| format!("call {number} {op:?}: {error}, {:?}", self.status))?;
            let z = &*self.z;
            seen.push(format!(
                "{step} totals {} adler {:x} msg {}",
                z.total_in,
                z.adler,
                text(z.msg)
            ));
        }
        if self.is_begun {
            self.finish().map_err(|error| format!("end: {error}"))?;
        }
        // SAFETY: the stream is not used again.
        let end = unsafe { (self.api.deflateEnd)(&mut *self.z) };
        let wanted = if self.is_begun { Z_OK } else { Z_STREAM_ERROR };
        if end != wanted {
            return Err(format!("deflateEnd {end}"));
        }
        Ok(seen)
    }

    /// Goes on to the end, and inflates all of it.
    fn finish(&mut self) -> Result<(), String> {
        let rooms = [1 << 16, 7, 100, 3, 1 << 20];
        let mut calls = 0;
        while self.status != Status::Finish {
            calls += 1;
            if calls > 3_000_000 {
                return Err("it does not end".to_owned());
            }
            self.deflate(0, rooms[calls % rooms.len()], Z_FINISH, false)?;
        }
        self.read(true)
    }

    /// Inflates the output so far; all of the input is in it.
    fn read(&self, is_end: bool) -> Result<(), String> {
        if !self.is_readable {
            return Ok(());
        }
        let raw = &self.raw[self.begin..self.at];
        let mut z = common::blank();
        let mut out = vec![0; raw.len() + 100];
        let api = self.reader;
        // SAFETY: the buffers are there.
        unsafe {
            let version = (api.zlibVersion)();
            // zlib deflates with 9 for a requested 8.
            let window_bits = match self.start.window_bits {
                8 => 9,
                bits => bits,
            };
            let code = (api.inflateInit2_)(&mut z, window_bits, version, STREAM_BYTES);
            assert_eq!(code, Z_OK);
            (z.next_in, z.avail_in) = (self.made.as_ptr(), self.made.len() as u32);
            (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
            let dictionary = (self.dictionary.as_ptr(), self.dictionary.len() as u32);
            if self.is_raw() && dictionary.1 > 0 {
                (api.inflateSetDictionary)(&mut z, dictionary.0, dictionary.1);
            }
            let mut code = (api.inflate)(&mut z, Z_SYNC_FLUSH);
            if code == Z_NEED_DICT {
                code = (api.inflateSetDictionary)(&mut z, dictionary.0, dictionary.1);
                if code == Z_OK {
                    code = (api.inflate)(&mut z, Z_SYNC_FLUSH);
                }
            }
            let message = text(z.msg);
            let (left, got) = (z.avail_in, out.len() - z.avail_out as usize);
            (api.inflateEnd)(&mut z);
            let is_code = match code {
                Z_STREAM_END => is_end,
                Z_OK | Z_BUF_ERROR => !is_end,
                _ => false,
            };
            if !is_code || left > 0 || out[..got] != *raw {
                return Err(format!(
                    "inflate: {code} {message}, {left} bytes left, {got} of {} bytes, {}",
                    raw.len(),
                    if raw.starts_with(&out[..got.min(raw.len())]) {
                        "right"
                    } else {
                        "WRONG"
                    }
                ));
            }
        }
        Ok(())
    }

    fn pending(&mut self) -> (usize, i32) {
        let (mut bytes, mut bits) = (77, 77);
        // SAFETY: a stream.
        let code = unsafe { (self.api.deflatePending)(&mut *self.z, &mut bytes, &mut bits) };
        if code == Z_OK {
            (bytes as usize, bits)
        } else {
            (0, 0)
        }
    }

    /// One call of `deflate`, or of `deflateParams` where that deflates, by zlib's rules.
    fn deflate(&mut self, take: usize, room: usize, flush: i32, is_params: bool) -> Outcome {
        self.call(
            take,
            room,
            flush,
            |api, z| {
                // SAFETY: the caller's buffers.
                unsafe { (api.deflate)(z, flush) }
            },
            is_params,
        )
    }

    fn call(
        &mut self,
        take: usize,
        room: usize,
        flush: i32,
        work: impl FnOnce(&Api, &mut z_stream) -> i32,
        is_params: bool,
    ) -> Outcome {
        let (waiting, _) = self.pending();
        let take = take.min(self.raw.len() - self.at);
        thread_local! {
            static OUT: std::cell::Cell<Vec<u8>> = const { std::cell::Cell::new(Vec::new()) };
        }
        let mut out = OUT.take();
        if out.len() <= room {
            out.resize(room + 1, 0);
        }
        let z = &mut *self.z;
        (z.next_in, z.avail_in) = (self.raw[self.at..].as_ptr(), take as u32);
        (z.next_out, z.avail_out) = (out.as_mut_ptr(), room as u32);
        let totals = (z.total_in, z.total_out);
        let code = work(self.api, z);
        let z = &*self.z;
        let (used, made) = (take - z.avail_in as usize, room - z.avail_out as usize);
        let now = (totals.0 + used as u64, totals.1 + made as u64);
        if self.is_begun && (z.total_in, z.total_out) != now {
            return Err(format!(
                "totals {} {}, not {now:?}",
                z.total_in, z.total_out
            ));
        }
        if z.next_in as usize != self.raw[self.at..].as_ptr() as usize + used
            || z.next_out as usize != out.as_ptr() as usize + made
        {
            return Err("positions".to_owned());
        }
        self.at += used;
        self.made.extend(&out[..made]);
        OUT.set(out);
        let left = z.avail_out;
        let rest = z.avail_in;
        let (last_flush, status) = (self.last_flush, self.status);
        let wrong = |rule: &str| {
            Err(format!(
                "{rule}: code {code}, {waiting} waited, last flush {last_flush}, used {used} of \
                 {take}, made {made} of {room}"
            ))
        };
        let is_none = used == 0 && made == 0;
        if !self.is_begun || !(Z_NO_FLUSH..=Z_BLOCK).contains(&flush) {
            return if code == Z_STREAM_ERROR && is_none {
                Ok(format!("code {code}"))
            } else {
                wrong("no stream, or no flush")
            };
        }
        // `deflateParams` does not tell of `deflate`'s buffer error.
        let is_code = |wanted: i32| {
            code == wanted
                || (is_params && wanted == Z_BUF_ERROR && code == Z_OK)
                || (is_params && wanted == Z_OK && code == Z_BUF_ERROR && (rest > 0 || left == 0))
        };
        if status == Status::Finish && flush != Z_FINISH {
            return if is_code(Z_STREAM_ERROR) && is_none {
                Ok(format!("code {code}"))
            } else {
                wrong("after the end")
            };
        }
        if status == Status::MayFinish && flush != Z_FINISH && code == Z_STREAM_ERROR {
            return if is_none {
                Ok("code".to_owned())
            } else {
                wrong("after a finish")
            };
        }
        if room == 0 {
            return if is_code(Z_BUF_ERROR) && is_none {
                Ok(format!("code {code}"))
            } else {
                wrong("no room")
            };
        }
        self.last_flush = flush;
        if waiting > 0 {
            if made < waiting.min(room) {
                return wrong("what waited comes first");
            }
            if waiting >= room {
                self.last_flush = -1;
                return if is_code(Z_OK) && used == 0 {
                    Ok(format!("code {code}"))
                } else {
                    wrong("no room but for what waited")
                };
            }
        } else if take == 0 && rank(flush) <= rank(last_flush) && flush != Z_FINISH {
            return if is_code(Z_BUF_ERROR) && is_none {
                Ok(format!("code {code}"))
            } else {
                wrong("nothing to do")
            };
        }
        if status == Status::Finish && take > 0 {
            return if is_code(Z_BUF_ERROR) && used == 0 {
                Ok(format!("code {code}"))
            } else {
                wrong("input after the end")
            };
        }
        if status == Status::MayFinish && flush == Z_FINISH && take > 0 && code == Z_BUF_ERROR {
            return if used == 0 {
                Ok("code".to_owned())
            } else {
                wrong("input after a finish")
            };
        }
        if status == Status::Init {
            self.status = Status::Busy;
        }
        let (after, bits) = self.pending();
        if code == Z_STREAM_END {
            self.status = Status::Finish;
            return if flush == Z_FINISH && after == 0 && rest == 0 {
                Ok(format!("code {code}"))
            } else {
                wrong("an end with something left")
            };
        }
        if !is_code(Z_OK) {
            return wrong("all well");
        }
        if left > 0 && (rest > 0 || after > 0 || flush == Z_FINISH) {
            return wrong("room left");
        }
        if left > 0 && matches!(flush, Z_SYNC_FLUSH | Z_FULL_FLUSH) && bits != 0 {
            return wrong("bits after a flush");
        }
        if bits > 7 {
            return wrong("more than 7 bits");
        }
        if flush == Z_FINISH {
            self.status = Status::MayFinish;
        }
        if left == 0 {
            // After a header that just fits, zlib has nothing to do, and keeps the flush.
            let is_nothing = flush == Z_NO_FLUSH && take == 0 && status == Status::Init;
            self.last_flush = if is_nothing { ANY } else { -1 };
        }
        let is_flush = matches!(flush, Z_PARTIAL_FLUSH | Z_SYNC_FLUSH | Z_FULL_FLUSH);
        if left > 0 && is_flush && self.made.len() < 6_000 && self.at - self.begin < 40_000 {
            self.read(false)?;
        }
        let z = &*self.z;
        let raw = &self.raw[self.begin..self.at];
        // SAFETY: a slice.
        let check = unsafe {
            match self.start.window_bits {
                ..0 => z.adler,
                0..16 => (self.reader.adler32_z)(1, raw.as_ptr(), raw.len()),
                _ => (self.reader.crc32_z)(0, raw.as_ptr(), raw.len()),
            }
        };
        if !raw.is_empty() && z.adler != check {
            return wrong("the checksum");
        }
        Ok(format!("code {code}"))
    }

    fn step(&mut self, op: &Op) -> Outcome {
        let z: *mut z_stream = &mut *self.z;
        let api = self.api;
        // SAFETY: all buffers are there for the time of the call; headers for that of the stream.
        unsafe {
            Ok(match *op {
                Op::Deflate(take, room, flush) => self.deflate(take, room, flush, false)?,
                Op::Null(output) => {
                    let (mut out, input) = ([0_u8; 10], [0_u8; 10]);
                    ((*z).next_in, (*z).avail_in) = (input.as_ptr(), 0);
                    ((*z).next_out, (*z).avail_out) = (ptr::null_mut(), 10);
                    if !output {
                        ((*z).next_in, (*z).avail_in) = (ptr::null(), 10);
                        ((*z).next_out, (*z).avail_out) = (out.as_mut_ptr(), 10);
                    }
                    let code = (api.deflate)(z, Z_NO_FLUSH);
                    if code != Z_STREAM_ERROR {
                        return Err(format!("code {code}"));
                    }
                    format!("code {code}")
                }
                Op::Params(level, strategy, take, room) => {
                    self.params(level, strategy, take, room)?
                }
                Op::Copy => {
                    let mut copy = Box::new(common::blank());
                    let code = (api.deflateCopy)(&mut *copy, z);
                    let mut ended = 0;
                    if code == Z_OK {
                        ended = (api.deflateEnd)(z);
                        self.z = copy;
                    }
                    if self.is_begun != (code == Z_OK) {
                        return Err(format!("code {code}"));
                    }
                    let is_busy = self.status == Status::Busy;
                    if is_busy && ended != Z_DATA_ERROR && self.is_begun {
                        return Err(format!("ended {ended}"));
                    }
                    format!("code {code} ended {ended}")
                }
                Op::Reset => {
                    let code = (api.deflateReset)(z);
                    self.restart();
                    format!("code {code}")
                }
                Op::EndInit(start) => {
                    let ended = (api.deflateEnd)(z);
                    let code = self.init(start);
                    format!("ended {ended} code {code}")
                }
                Op::UseEnded => {
                    let (ended, again) = ((api.deflateEnd)(z), (api.deflateEnd)(z));
                    let codes = [
                        (api.deflate)(z, Z_FINISH),
                        (api.deflateReset)(z),
                        (api.deflateParams)(z, 1, 0),
                        (api.deflatePending)(z, ptr::null_mut(), ptr::null_mut()),
                        (api.deflatePrime)(z, 1, 1),
                        (api.deflateSetHeader)(z, ptr::null_mut()),
                        (api.deflateTune)(z, 1, 1, 1, 1),
                        (api.deflateSetDictionary)(z, [1].as_ptr(), 1),
                    ];
                    let code = self.init(self.start);
                    format!("ended {ended} {again} {codes:?} {code}")
                }
                Op::Pending => {
                    let (_, bits) = self.pending();
                    if bits > 7 {
                        return Err(format!("{bits} bits"));
                    }
                    let code = (api.deflatePending)(z, ptr::null_mut(), ptr::null_mut());
                    format!("code {code}")
                }
                Op::Prime(blocks) => {
                    let is_block = self.is_raw() || self.status != Status::Init;
                    // Behind the end they are no part of the stream.
                    if !is_block || matches!(self.status, Status::Finish | Status::MayFinish) {
                        return Ok(String::new());
                    }
                    let before = self.pending();
                    if before.0 > 0 {
                        // zlib would overwrite waiting output, where part of it is out.
                        return Ok(String::new());
                    }
                    let code = (0..blocks).map(|_| (api.deflatePrime)(z, 10, 2)).max();
                    let after = self.pending();
                    let bits = |(bytes, bits): (usize, i32)| bytes as i32 * 8 + bits;
                    // Ours may make blocks of the gathered input, before the bits.
                    if self.is_begun && bits(after) - bits(before) < 10 * blocks as i32 {
                        return Err(format!("{before:?} became {after:?}"));
                    }
                    format!("code {code:?}")
                }
                Op::PrimeWrong(bits) => format!("code {}", (api.deflatePrime)(z, bits, 1)),
                Op::Tune => format!("code {}", (api.deflateTune)(z, 4, 8, 16, 32)),
                Op::Header(given) => self.header(given),
                Op::SetDictionary(bytes) => {
                    let is_over = matches!(self.status, Status::Finish | Status::MayFinish);
                    if is_over && !self.is_raw() {
                        // zlib's window, which nothing will refer to, is neither kept nor cleared.
                        return Ok(String::new());
                    }
                    let dictionary = &self.raw[self.raw.len() - bytes..];
                    let code = (api.deflateSetDictionary)(z, dictionary.as_ptr(), bytes as u32);
                    if code == Z_OK {
                        // A reader cannot be given it in the middle, where zlib drops the output
                        // that level 0 still held.
                        let is_first = self.at == self.begin && self.dictionary.is_empty();
                        if is_first {
                            self.dictionary = dictionary.to_vec();
                        }
                        self.is_readable &= is_first;
                    }
                    format!("code {code}")
                }
                Op::GetDictionary => {
                    let (mut dictionary, mut bytes) = (vec![0; 1 << 15], 0);
                    let code = (api.deflateGetDictionary)(z, dictionary.as_mut_ptr(), &mut bytes);
                    // Of a window that was full once, zlib has as much as it did not slide away.
                    let size_bits = match self.start.window_bits {
                        bits @ ..0 => -bits,
                        bits => bits & 15,
                    };
                    let window = 1 << size_bits.clamp(9, 15);
                    let bytes = bytes as usize;
                    let first = bytes.saturating_sub(window - 262);
                    let is_full = bytes > window - 262;
                    let sum = sum(&dictionary[first..bytes]);
                    format!("code {code} {} {is_full} {sum:x}", bytes - first)
                }
                Op::Bound(take) => {
                    if !self.is_begun {
                        return Ok(String::new());
                    }
                    (api.deflateReset)(z);
                    self.restart();
                    let take = take.min(self.raw.len() - self.at);
                    let bound = (api.deflateBound)(z, take as u64) as usize;
                    let code = self.deflate(take, bound, Z_FINISH, false)?;
                    // zlib's own bound is too small for stored blocks in small windows.
                    if self.status == Status::Finish {
                        self.read(true)?;
                    } else if self.start.level > 0 || api.name == "ours" {
                        return Err(format!("{take} bytes do not fit {bound}: {code}"));
                    }
                    let code = (api.deflateReset)(z);
                    self.restart();
                    format!("code {code}")
                }
            })
        }
    }

    fn params(&mut self, level: i32, strategy: i32, take: usize, room: usize) -> Outcome {
        let asked = if level == -1 { 6 } else { level };
        let function = |level| match level {
            0 => 0,
            1..=3 => 1,
            _ => 2,
        };
        let valid = (0..=9).contains(&asked) && (0..=4).contains(&strategy) && self.is_begun;
        let changes =
            strategy != self.start.strategy || function(asked) != function(self.start.level);
        let work = |api: &Api, z: &mut z_stream| {
            // SAFETY: the caller's buffers.
            unsafe { (api.deflateParams)(z, level, strategy) }
        };
        let seen = if !(valid && changes && self.last_flush != -2) {
            let z = &mut *self.z;
            let mut out = [0_u8; 64];
            (z.next_in, z.avail_in) = (self.raw[self.at..].as_ptr(), 7);
            (z.next_out, z.avail_out) = (out.as_mut_ptr(), 64);
            let code = work(self.api, z);
            let wanted = if valid { Z_OK } else { Z_STREAM_ERROR };
            if code != wanted || (z.avail_in, z.avail_out) != (7, 64) {
                return Err(format!("code {code}, it took or made something"));
            }
            format!("code {code}")
        } else {
            self.call(take, room, Z_BLOCK, work, true)?
        };
        if seen == "code 0" {
            (self.start.level, self.start.strategy) = (asked, strategy);
        }
        Ok(seen)
    }

    fn header(&mut self, given: u64) -> String {
        let mut header = Header::given(given);
        // SAFETY: the header is kept as long as the stream.
        let code = unsafe { (self.api.deflateSetHeader)(&mut *self.z, &mut header.header) };
        self.headers.push(header);
        format!("code {code}")
    }
}

/// Observations of a call, or the rule that it broke.
type Outcome = Result<String, String>;

fn rank(flush: i32) -> i32 {
    flush * 2 - if flush > 4 { 9 } else { 0 }
}

/// A last flush of which nothing is known: repeating it is an error.
const ANY: i32 = Z_NO_FLUSH;
