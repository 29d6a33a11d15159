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
use super::wire::{REQUEST_BYTES, Request, command, command_flag, errno};
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
        len: u32,
        /// One extent only.
        one: bool,
        /// The contexts to report, at least one.
        contexts: Contexts,
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
        len: u32,
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
        len: u32,
        /// Answer once it is durable.
        durable: bool,
    },
    /// Make all answered writes durable.
    Flush {
        /// The client's mark.
        cookie: u64,
    },
    /// Reply with an error.
    Refuse(Refusal),
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The client's mark.
    pub cookie: u64,
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
            skip_bytes: 0,
        }
    }

    /// The same session, on an export that takes writes where `writable` is true.
    #[must_use]
    pub fn taking_writes(mut self, writable: bool) -> Self {
        self.writable = writable;
        self
    }

    /// Terms settled by the handshake.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// True when `input` begins with a complete item for [`Self::next`].
    #[must_use]
    pub fn has_next(&self, input: &[u8]) -> bool {
        input.len() >= REQUEST_BYTES || (self.skip_bytes > 0 && !input.is_empty())
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
        let Some(head) = input.first_chunk::<REQUEST_BYTES>() else {
            return Next::Need;
        };
        let Some(request) = Request::decode(head) else {
            return Next::Violation("a request without its magic number");
        };
        match request.command {
            command::DISC => Next::Disconnect,
            command::WRITE if request.len > REQUEST_LEN_MAX => {
                // Its payload would have to be read to stay in step: "Either side MAY initiate a
                // hard disconnect if it detects a violation"; the handshake stated the largest
                // request.
                Next::Violation("a write of more than 32 MiB")
            }
            command::WRITE => {
                let checked = self.validate_change(&request);
                if matches!(checked, Command::Refuse(_)) {
                    // The payload follows in any case, and the next request after it.
                    self.skip_bytes = u64::from(request.len);
                }
                Next::Command(REQUEST_BYTES, checked)
            }
            _ => Next::Command(REQUEST_BYTES, self.validate(&request)),
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
        let refuse = |error, why| Command::Refuse(Refusal { cookie, error, why });
        let fua = match self.writable {
            // "valid during" any command; a command without changes has nothing to wait for.
            true => command_flag::FUA,
            false => 0,
        };
        let allowed = match command {
            // DF "MUST NOT be set unless the transmission flags include NBD_FLAG_SEND_DF".
            command::READ if self.terms.structured => command_flag::DF,
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
        let in_range = offset
            .checked_add(u64::from(len))
            .is_some_and(|end| end <= self.size_bytes);
        if !in_range {
            return refuse(errno::EINVAL, "the request ends past the device");
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
            },
            _ if len > REQUEST_LEN_MAX => refuse(errno::EINVAL, "more than 32 MiB in a request"),
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
        let refuse = |error, why| Command::Refuse(Refusal { cookie, error, why });
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
        let in_range = offset
            .checked_add(u64::from(len))
            .is_some_and(|end| end <= self.size_bytes);
        if !in_range && command != command::FLUSH {
            // "The server SHOULD return ENOSPC if it receives a write request including one or more
            // sectors beyond the size of the device."
            let error = match command {
                command::TRIM => errno::EINVAL,
                _ => errno::ENOSPC,
            };
            return refuse(error, "the request ends past the device");
        }
        let durable = flags & command_flag::FUA != 0;
        match command {
            command::FLUSH => Command::Flush { cookie },
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
            _ => Command::Write {
                cookie,
                offset,
                len,
                durable,
            },
        }
    }
}

/// "It SHOULD return EPERM if it receives a write or trim request on a read-only export."
fn read_only(request: &Request) -> Command {
    Command::Refuse(Refusal {
        cookie: request.cookie,
        error: errno::EPERM,
        why: "the export is read-only",
    })
}
