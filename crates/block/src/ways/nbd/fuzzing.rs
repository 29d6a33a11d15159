//! What a fuzzer drives: whole dialogues against the core, with every reply checked against the device.
//!
//! Why here: the core has no I/O, so a dialogue is a byte string, and a run of a million takes a minute. The same oracle
//! serves the fuzz target, the example `nbd_fuzz` and the property tests.
//! Must stay true: [`dialogue`] panics on, and only on, a fault of ours: a wrong byte, a malformed or missing reply, output
//! past its bound, or a result that depends on how the bytes arrived.
//! Any thread may call it; it keeps nothing.
//! Source: own; the rules are the NBD protocol document's.

use super::answer::{CHUNK_DATA_BYTES_MAX, ERROR_TEXT_BYTES_MAX, EXTENTS_MAX, Gone, Sink, answer};
use super::client::split_mix;
use super::handshake::{
    Export, Handshake, OPTION_DATA_BYTES_MAX, OPTIONS_MAX, REPLY_BYTES_MAX, Step, Terms,
};
use super::session::{Next, Session, Work};
use super::wire::{
    self, Fields, OPTION_BYTES, REQUEST_BYTES, Request, chunk, command, command_flag, option, state,
};
use crate::source::{BlockSource, Deliver, Extent, MemorySource, ReadError, check_range};

/// Runs the dialogue that `data` is: its first byte says how the rest arrives. Returns the bytes that were sent.
///
/// # Panics
/// On any fault of the core.
pub fn fuzz_dialogue(data: &[u8]) -> usize {
    let Some((&arrival, input)) = data.split_first() else {
        return 0;
    };
    let device = Device::new();
    let sent = dialogue(
        &device,
        input,
        ARRIVALS[usize::from(arrival) % ARRIVALS.len()],
    );
    if arrival & 0x80 != 0 {
        let again = dialogue(&device, input, usize::MAX);
        assert!(
            again == sent,
            "the replies depend on how the requests arrived"
        );
    }
    sent.len()
}

/// Runs one dialogue whose input arrives `arrival_bytes` at a time; everything that was sent.
///
/// # Panics
/// On any fault of the core.
#[must_use]
pub fn dialogue(device: &Device, input: &[u8], arrival_bytes: usize) -> Vec<u8> {
    let mut arriving = Arriving {
        input,
        start: 0,
        end: 0,
        arrival_bytes,
    };
    let mut sent = Vec::new();
    let Some(terms) = shake_hands(device, &mut arriving, &mut sent) else {
        return sent;
    };
    let mut session = Session::new(terms, device.size_bytes(), device.read_with_max_bytes());
    let mut memory = Memory::default();
    loop {
        let next = session.next(arriving.seen());
        let whole = session.has_next(arriving.seen());
        match next {
            Next::Need if arriving.more() => {
                assert!(!whole || arriving.arrival_bytes > 0);
            }
            Next::Need | Next::Disconnect | Next::Violation(_) => return sent,
            Next::Used(used) => arriving.take(used),
            Next::Work(used, work) => {
                arriving.take(used);
                memory.bytes.clear();
                let outcome = answer(device, terms.structured, &work, &mut memory);
                check(device, terms, &work, outcome, &memory.bytes);
                if sent.len() < KEPT_BYTES_MAX {
                    sent.extend_from_slice(&memory.bytes);
                }
                if outcome.is_err() {
                    return sent;
                }
            }
        }
    }
}

fn shake_hands(device: &Device, arriving: &mut Arriving<'_>, sent: &mut Vec<u8>) -> Option<Terms> {
    let export = Export::new(
        NAME,
        "a device for fuzzing",
        device.size_bytes(),
        FRAME_BYTES as u32,
    );
    let mut handshake = Handshake::new();
    handshake.greet(sent);
    assert_eq!(sent.len(), wire::GREETING_BYTES);
    loop {
        let before = sent.len();
        let step = handshake.step(&export, arriving.seen(), sent);
        let wrote = &sent[before..];
        assert!(
            wrote.len() <= REPLY_BYTES_MAX,
            "a step wrote {} bytes",
            wrote.len()
        );
        assert!(sent.len() <= REPLY_BYTES_MAX * (OPTIONS_MAX as usize + 2));
        match step {
            Step::Need(needed) => {
                assert!(wrote.is_empty() && needed > arriving.seen().len());
                assert!(
                    needed <= OPTION_BYTES + OPTION_DATA_BYTES_MAX,
                    "waits for {needed} bytes"
                );
                if !arriving.more() {
                    return None;
                }
            }
            Step::Used(used) => {
                check_option_replies(wrote);
                assert!(used > 0);
                arriving.take(used);
            }
            Step::Begin(used, terms) => {
                assert!(terms.structured || !terms.allocation);
                arriving.take(used);
                return Some(terms);
            }
            Step::Close(_) => return None,
        }
    }
}

/// Option replies must be whole.
fn check_option_replies(bytes: &[u8]) {
    let mut fields = Fields(bytes);
    while !fields.is_empty() {
        assert_eq!(fields.u64(), Some(wire::OPTION_REPLY_MAGIC));
        let (_, _, len) = (fields.u32(), fields.u32(), fields.u32());
        let len = len.expect("an option reply is cut short") as usize;
        assert!(fields.bytes(len).is_some(), "an option reply is cut short");
    }
}

/// One request's replies against what the device holds.
fn check(device: &Device, terms: Terms, work: &Work, outcome: Result<(), Gone>, bytes: &[u8]) {
    let bound = match *work {
        Work::Read { len, .. } => {
            let len = len as usize;
            let chunks = len / FRAME_BYTES + len / CHUNK_DATA_BYTES_MAX + 3;
            len + chunks * (wire::DATA_CHUNK_BYTES + ERROR_TEXT_BYTES_MAX + 14)
        }
        Work::Status { .. } => wire::CHUNK_BYTES + 4 + 8 * EXTENTS_MAX,
        _ => wire::CHUNK_BYTES + 14 + ERROR_TEXT_BYTES_MAX,
    };
    assert!(
        bytes.len() <= bound,
        "{work:?} was answered with {} bytes",
        bytes.len()
    );
    if terms.structured {
        assert_eq!(outcome, Ok(()));
        check_chunks(device, work, bytes);
    } else {
        check_simple(device, work, outcome, bytes);
    }
}

fn check_simple(device: &Device, work: &Work, outcome: Result<(), Gone>, bytes: &[u8]) {
    let mut fields = Fields(bytes);
    assert_eq!(fields.u32(), Some(wire::SIMPLE_REPLY_MAGIC));
    let error = fields.u32().expect("a reply is cut short");
    assert_eq!(fields.u64(), Some(cookie(work)));
    let data = fields.0;
    match *work {
        Work::Read { offset, len, .. } => {
            let good = device.good(offset, u64::from(len));
            if outcome == Err(Gone::HalfReply) {
                assert!(!good && error == 0, "a good read was broken off");
                assert_eq!(data, &device.bytes()[offset as usize..][..data.len()]);
                assert!(device.good(offset, data.len() as u64));
            } else if good {
                assert_eq!(error, 0);
                assert_eq!(data, &device.bytes()[offset as usize..][..len as usize]);
            } else {
                assert!(error != 0 && data.is_empty());
            }
        }
        Work::Refuse(refusal) => assert!(error == refusal.error && data.is_empty()),
        Work::Cache { offset, len, .. } => {
            assert_eq!(error == 0, device.good(offset, u64::from(len)));
            assert!(data.is_empty());
        }
        Work::Status { .. } => panic!("block status without structured replies"),
    }
}

fn check_chunks(device: &Device, work: &Work, bytes: &[u8]) {
    let mut fields = Fields(bytes);
    let mut chunks = 0;
    let mut errors = Vec::new();
    let mut covered: Vec<(u64, u64)> = Vec::new();
    let mut done = false;
    while !fields.is_empty() {
        assert!(!done, "a chunk follows the last one");
        assert_eq!(fields.u32(), Some(wire::STRUCTURED_REPLY_MAGIC));
        let flags = fields.u16().expect("a chunk is cut short");
        let kind = fields.u16().expect("a chunk is cut short");
        assert_eq!(fields.u64(), Some(cookie(work)));
        let len = fields.u32().expect("a chunk is cut short") as usize;
        let payload = fields.bytes(len).expect("a chunk is cut short");
        done = flags & chunk::DONE != 0;
        chunks += 1;
        match kind {
            chunk::NONE => assert!(done && payload.is_empty()),
            chunk::OFFSET_DATA => covered.push(check_data(device, work, payload)),
            chunk::BLOCK_STATUS => check_status(device, work, payload),
            chunk::ERROR | chunk::ERROR_OFFSET => {
                let mut payload = Fields(payload);
                let error = payload.u32().expect("an error is cut short");
                let text = payload.u16().expect("an error is cut short");
                assert!(wire::text(payload.bytes(usize::from(text)).unwrap_or(&[0])).is_some());
                let at = (kind == chunk::ERROR_OFFSET).then(|| payload.u64().unwrap_or(u64::MAX));
                assert!(payload.is_empty() && error != 0);
                errors.push((error, at));
            }
            _ => panic!("a chunk of the unknown kind {kind}"),
        }
    }
    assert!(done, "no chunk is the last");
    match *work {
        Work::Refuse(refusal) => assert_eq!(errors, [(refusal.error, None)]),
        Work::Status { .. } => assert!(chunks == 1 && errors.is_empty()),
        Work::Cache { offset, len, .. } => {
            assert!(covered.is_empty());
            assert_eq!(errors.is_empty(), device.good(offset, u64::from(len)));
        }
        Work::Read {
            offset, len, whole, ..
        } => {
            let end = offset + u64::from(len);
            assert!(
                !whole || covered.len() <= 1,
                "an unfragmented read was fragmented"
            );
            covered.sort_unstable();
            assert!(
                covered.windows(2).all(|pair| pair[0].1 <= pair[1].0),
                "chunks overlap"
            );
            assert!(
                errors
                    .iter()
                    .all(|&(_, at)| at.is_some_and(|at| (offset..end).contains(&at)))
            );
            let good = device.good(offset, u64::from(len));
            assert_eq!(errors.is_empty(), good);
            if good || !whole {
                // Exactly what is damaged is missing, not a byte more.
                let missing = u64::from(len) - covered.iter().map(|(a, b)| b - a).sum::<u64>();
                assert_eq!(missing, device.bad_bytes(offset, end));
            }
        }
    }
}

fn check_data(device: &Device, work: &Work, payload: &[u8]) -> (u64, u64) {
    let Work::Read {
        offset: from, len, ..
    } = *work
    else {
        panic!("data that was not asked for");
    };
    let mut payload = Fields(payload);
    let offset = payload.u64().expect("a data chunk is cut short");
    let data = payload.0;
    let end = offset + data.len() as u64;
    assert!(!data.is_empty() && offset >= from && end <= from + u64::from(len));
    assert!(
        device.good(offset, data.len() as u64),
        "bytes of a bad frame were sent"
    );
    assert!(
        data == &device.bytes()[offset as usize..end as usize],
        "wrong bytes at {offset}"
    );
    (offset, end)
}

fn check_status(device: &Device, work: &Work, payload: &[u8]) {
    let Work::Status {
        offset, len, one, ..
    } = *work
    else {
        panic!("a status that was not asked for");
    };
    let mut payload = Fields(payload);
    payload.u32().expect("a status without its context");
    let mut at = offset;
    let mut count = 0;
    while !payload.is_empty() {
        let extent = u64::from(payload.u32().expect("an extent is cut short"));
        let flags = payload.u32().expect("an extent is cut short");
        assert!(extent > 0 && at + extent <= offset + u64::from(len));
        let bytes = &device.bytes()[at as usize..(at + extent) as usize];
        if flags & state::ZERO != 0 {
            assert!(
                bytes.iter().all(|&byte| byte == 0),
                "data was said to be zeros"
            );
        }
        at += extent;
        count += 1;
    }
    assert!(count > 0 && count <= if one { 1 } else { EXTENTS_MAX });
}

fn cookie(work: &Work) -> u64 {
    match *work {
        Work::Read { cookie, .. } | Work::Status { cookie, .. } | Work::Cache { cookie, .. } => {
            cookie
        }
        Work::Refuse(refusal) => refusal.cookie,
    }
}

/// A device of [`SIZE_BYTES`] with data, zeros, two bad frames and small limits, so that short dialogues reach everything.
#[derive(Debug)]
pub struct Device {
    inner: MemorySource,
}

impl Device {
    /// The one device; always the same bytes.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: MemorySource::new(CONTENTS.clone()),
        }
    }

    /// What it holds, the bad frames' lost bytes included.
    #[must_use]
    pub fn bytes(&self) -> &'static [u8] {
        &CONTENTS
    }

    /// Whether a range can be read.
    #[must_use]
    pub fn good(&self, offset: u64, len: u64) -> bool {
        self.bad_bytes(offset, offset + len) == 0
    }

    /// Bytes of bad frames from `offset` to `end`.
    fn bad_bytes(&self, offset: u64, end: u64) -> u64 {
        let frame = FRAME_BYTES as u64;
        let overlap =
            |bad: u64| (end.min((bad + 1) * frame)).saturating_sub(offset.max(bad * frame));
        BAD_FRAMES.into_iter().map(overlap).sum()
    }
}

impl Default for Device {
    fn default() -> Self {
        Self::new()
    }
}

impl BlockSource for Device {
    fn size_bytes(&self) -> u64 {
        SIZE_BYTES as u64
    }

    fn preferred_bytes(&self) -> u32 {
        FRAME_BYTES as u32
    }

    /// Less than the trait promises, so that short reads are split too.
    fn read_with_max_bytes(&self) -> usize {
        READ_BYTES_MAX
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.size_bytes())?;
        if !self.good(offset, dst.len() as u64) {
            return Err(bad_frame(offset));
        }
        self.inner.read_into(offset, dst)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        assert!(len <= READ_BYTES_MAX, "a read of {len} bytes was not split");
        if let Err(error) = check_range(offset, len, self.size_bytes()) {
            return deliver(Err(&error));
        }
        if !self.good(offset, len as u64) {
            return deliver(Err(&bad_frame(offset)));
        }
        // In pieces, as a cache of frames gives them.
        let bytes = &self.bytes()[offset as usize..offset as usize + len];
        let first = (FRAME_BYTES - offset as usize % FRAME_BYTES).min(len);
        let mut pieces = vec![&bytes[..first]];
        pieces.extend(bytes[first..].chunks(FRAME_BYTES));
        deliver(Ok(&pieces));
    }

    fn extent(&self, offset: u64) -> Extent {
        self.inner.extent(offset)
    }
}

fn bad_frame(offset: u64) -> ReadError {
    ReadError::BadFrame {
        frame: offset / FRAME_BYTES as u64,
        reason: "its checksum is wrong".to_owned(),
    }
}

static CONTENTS: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
    let mut random = 7;
    let mut bytes: Vec<u8> = (0..SIZE_BYTES)
        .map(|at| match at / 3000 % 3 {
            // Zeros that begin and end within sectors, and data that never looks like them.
            2 => 0,
            _ => split_mix(&mut random) as u8 | 1,
        })
        .collect();
    bytes[SIZE_BYTES - 700..].fill(0);
    bytes
});

/// A sink that is memory.
#[derive(Debug, Default)]
pub struct Memory {
    /// What was sent.
    pub bytes: Vec<u8>,
}

impl Sink for Memory {
    fn send(&mut self, head: &[u8], pieces: &[&[u8]], _more: bool) -> Result<(), Gone> {
        self.bytes.extend_from_slice(head);
        for piece in pieces {
            self.bytes.extend_from_slice(piece);
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Gone> {
        Ok(())
    }
}

/// Input that comes bit by bit.
struct Arriving<'i> {
    input: &'i [u8],
    start: usize,
    end: usize,
    arrival_bytes: usize,
}

impl<'i> Arriving<'i> {
    fn seen(&self) -> &'i [u8] {
        &self.input[self.start..self.end]
    }

    fn take(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "more was used than was there");
    }

    fn more(&mut self) -> bool {
        let before = self.end;
        self.end = self
            .end
            .saturating_add(self.arrival_bytes)
            .min(self.input.len());
        self.end > before
    }
}

/// Valid dialogues, each a beginning for mutations.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut plain = Script::new(3);
    plain.option(option::EXPORT_NAME, NAME.as_bytes());
    plain.requests(0);
    let mut old = Script::new(1);
    old.option(option::LIST, &[]);
    old.option(option::STARTTLS, &[]);
    old.option(option::EXPORT_NAME, &[]);
    old.requests(0);
    let mut chunks = Script::new(3);
    chunks.option(option::STRUCTURED_REPLY, &[]);
    chunks.option(option::LIST_META_CONTEXT, &meta(NAME, &[]));
    chunks.option(option::SET_META_CONTEXT, &meta(NAME, &["base:allocation"]));
    chunks.option(option::INFO, &info_data(NAME, &[0, 1, 2, 3]));
    chunks.option(option::GO, &info_data(NAME, &[3]));
    chunks.requests(command_flag::DF);
    let mut default = Script::new(3);
    default.option(11, &[]);
    default.option(option::STRUCTURED_REPLY, &[]);
    default.option(
        option::SET_META_CONTEXT,
        &meta("", &["qemu:dirty", "base:allocation"]),
    );
    default.option(option::GO, &info_data("", &[]));
    default.requests(0);
    let mut leaves = Script::new(3);
    leaves.option(option::LIST, &[]);
    leaves.option(option::ABORT, &[]);
    [plain, old, chunks, default, leaves]
        .map(|script| script.bytes)
        .to_vec()
}

/// `seed` changed in one to four places, sometimes with a piece of another dialogue.
#[must_use]
pub fn mutate(seeds: &[Vec<u8>], random: &mut u64) -> Vec<u8> {
    let mut pick = |below: usize| (split_mix(random) % below.max(1) as u64) as usize;
    let mut bytes = seeds[pick(seeds.len())].clone();
    for _ in 0..1 + pick(4) {
        // The first byte only says how the rest arrives; changes begin behind it.
        let at = 1 + pick(bytes.len() - 1);
        match pick(8) {
            0 => bytes[at] ^= 1 << pick(8),
            1 => bytes[at] = pick(256) as u8,
            2 => {
                let value = BOUNDARIES[pick(BOUNDARIES.len())].to_be_bytes();
                let width = [2, 4, 8][pick(3)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&value[8 - width..]);
            }
            3 => {
                let end = (at + 1 + pick(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + 1 + pick(REQUEST_BYTES * 2)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                let to = 1 + pick(bytes.len() - 1);
                bytes.splice(to..to, copy);
            }
            5 => bytes.truncate(at + 1),
            6 => {
                let other = &seeds[pick(seeds.len())];
                let from = pick(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                // A whole random request, most of it within the device.
                let request = Request {
                    flags: [0, 0, command_flag::DF, command_flag::REQ_ONE, 1][pick(5)],
                    command: pick(9) as u16,
                    cookie: pick(1 << 20) as u64,
                    offset: pick(SIZE_BYTES + 100) as u64,
                    len: pick(SIZE_BYTES) as u32,
                };
                bytes.extend_from_slice(&request.encode());
            }
        }
        if bytes.len() < 2 {
            bytes.extend_from_slice(&[0, 0]);
        }
    }
    bytes[0] = pick(256) as u8;
    bytes
}

struct Script {
    bytes: Vec<u8>,
}

impl Script {
    fn new(client_flags: u32) -> Self {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&client_flags.to_be_bytes());
        Self { bytes }
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        self.bytes
            .extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        self.bytes.extend_from_slice(&option.to_be_bytes());
        self.bytes
            .extend_from_slice(&(data.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(data);
    }

    fn requests(&mut self, flags: u16) {
        let size = SIZE_BYTES as u64;
        let table = [
            (0, command::READ, 0, 512),
            (flags, command::READ, 4096, 8192),
            (0, command::READ, 3 * FRAME_BYTES as u64 - 100, 300),
            (0, command::READ, 0, SIZE_BYTES as u32),
            (0, command::BLOCK_STATUS, 0, SIZE_BYTES as u32),
            (command_flag::REQ_ONE, command::BLOCK_STATUS, 7000, 20_000),
            (0, command::CACHE, 0, 4096),
            (0, command::WRITE, 0, 40),
        ];
        for (cookie, (flags, command, offset, len)) in table.into_iter().enumerate() {
            let request = Request {
                flags,
                command,
                cookie: cookie as u64,
                offset,
                len,
            };
            self.bytes.extend_from_slice(&request.encode());
            if command == command::WRITE {
                self.bytes.extend(std::iter::repeat_n(0xaa, len as usize));
            }
        }
        for (command, offset) in [(command::READ, size - 1), (command::DISC, 0)] {
            let request = Request {
                flags: 0,
                command,
                cookie: 99,
                offset,
                len: u32::from(command == command::READ),
            };
            self.bytes.extend_from_slice(&request.encode());
        }
    }
}

fn info_data(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    for kind in kinds {
        data.extend_from_slice(&kind.to_be_bytes());
    }
    data
}

fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

/// The device's size: no multiple of a frame or a sector.
pub const SIZE_BYTES: usize = 40_123;
/// The device's frame size.
pub const FRAME_BYTES: usize = 4096;
/// The name of the export.
pub const NAME: &str = "disk";
const READ_BYTES_MAX: usize = 12 << 10;
const BAD_FRAMES: [u64; 2] = [3, 6];
const ARRIVALS: [usize; 4] = [usize::MAX, 1, 7, 64];
const BOUNDARIES: [u64; 10] = [
    0,
    1,
    511,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    SIZE_BYTES as u64,
    SIZE_BYTES as u64 + 1,
    32 << 20,
    u64::MAX,
];
/// What is kept of a long dialogue to compare runs by.
const KEPT_BYTES_MAX: usize = 1 << 20;
