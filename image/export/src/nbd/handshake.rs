//! The server's side of the handshake: fixed newstyle, options in, option replies out.
//!
//! Why here: it is the part of the protocol that has state before any byte of the device is sent.
//! It does no I/O: bytes in, bytes out, so that it can be fuzzed and replayed.
//! Must stay true: one call consumes at most one option and writes at most [`REPLY_BYTES_MAX`]; no
//! option makes the server allocate more than [`OPTION_DATA_BYTES_MAX`].
//! One thread per connection calls it.
//! Source: the NBD protocol document, "Handshake", "Option types", "Option reply types".

use super::wire::{
    self, Fields, Headers, OPTION_BYTES, handshake_flag, info, option, reply, transmission_flags,
};
use sidecore_bare::width::ToUsize;

/// The export offered, to every client alike.
#[derive(Debug, Clone)]
pub struct Export {
    /// Its name; clients may also ask for the empty name, the default export.
    pub name: String,
    /// Text for users (`NBD_INFO_DESCRIPTION`).
    pub description: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The preferred request size: a power of two, at least 512.
    pub preferred_bytes: u32,
    /// Requests are of whole blocks of this size; 1, or a power of two from 512.
    pub block_bytes: u32,
    /// True if it takes writes.
    pub writable: bool,
    /// The context `qemu:dirty-bitmap:NAME`, if there is a bitmap.
    pub bitmap: Option<String>,
}

impl Export {
    /// An export of `size_bytes` with the names cut to the protocol's limits.
    #[must_use]
    pub fn new(name: &str, description: &str, size_bytes: u64, preferred_bytes: u32) -> Self {
        let clean = |text: &str| {
            let mut text: String = text.chars().filter(|&c| c != '\0').collect();
            let mut end = text.len().min(NAME_BYTES_MAX);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text
        };
        Self {
            name: clean(name),
            description: clean(description),
            size_bytes,
            preferred_bytes: preferred_bytes
                .clamp(512, REQUEST_LEN_MAX)
                .next_power_of_two(),
            block_bytes: 1,
            writable: false,
            bitmap: None,
        }
    }

    /// The same export, which tells by a bitmap of this name what was written since a checkpoint.
    #[must_use]
    pub fn with_bitmap(mut self, name: Option<&str>) -> Self {
        self.bitmap = name.map(|name| format!("{BITMAP_CONTEXTS}{name}"));
        self
    }

    /// The same export, writable, with writes preferred in multiples of `grain_bytes`.
    #[must_use]
    pub fn taking_writes(mut self, grain_bytes: u32) -> Self {
        self.writable = true;
        self.preferred_bytes = grain_bytes.clamp(512, REQUEST_LEN_MAX);
        self
    }

    /// The same export, whose requests must be of whole blocks of `block_bytes`.
    #[must_use]
    pub(crate) fn in_blocks_of(mut self, block_bytes: u32) -> Self {
        self.block_bytes = block_bytes;
        self.preferred_bytes = self.preferred_bytes.max(block_bytes);
        self
    }

    fn has_name(&self, name: &str) -> bool {
        // "A special, 'empty', name ... is reserved for a 'default' export".
        name.is_empty() || name == self.name
    }
}

/// Terms settled by a finished handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The form of requests and replies.
    pub headers: Headers,
    /// The metadata contexts that were selected.
    pub contexts: Contexts,
}

/// Metadata contexts, as a set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contexts {
    /// `base:allocation`.
    pub allocation: bool,
    /// `qemu:dirty-bitmap:NAME`.
    pub bitmap: bool,
}

impl Contexts {
    /// True if none is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Outcome of one step of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// At least this many bytes of input are needed for another step.
    Need(usize),
    /// This many bytes of input are consumed; continue.
    Used(usize),
    /// This many bytes are consumed; TLS begins behind them, and the options behind that.
    StartTls(usize),
    /// This many bytes are consumed, and requests follow.
    Begin(usize, Terms),
    /// The session is over; send the output, then close.
    Close(Ending),
}

/// Why a handshake ended without a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The client sent `NBD_OPT_ABORT`.
    Aborted,
    /// `NBD_OPT_EXPORT_NAME` with an unknown name; the protocol allows no other answer than to
    /// close.
    NoSuchExport,
    /// The client broke a rule of the protocol.
    Violation(&'static str),
}

/// The handshake of one connection.
#[derive(Debug)]
pub struct Handshake {
    phase: Phase,
    headers: Headers,
    no_zeroes: bool,
    /// The client has asked for the block sizes, and keeps to them.
    knows_blocks: bool,
    /// The metadata contexts that were selected, and the export's name for which they were.
    contexts_for: Option<(String, Contexts)>,
    options: u32,
    skip_bytes: usize,
    tls: Tls,
}

/// State of a connection's encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tls {
    /// The server has none.
    Absent,
    /// Only TLS may come next.
    Required,
    /// It has begun.
    Begun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    ClientFlags,
    Options,
}

impl Handshake {
    /// A handshake that has sent nothing; [`Self::greet`] comes first.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: Phase::ClientFlags,
            headers: Headers::Simple,
            no_zeroes: false,
            knows_blocks: false,
            contexts_for: None,
            options: 0,
            skip_bytes: 0,
            tls: Tls::Absent,
        }
    }

    /// A handshake with clients that must begin with TLS.
    #[must_use]
    pub(crate) fn requiring_tls() -> Self {
        Self {
            tls: Tls::Required,
            ..Self::new()
        }
    }

    /// Writes the greeting.
    pub fn greet(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&wire::INIT_MAGIC.to_be_bytes());
        out.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        out.extend_from_slice(&flags.to_be_bytes());
    }

    /// Examines `input`, writes any reply to `out`, and returns how much of the input was consumed.
    pub fn step(&mut self, export: &Export, input: &[u8], out: &mut Vec<u8>) -> Step {
        // Discarded as it arrives, so that data of a megabyte takes no memory.
        if self.skip_bytes > 0 {
            if input.is_empty() {
                return Step::Need(1);
            }
            let used = self.skip_bytes.min(input.len());
            self.skip_bytes -= used;
            return Step::Used(used);
        }
        match self.phase {
            Phase::ClientFlags => self.client_flags(input),
            Phase::Options => self.option(export, input, out),
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> Step {
        let Some(flags) = Fields(input).u32() else {
            return Step::Need(4);
        };
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        // "the server MUST drop the TCP connection if the client sets an unknown flag".
        if flags & !known != 0 {
            return Step::Close(Ending::Violation("unknown client flags"));
        }
        // A client without FIXED_NEWSTYLE is served as if it had set it: "Servers MAY choose to
        // honour fixed newstyle from clients that didn't set this bit".
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.phase = Phase::Options;
        Step::Used(4)
    }

    fn option(&mut self, export: &Export, input: &[u8], out: &mut Vec<u8>) -> Step {
        let mut fields = Fields(input);
        let (Some(magic), Some(option), Some(len)) = (fields.u64(), fields.u32(), fields.u32())
        else {
            return Step::Need(OPTION_BYTES);
        };
        if magic != wire::OPTION_MAGIC {
            return Step::Close(Ending::Violation("an option without its magic number"));
        }
        let len = len.to_usize();
        if len > OPTION_DATA_BYTES_MAX {
            if len > OPTION_SKIP_BYTES_MAX {
                return Step::Close(Ending::Violation("an option with far too much data"));
            }
            put_error(
                out,
                option,
                reply::ERR_TOO_BIG,
                "the option's data is too long",
            );
            self.skip_bytes = len;
            return self.used(OPTION_BYTES);
        }
        let Some(data) = fields.bytes(len) else {
            return Step::Need(OPTION_BYTES + len);
        };
        let used = OPTION_BYTES + len;
        match (self.tls, option) {
            (_, option::STARTTLS) => return self.start_tls(data, used, out),
            (Tls::Required, option::ABORT) => {}
            // "... the server MUST ... terminate the session", for this one has no error reply.
            (Tls::Required, option::EXPORT_NAME) => {
                return Step::Close(Ending::Violation("it asked for an export without TLS"));
            }
            (Tls::Required, _) => {
                let why = "this server serves with TLS only";
                put_error(out, option, reply::ERR_TLS_REQD, why);
                return self.used(used);
            }
            _ => {}
        }
        match option {
            option::EXPORT_NAME => self.export_name(export, data, used, out),
            option::ABORT => {
                // "The server MUST reply with NBD_REP_ACK".
                put_reply(out, option, reply::ACK, &[]);
                Step::Close(Ending::Aborted)
            }
            option::LIST => {
                list(export, data, out);
                self.used(used)
            }
            option::INFO | option::GO => {
                let found = self.describe(export, option, data, out);
                match found {
                    Some(name) if option == option::GO => Step::Begin(used, self.terms(name)),
                    _ => self.used(used),
                }
            }
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                self.use_headers(option, data, out);
                self.used(used)
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(export, option, data, out);
                self.used(used)
            }
            _ => {
                put_error(
                    out,
                    option,
                    reply::ERR_UNSUP,
                    "this server knows no such option",
                );
                self.used(used)
            }
        }
    }

    fn use_headers(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let kind = match (self.headers, option) {
            (Headers::Extended, option::STRUCTURED_REPLY) => reply::ERR_EXT_HEADER_REQD,
            (now, _) if now == Headers::Extended || !data.is_empty() => reply::ERR_INVALID,
            _ => {
                self.headers = match option {
                    option::EXTENDED_HEADERS => Headers::Extended,
                    _ => Headers::Structured,
                };
                return put_reply(out, option, reply::ACK, &[]);
            }
        };
        put_error(out, option, kind, "unexpected, or with data");
    }

    fn start_tls(&mut self, data: &[u8], used: usize, out: &mut Vec<u8>) -> Step {
        let option = option::STARTTLS;
        let (kind, why) = match self.tls {
            // "NBD_REP_ERR_UNSUP (if it does not support the NBD_OPT_STARTTLS option at all)".
            Tls::Absent => (reply::ERR_UNSUP, "this server has no TLS"),
            // "NBD_REP_ERR_INVALID: TLS has already been negotiated".
            Tls::Begun => (reply::ERR_INVALID, "TLS has begun already"),
            Tls::Required if !data.is_empty() => (reply::ERR_INVALID, "this option takes no data"),
            Tls::Required => {
                put_reply(out, option, reply::ACK, &[]);
                self.tls = Tls::Begun;
                return Step::StartTls(used);
            }
        };
        put_error(out, option, kind, why);
        self.used(used)
    }

    /// Counts an option that does not change the state of the handshake.
    fn used(&mut self, bytes: usize) -> Step {
        self.options += 1;
        if self.options > OPTIONS_MAX {
            // "if a server believes a client's behaviour constitutes a denial of service, it MAY
            // initiate a hard disconnect".
            return Step::Close(Ending::Violation("too many options"));
        }
        Step::Used(bytes)
    }

    fn terms(&self, name: &str) -> Terms {
        Terms {
            headers: self.headers,
            contexts: match &self.contexts_for {
                Some((of, contexts)) if self.headers.has_chunks() && of == name => *contexts,
                _ => Contexts::default(),
            },
        }
    }

    fn export_name(
        &mut self,
        export: &Export,
        data: &[u8],
        used: usize,
        out: &mut Vec<u8>,
    ) -> Step {
        // "If the chosen export does not exist ... the server MUST terminate the session".
        let Some(name) = wire::text(data).filter(|name| export.has_name(name)) else {
            return Step::Close(Ending::NoSuchExport);
        };
        if export.block_bytes > 1 && !self.knows_blocks {
            // This option has no error reply, and no place for the block sizes.
            return Step::Close(Ending::Violation("it has not asked for the block sizes"));
        }
        out.extend_from_slice(&export.size_bytes.to_be_bytes());
        let flags = transmission_flags(self.headers.has_chunks(), export.writable);
        out.extend_from_slice(&flags.to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Step::Begin(used, self.terms(name))
    }

    /// Replies to `INFO` or `GO`; returns the requested name if it is ours.
    fn describe<'d>(
        &mut self,
        export: &Export,
        option: u32,
        data: &'d [u8],
        out: &mut Vec<u8>,
    ) -> Option<&'d str> {
        let Some((name, asked)) = info_request(data) else {
            let why = "malformed information request";
            put_error(out, option, reply::ERR_INVALID, why);
            return None;
        };
        if !export.has_name(name) {
            put_error(out, option, reply::ERR_UNKNOWN, "no such export");
            return None;
        }
        self.knows_blocks |= asked.wants(info::BLOCK_SIZE);
        let kind = info::EXPORT.to_be_bytes();
        let size = export.size_bytes.to_be_bytes();
        let flags = transmission_flags(self.headers.has_chunks(), export.writable).to_be_bytes();
        put_reply(out, option, reply::INFO, &[&kind, &size, &flags]);
        if asked.wants(info::NAME) {
            let kind = info::NAME.to_be_bytes();
            put_reply(out, option, reply::INFO, &[&kind, export.name.as_bytes()]);
        }
        if asked.wants(info::DESCRIPTION) {
            let parts = [
                &info::DESCRIPTION.to_be_bytes()[..],
                export.description.as_bytes(),
            ];
            put_reply(out, option, reply::INFO, &parts);
        }
        // The sizes are sent even unasked: a client may ignore them, and is faster with them.
        let kind = info::BLOCK_SIZE.to_be_bytes();
        let sizes = [export.block_bytes, export.preferred_bytes, REQUEST_LEN_MAX];
        let [least, best, most] = sizes.map(|size: u32| size.to_be_bytes());
        put_reply(out, option, reply::INFO, &[&kind, &least, &best, &most]);
        if option == option::GO && export.block_bytes > 1 && !self.knows_blocks {
            // "A server sending [it] SHOULD ensure it first sends an NBD_INFO_BLOCK_SIZE
            // information reply".
            let why = "this export has blocks; ask for their size";
            put_error(out, option, reply::ERR_BLOCK_SIZE_REQD, why);
            return None;
        }
        put_reply(out, option, reply::ACK, &[]);
        Some(name)
    }

    fn meta_context(&mut self, export: &Export, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let selects = option == option::SET_META_CONTEXT;
        if selects {
            // "Issuing this command replaces all previously-set metadata contexts", and a failed
            // one leaves none.
            self.contexts_for = None;
        }
        if !self.headers.has_chunks() {
            // "This option MUST NOT be requested unless structured replies have been negotiated
            // first. If a client attempts to do so, a server SHOULD send NBD_REP_ERR_INVALID."
            let why = "structured replies must be negotiated first";
            return put_error(out, option, reply::ERR_INVALID, why);
        }
        let bitmap = export.bitmap.as_deref();
        let Some((name, found)) = meta_queries(data, selects, bitmap) else {
            return put_error(out, option, reply::ERR_INVALID, "malformed metadata query");
        };
        if !export.has_name(name) {
            return put_error(out, option, reply::ERR_UNKNOWN, "no such export");
        }
        let allocation = found.allocation.then_some(ALLOCATION_CONTEXT);
        let bitmap = bitmap.filter(|_| found.bitmap);
        let contexts = [
            (ALLOCATION_CONTEXT_ID, allocation),
            (BITMAP_CONTEXT_ID, bitmap),
        ];
        for (id, context) in contexts {
            let Some(context) = context else {
                continue;
            };
            // A list's identifiers are reserved and zero.
            let id: u32 = if selects { id } else { 0 };
            let parts = [&id.to_be_bytes()[..], context.as_bytes()];
            put_reply(out, option, reply::META_CONTEXT, &parts);
        }
        if selects && !found.is_empty() {
            self.contexts_for = Some((name.to_owned(), found));
        }
        put_reply(out, option, reply::ACK, &[]);
    }
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new()
    }
}

fn list(export: &Export, data: &[u8], out: &mut Vec<u8>) {
    if !data.is_empty() {
        let why = "this option takes no data";
        return put_error(out, option::LIST, reply::ERR_INVALID, why);
    }
    let name_bytes = (export.name.len() as u32).to_be_bytes();
    let parts = [
        &name_bytes[..],
        export.name.as_bytes(),
        export.description.as_bytes(),
    ];
    put_reply(out, option::LIST, reply::SERVER, &parts);
    put_reply(out, option::LIST, reply::ACK, &[]);
}

/// The kinds of information that a client requested, as a set.
#[derive(Clone, Copy)]
struct Asked(u8);

impl Asked {
    fn wants(self, kind: u16) -> bool {
        self.0 & (1 << kind) != 0
    }
}

/// Reads the data of `INFO` and `GO`: name, count, kinds. Unknown kinds are ignored, as the
/// protocol asks.
fn info_request(data: &[u8]) -> Option<(&str, Asked)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let mut asked = Asked(0);
    for _ in 0..fields.u16()? {
        let kind = fields.u16()?;
        if kind <= info::BLOCK_SIZE {
            asked.0 |= 1 << kind;
        }
    }
    fields.is_empty().then_some((name, asked))
}

/// Reads the data of the metadata options: the export's name, and the contexts that matched;
/// `bitmap` is the full name of that of the bitmap.
fn meta_queries<'d>(
    data: &'d [u8],
    selects: bool,
    bitmap: Option<&str>,
) -> Option<(&'d str, Contexts)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    // Without a query a list names every context, and a selection selects none.
    let lists_all = count == 0 && !selects;
    let mut found = Contexts {
        allocation: lists_all,
        bitmap: lists_all && bitmap.is_some(),
    };
    for _ in 0..count {
        let query = fields.string()?;
        // A query that is not of the form namespace:leaf is malformed; `base:` alone requests a
        // list of the whole namespace.
        query.split_once(':')?;
        found.allocation |= query == ALLOCATION_CONTEXT || (!selects && query == "base:");
        let is_above = !selects && matches!(query, "qemu:" | BITMAP_CONTEXTS);
        found.bitmap |= bitmap.is_some_and(|bitmap| query == bitmap || is_above);
    }
    fields.is_empty().then_some((name, found))
}

fn put_error(out: &mut Vec<u8>, option: u32, kind: u32, why: &str) {
    put_reply(out, option, kind, &[why.as_bytes()]);
}

fn put_reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(len as u32).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// The metadata context of every export.
pub(crate) const ALLOCATION_CONTEXT: &str = "base:allocation";
/// Its identifier in replies.
pub(crate) const ALLOCATION_CONTEXT_ID: u32 = 1;
/// Prefix of the name of a bitmap's context.
const BITMAP_CONTEXTS: &str = "qemu:dirty-bitmap:";
/// Its identifier in replies.
pub(crate) const BITMAP_CONTEXT_ID: u32 = 2;
/// The longest request: the size that clients assume by default.
pub(crate) const REQUEST_LEN_MAX: u32 = 32 << 20;
/// The most data of one option that is examined.
pub const OPTION_DATA_BYTES_MAX: usize = 16 << 10;
/// The most data of one option that is skipped to report that it is too long.
pub(crate) const OPTION_SKIP_BYTES_MAX: usize = 1 << 20;
/// The most options in one handshake.
pub const OPTIONS_MAX: u32 = 256;
/// The longest name and description of an export.
pub const NAME_BYTES_MAX: usize = 1024;
/// The most that one step writes.
pub const REPLY_BYTES_MAX: usize = 4096;
