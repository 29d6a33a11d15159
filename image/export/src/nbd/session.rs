//! Requests of the transmission phase: bytes in, validated commands out.
//!
//! Why here: every rule that a request can break is checked in one place, before anything is read
//! from the device; its output can be served without further checks. No I/O: it can be fuzzed and
//! replayed.
//! Must stay true: all [`Command`] lies inside the device. Transfers and prefetches are no longer
//! than `REQUEST_LEN_MAX`. No command changes a read-only export. One call consumes at most one
//! request.
//! The thread that holds the connection's read lock calls it.
//! Source: the NBD protocol document, "Request message", "Request types", "Command flags", "Error
//! values".

use super::handshake::{Contexts, REQUEST_LEN_MAX, Terms};
use super::wire::{Headers, Request, To, command, command_flag, errno};
use sidecore_bare::width::{ToU64, ToUsize};

/// A request that passed all checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Send these bytes.
    Read {
        /// The client's mark.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Bytes; may be 0.
        len: u32,
        /// One content chunk only.
        whole: bool,
    },
    /// Report the extents of data and zeros.
    Status {
        /// The client's mark.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Bytes, at least 1.
        len: u64,
        /// One extent only.
        one: bool,
        /// The contexts to report, at least one.
        contexts: Contexts,
        /// Extents end at multiples of this.
        block_bytes: u32,
    },
    /// Read these bytes into the cache.
    Cache {
        /// The client's mark.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Bytes; may be 0.
        len: u32,
    },
    /// Replace these bytes by the payload, which follows the request; the caller receives it.
    Write {
        /// The client's mark.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Bytes; may be 0.
        len: u32,
        /// Answer once they are durable.
        durable: bool,
    },
    /// Make these bytes zeros.
    Zero {
        /// The client's mark.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Bytes; may be 0, or more than of any other request.
        len: u64,
        /// Zeros must be written, not a hole.
        no_hole: bool,
        /// Answer once they are durable.
        durable: bool,
    },
    /// Discard these bytes.
    Trim {
        /// The client's mark.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Bytes; may be 0, or more than of any other request.
        len: u64,
        /// Answer once it is durable.
        durable: bool,
    },
    /// Make all answered writes durable.
    Flush {
        /// The client's mark.
        cookie: u64,
        /// Without a meaning.
        offset: u64,
    },
    /// Reply with an error.
    Refuse(Refusal),
}

impl Command {
    /// The address of its reply.
    #[must_use]
    pub fn reply_to(&self, headers: Headers) -> To {
        let (cookie, offset) = match *self {
            Self::Read { cookie, offset, .. }
            | Self::Status { cookie, offset, .. }
            | Self::Cache { cookie, offset, .. }
            | Self::Write { cookie, offset, .. }
            | Self::Zero { cookie, offset, .. }
            | Self::Trim { cookie, offset, .. }
            | Self::Flush { cookie, offset } => (cookie, offset),
            Self::Refuse(refusal) => (refusal.cookie, refusal.offset),
        };
        To {
            headers,
            cookie,
            offset,
        }
    }
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The client's mark.
    pub cookie: u64,
    /// The request's first byte.
    pub offset: u64,
    /// One of [`errno`].
    pub error: u32,
    /// For users; sent where the reply has room for it.
    pub why: &'static str,
}

/// Outcome of [`Session::next`]: the item at the head of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Not enough input for a request.
    Need,
    /// This many bytes are consumed without a command (a refused write's payload).
    Used(usize),
    /// This many bytes are consumed, and this is their command.
    Command(usize, Command),
    /// NBD_CMD_DISC: finish the replies in progress, then close.
    Disconnect,
    /// The stream violates the protocol: close.
    Violation(&'static str),
}

/// The requests of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Session {
    terms: Terms,
    size_bytes: u64,
    /// The largest read that is sent as one content chunk.
    whole_max: u32,
    writable: bool,
    /// Requests are of whole blocks of this size.
    block_bytes: u32,
    skip_bytes: u64,
}

impl Session {
    /// A session on a device of `size_bytes` whose reads are sent unfragmented up to `whole_max`
    /// bytes.
    #[must_use]
    pub fn new(terms: Terms, size_bytes: u64, whole_max: usize) -> Self {
        Self {
            terms,
            size_bytes,
            whole_max: u32::try_from(whole_max).unwrap_or(u32::MAX),
            writable: false,
            block_bytes: 1,
            skip_bytes: 0,
        }
    }

    /// The same session, on an export that takes writes where `writable` is true.
    #[must_use]
    pub fn taking_writes(mut self, writable: bool) -> Self {
        self.writable = writable;
        self
    }

    /// The same session, whose requests must be of whole blocks of `block_bytes`, a power of two.
    #[must_use]
    pub(crate) fn in_blocks_of(mut self, block_bytes: u32) -> Self {
        self.block_bytes = block_bytes;
        self
    }

    /// True if a request lies inside the device.
    fn is_inside(&self, request: &Request) -> bool {
        let end = request.offset.checked_add(request.len);
        end.is_some_and(|end| end <= self.size_bytes)
    }

    /// True if a request begins and ends with a block: "The minimum block size represents the
    /// smallest addressable length and alignment within the export".
    fn is_whole(&self, request: &Request) -> bool {
        (request.offset | request.len).is_multiple_of(self.block_bytes.into())
    }

    /// Terms settled by the handshake.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// True when `input` begins with a complete item for [`Self::next`].
    #[must_use]
    pub fn has_next(&self, input: &[u8]) -> bool {
        input.len() >= self.terms.headers.request_bytes()
            || (self.skip_bytes > 0 && !input.is_empty())
    }

    /// Takes the next request from `input`.
    pub fn next(&mut self, input: &[u8]) -> Next {
        if self.skip_bytes > 0 {
            if input.is_empty() {
                return Next::Need;
            }
            // A refused write's payload is discarded as it comes: it takes no memory.
            let used = self.skip_bytes.min(input.len().to_u64());
            self.skip_bytes -= used;
            return Next::Used(used.to_usize());
        }
        let headers = self.terms.headers;
        let used = headers.request_bytes();
        let Some(head) = input.get(..used) else {
            return Next::Need;
        };
        let Some(mut request) = Request::decode(head, headers) else {
            return Next::Violation("a request without its magic number");
        };
        // Without extended headers the flag is one of those that were not offered.
        let has_payload =
            headers == Headers::Extended && request.flags & command_flag::PAYLOAD_LEN != 0;
        match request.command {
            command::DISC => Next::Disconnect,
            _ if (has_payload || request.command == command::WRITE)
                && request.len > u64::from(REQUEST_LEN_MAX) =>
            {
                // Its payload would have to be read to stay in step: "Either side MAY initiate a
                // hard disconnect if it detects a violation"; the handshake stated the largest
                // request.
                Next::Violation("a payload of more than 32 MiB")
            }
            command::WRITE => {
                // A write without the flag can mean nothing else, and other servers take it.
                if has_payload {
                    request.flags &= !command_flag::PAYLOAD_LEN;
                }
                let checked = self.validate_change(&request);
                if matches!(checked, Command::Refuse(_)) {
                    // The payload follows in any case, and the next request after it.
                    self.skip_bytes = request.len;
                }
                Next::Command(used, checked)
            }
            _ if has_payload => {
                self.skip_bytes = request.len;
                let why = "this command takes no payload";
                Next::Command(used, refusal(&request, errno::EINVAL, why))
            }
            _ => Next::Command(used, self.validate(&request)),
        }
    }

    fn validate(&self, request: &Request) -> Command {
        let Request {
            flags,
            command,
            cookie,
            offset,
            len,
        } = *request;
        let refuse = |error, why| refusal(request, error, why);
        let fua = match self.writable {
            // "valid during" any command; a command without changes has nothing to wait for.
            true => command_flag::FUA,
            false => 0,
        };
        let allowed = match command {
            // DF "MUST NOT be set unless the transmission flags include NBD_FLAG_SEND_DF".
            command::READ if self.terms.headers != Headers::Simple => command_flag::DF,
            command::BLOCK_STATUS => command_flag::REQ_ONE,
            command::READ | command::CACHE => 0,
            command::TRIM | command::WRITE_ZEROES => return self.validate_change(request),
            command::FLUSH if self.writable => return self.validate_change(request),
            // FLUSH of a read-only export is among these: it was not offered.
            _ => return refuse(errno::EINVAL, "this server knows no such command"),
        };
        if flags & !(allowed | fua) != 0 {
            // "It also SHOULD return EINVAL if it receives a request with a flag not explicitly
            // documented as applicable to the given request."
            return refuse(errno::EINVAL, "a command flag that was not offered");
        }
        if command == command::BLOCK_STATUS && self.terms.contexts.is_empty() {
            // "Clients MUST NOT use NBD_CMD_BLOCK_STATUS unless it selected a nonzero number of
            // metadata contexts ...
            // Servers SHOULD reply to clients doing so anyway with EINVAL."
            return refuse(errno::EINVAL, "no metadata context was selected");
        }
        if !self.is_inside(request) {
            return refuse(errno::EINVAL, "the request ends past the device");
        }
        if !self.is_whole(request) {
            return refuse(errno::EINVAL, NOT_WHOLE);
        }
        match command {
            // Only transferred or prefetched bytes count against the limit; a status costs the same
            // at any length.
            command::BLOCK_STATUS if len == 0 => refuse(errno::EINVAL, "block status of no bytes"),
            command::BLOCK_STATUS => Command::Status {
                cookie,
                offset,
                len,
                one: flags & command_flag::REQ_ONE != 0,
                contexts: self.terms.contexts,
                block_bytes: self.block_bytes,
            },
            _ => self.transfer(request),
        }
    }

    /// A request whose bytes are sent or prefetched, and which lies inside the device.
    fn transfer(&self, request: &Request) -> Command {
        let Request {
            flags,
            cookie,
            offset,
            ..
        } = *request;
        let refuse = |error, why| refusal(request, error, why);
        let len = match u32::try_from(request.len) {
            Ok(len @ ..=REQUEST_LEN_MAX) => len,
            _ => return refuse(errno::EINVAL, "more than 32 MiB in a request"),
        };
        match request.command {
            command::CACHE => Command::Cache {
                cookie,
                offset,
                len,
            },
            // "A server MAY reject a client's request with the error EOVERFLOW if the length is too
            // large to send without fragmentation".
            _ if flags & command_flag::DF != 0 && len > self.whole_max => {
                refuse(errno::EOVERFLOW, "too long to send in one chunk")
            }
            _ => Command::Read {
                cookie,
                offset,
                len,
                whole: flags & command_flag::DF != 0,
            },
        }
    }
}

impl Session {
    /// A request that changes the device.
    fn validate_change(&self, request: &Request) -> Command {
        let Request {
            flags,
            command,
            cookie,
            offset,
            len,
        } = *request;
        let refuse = |error, why| refusal(request, error, why);
        if !self.writable {
            return read_only(request);
        }
        let allowed = match command {
            command::WRITE_ZEROES => command_flag::FUA | command_flag::NO_HOLE,
            _ => command_flag::FUA,
        };
        if flags & !allowed != 0 {
            return refuse(errno::EINVAL, "a command flag that was not offered");
        }
        let has_range = command != command::FLUSH;
        if has_range && !self.is_inside(request) {
            // "The server SHOULD return ENOSPC if it receives a write request including one or more
            // sectors beyond the size of the device."
            let error = match command {
                command::TRIM => errno::EINVAL,
                _ => errno::ENOSPC,
            };
            return refuse(error, "the request ends past the device");
        }
        if has_range && !self.is_whole(request) {
            return refuse(errno::EINVAL, NOT_WHOLE);
        }
        let durable = flags & command_flag::FUA != 0;
        match command {
            command::FLUSH => Command::Flush { cookie, offset },
            command::TRIM => Command::Trim {
                cookie,
                offset,
                len,
                durable,
            },
            command::WRITE_ZEROES => Command::Zero {
                cookie,
                offset,
                len,
                no_hole: flags & command_flag::NO_HOLE != 0,
                durable,
            },
            _ => match u32::try_from(len) {
                Ok(len) => Command::Write {
                    cookie,
                    offset,
                    len,
                    durable,
                },
                // `next` has refused what is longer than REQUEST_LEN_MAX.
                Err(_) => refuse(errno::EINVAL, "more than 32 MiB in a request"),
            },
        }
    }
}

/// "It SHOULD return EPERM if it receives a write or trim request on a read-only export."
fn read_only(request: &Request) -> Command {
    refusal(request, errno::EPERM, "the export is read-only")
}

/// The reason that a client gets for a part of a block.
const NOT_WHOLE: &str = "the request is not of whole blocks";

fn refusal(request: &Request, error: u32, why: &'static str) -> Command {
    Command::Refuse(Refusal {
        cookie: request.cookie,
        offset: request.offset,
        error,
        why,
    })
}
