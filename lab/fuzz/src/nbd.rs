//! Fuzzing of whole dialogues against the core of the NBD server, with every reply checked against
//! the device.
//!
//! The core has no I/O, so a dialogue is a byte string, and a run of a million takes a minute. The
//! same oracle serves the property tests.
//! Must stay true: [`dialogue`] panics on, and only on, a fault of ours: a wrong byte, a malformed
//! or missing reply, output past its bound, or a result that depends on how the bytes arrived.
//! Any thread may call it; it keeps nothing.
//! Source: own; the rules are the NBD protocol document's.

use sidecore_block::source::BlockSource;
use sidecore_export::nbd::handshake::{
    Export, Handshake, OPTION_DATA_BYTES_MAX, OPTIONS_MAX, REPLY_BYTES_MAX, Step, Terms,
};
use sidecore_export::nbd::reply::{
    CHUNK_DATA_BYTES_MAX, Disconnected, ERROR_TEXT_BYTES_MAX, EXTENTS_MAX, Sink, reply,
};
use sidecore_export::nbd::session::{Command, Next, Session};
use sidecore_export::nbd::wire::{
    self, EXTENDED_BYTES, Fields, Headers, OPTION_BYTES, chunk, state,
};

mod device;
mod seeds;
mod writes;

pub use device::{Device, FRAME_BYTES, SIZE_BYTES};
pub use seeds::{Script, info_data, meta, mutate, seeds};

/// Runs the dialogue that `data` is, with an export that is read-only and with one that takes
/// writes: its first byte says how the rest arrives. Returns the bytes that the first sent.
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
    let arrival_bytes = ARRIVALS[usize::from(arrival) % ARRIVALS.len()];
    writes::dialogue(device.bytes(), input, arrival_bytes);
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
            Next::Command(used, command) => {
                arriving.take(used);
                memory.bytes.clear();
                let outcome = reply(device, terms.headers, &command, &mut memory);
                check(device, terms, &command, outcome, &memory.bytes);
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

fn shake_hands(
    device: &dyn BlockSource,
    arriving: &mut Arriving<'_>,
    sent: &mut Vec<u8>,
) -> Option<Terms> {
    let export = Export::new(
        NAME,
        "a device for fuzzing",
        device.size_bytes(),
        FRAME_BYTES as u32,
    );
    let export = match device.writes() {
        Some(writes) => export.taking_writes(writes.grain_bytes()),
        None => export,
    };
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
            Step::StartTls(_) => unreachable!("the server has no TLS"),
            Step::Used(used) => {
                check_option_replies(wrote);
                assert!(used > 0);
                arriving.take(used);
            }
            Step::Begin(used, terms) => {
                assert!(terms.headers != Headers::Simple || terms.contexts.is_empty());
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
fn check(
    device: &Device,
    terms: Terms,
    command: &Command,
    outcome: Result<(), Disconnected>,
    bytes: &[u8],
) {
    let bound = match *command {
        Command::Read { len, .. } => {
            let len = len as usize;
            let chunks = len / FRAME_BYTES + len / CHUNK_DATA_BYTES_MAX + 3;
            len + chunks * (EXTENDED_BYTES + 8 + usize::from(ERROR_TEXT_BYTES_MAX) + 14)
        }
        Command::Status { .. } => EXTENDED_BYTES + 8 + 16 * EXTENTS_MAX,
        _ => EXTENDED_BYTES + 14 + usize::from(ERROR_TEXT_BYTES_MAX),
    };
    assert!(
        bytes.len() <= bound,
        "{command:?} was answered with {} bytes",
        bytes.len()
    );
    if terms.headers == Headers::Simple {
        check_simple(device, command, outcome, bytes);
    } else {
        assert_eq!(outcome, Ok(()));
        check_chunks(device, terms.headers, command, bytes);
    }
}

fn check_simple(
    device: &Device,
    command: &Command,
    outcome: Result<(), Disconnected>,
    bytes: &[u8],
) {
    let mut fields = Fields(bytes);
    assert_eq!(fields.u32(), Some(wire::SIMPLE_REPLY_MAGIC));
    let error = fields.u32().expect("a reply is cut short");
    assert_eq!(fields.u64(), Some(cookie(command)));
    let data = fields.0;
    match *command {
        Command::Read { offset, len, .. } => {
            let good = device.good(offset, u64::from(len));
            if outcome == Err(Disconnected::HalfReply) {
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
        Command::Refuse(refusal) => assert!(error == refusal.error && data.is_empty()),
        Command::Cache { offset, len, .. } => {
            assert_eq!(error == 0, device.good(offset, u64::from(len)));
            assert!(data.is_empty());
        }
        Command::Status { .. } => panic!("block status without structured replies"),
        _ => panic!("a change of a device that takes no writes"),
    }
}

fn check_chunks(device: &Device, headers: Headers, command: &Command, bytes: &[u8]) {
    let mut fields = Fields(bytes);
    let mut chunks = 0;
    let mut errors = Vec::new();
    let mut covered: Vec<(u64, u64)> = Vec::new();
    let mut done = false;
    while !fields.is_empty() {
        assert!(!done, "a chunk follows the last one");
        let (flags, kind, len) = chunk_head(&mut fields, command.reply_to(headers));
        let payload = fields.bytes(len).expect("a chunk is cut short");
        done = flags & chunk::DONE != 0;
        chunks += 1;
        match kind {
            chunk::NONE => assert!(done && payload.is_empty()),
            chunk::OFFSET_DATA => covered.push(check_data(device, command, payload)),
            chunk::BLOCK_STATUS if headers == Headers::Structured => {
                check_status(device, command, payload, false);
            }
            chunk::BLOCK_STATUS_EXT if headers == Headers::Extended => {
                check_status(device, command, payload, true);
            }
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
    match *command {
        Command::Refuse(refusal) => assert_eq!(errors, [(refusal.error, None)]),
        Command::Status { .. } => assert!(chunks == 1 && errors.is_empty()),
        Command::Cache { offset, len, .. } => {
            assert!(covered.is_empty());
            assert_eq!(errors.is_empty(), device.good(offset, u64::from(len)));
        }
        Command::Write { .. }
        | Command::Zero { .. }
        | Command::Trim { .. }
        | Command::Flush { .. } => {
            panic!("a change of a device that takes no writes");
        }
        Command::Read {
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
                // Exactly the damaged bytes are missing, not a byte more.
                let missing = u64::from(len) - covered.iter().map(|(a, b)| b - a).sum::<u64>();
                assert_eq!(missing, device.bad_bytes(offset, end));
            }
        }
    }
}

/// Reads a chunk's header, which must answer `to`: flags, kind, bytes of the payload.
pub(crate) fn chunk_head(fields: &mut Fields<'_>, to: wire::To) -> (u16, u16, usize) {
    let is_extended = to.headers == Headers::Extended;
    let magic = match is_extended {
        true => wire::EXTENDED_REPLY_MAGIC,
        false => wire::STRUCTURED_REPLY_MAGIC,
    };
    assert_eq!(fields.u32(), Some(magic));
    let flags = fields.u16().expect("a chunk is cut short");
    let kind = fields.u16().expect("a chunk is cut short");
    assert_eq!(fields.u64(), Some(to.cookie));
    let len = match is_extended {
        true => {
            assert_eq!(fields.u64(), Some(to.offset));
            fields.u64()
        }
        false => fields.u32().map(u64::from),
    };
    (flags, kind, len.expect("a chunk is cut short") as usize)
}

fn check_data(device: &Device, command: &Command, payload: &[u8]) -> (u64, u64) {
    let Command::Read {
        offset: from, len, ..
    } = *command
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

fn check_status(device: &Device, command: &Command, payload: &[u8], is_extended: bool) {
    let Command::Status {
        offset, len, one, ..
    } = *command
    else {
        panic!("a status that was not asked for");
    };
    let mut payload = Fields(payload);
    payload.u32().expect("a status without its context");
    let extents = is_extended.then(|| payload.u32().expect("a status without a count"));
    let mut at = offset;
    let mut count = 0;
    while !payload.is_empty() {
        let mut field = || match is_extended {
            true => payload.u64(),
            false => payload.u32().map(u64::from),
        };
        let extent = field().expect("an extent is cut short");
        let flags = field().expect("an extent is cut short");
        assert!(extent > 0 && at + extent <= offset + len);
        let bytes = &device.bytes()[at as usize..(at + extent) as usize];
        if flags & u64::from(state::ZERO) != 0 {
            assert!(
                bytes.iter().all(|&byte| byte == 0),
                "data was said to be zeros"
            );
        }
        at += extent;
        count += 1;
    }
    assert!(count > 0 && count <= if one { 1 } else { EXTENTS_MAX });
    assert!(extents.is_none_or(|extents| extents as usize == count));
}

fn cookie(command: &Command) -> u64 {
    match *command {
        Command::Read { cookie, .. }
        | Command::Status { cookie, .. }
        | Command::Cache { cookie, .. }
        | Command::Write { cookie, .. }
        | Command::Zero { cookie, .. }
        | Command::Trim { cookie, .. }
        | Command::Flush { cookie, .. } => cookie,
        Command::Refuse(refusal) => refusal.cookie,
    }
}

/// A sink that is memory.
#[derive(Debug, Default)]
pub struct Memory {
    /// Bytes sent.
    pub bytes: Vec<u8>,
}

impl Sink for Memory {
    fn send(&mut self, head: &[u8], pieces: &[&[u8]], _more: bool) -> Result<(), Disconnected> {
        self.bytes.extend_from_slice(head);
        for piece in pieces {
            self.bytes.extend_from_slice(piece);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Disconnected> {
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

/// The name of the export.
pub const NAME: &str = "disk";
const ARRIVALS: [usize; 4] = [usize::MAX, 1, 7, 64];
/// Summary of a long dialogue, to compare runs by.
const KEPT_BYTES_MAX: usize = 1 << 20;
