//! Requests of the transmission phase: bytes in, checked work out.
//!
//! Why here: every rule that a request can break is judged in one place, before anything is read
//! from the device; what comes out can be served without looking again. No I/O: it can be fuzzed
//! and replayed.
//! Must stay true: [`Work::Read`], [`Work::Status`] and [`Work::Cache`] lie inside the device and
//! are no longer than
//! [`REQUEST_LEN_MAX`]; one call uses up at most one request.
//! The thread that holds the connection's read lock calls it.
//! Source: the NBD protocol document, "Request message", "Request types", "Command flags", "Error
//! values".

use super::handshake::{REQUEST_LEN_MAX, Terms};
use super::wire::{REQUEST_BYTES, Request, command, command_flag, errno};

/// A request that may be served as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
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
    /// Say where data and zeros are.
    Status {
        /// The client's mark.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Bytes, at least 1.
        len: u32,
        /// One extent only.
        one: bool,
    },
    /// Bring these bytes into the cache.
    Cache {
        /// The client's mark.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Bytes; may be 0.
        len: u32,
    },
    /// Say no.
    Refuse(Refusal),
}

/// Why a request is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The client's mark.
    pub cookie: u64,
    /// One of [`errno`].
    pub error: u32,
    /// For people; travels where the reply has room for it.
    pub why: &'static str,
}

/// Outcome of [`Session::next`]: the item at the head of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Not enough input for a request.
    Need,
    /// This many bytes are used up and ask for nothing (a refused write's payload).
    Used(usize),
    /// This many bytes are used up and ask for this.
    Work(usize, Work),
    /// The client takes its leave: answer what is under way, then close.
    Disconnect,
    /// The stream makes no sense any more: close.
    Violation(&'static str),
}

/// The requests of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    terms: Terms,
    size_bytes: u64,
    /// The largest read that travels as one content chunk.
    whole_max: u32,
    skip_bytes: u64,
}

impl Session {
    /// A session on a device of `size_bytes` whose reads travel unfragmented up to `whole_max`
    /// bytes.
    #[must_use]
    pub(crate) fn new(terms: Terms, size_bytes: u64, whole_max: usize) -> Self {
        Self {
            terms,
            size_bytes,
            whole_max: u32::try_from(whole_max).unwrap_or(u32::MAX),
            skip_bytes: 0,
        }
    }

    /// Terms settled by the handshake.
    #[must_use]
    pub(crate) fn terms(&self) -> Terms {
        self.terms
    }

    /// True when `input` begins with something that [`Self::next`] can use.
    #[must_use]
    pub(crate) fn has_next(&self, input: &[u8]) -> bool {
        input.len() >= REQUEST_BYTES || (self.skip_bytes > 0 && !input.is_empty())
    }

    /// Takes the next request from `input`.
    pub(crate) fn next(&mut self, input: &[u8]) -> Next {
        if self.skip_bytes > 0 {
            if input.is_empty() {
                return Next::Need;
            }
            let used = self.skip_bytes.min(input.len() as u64);
            self.skip_bytes -= used;
            return Next::Used(used as usize);
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
                // hard disconnect if it detects a violation"; the largest request was in the
                // handshake.
                Next::Violation("a write of more than 32 MiB")
            }
            command::WRITE => {
                self.skip_bytes = u64::from(request.len);
                Next::Work(REQUEST_BYTES, read_only(&request))
            }
            _ => Next::Work(REQUEST_BYTES, self.judge(&request)),
        }
    }

    fn judge(&self, request: &Request) -> Work {
        let Request {
            flags,
            command,
            cookie,
            offset,
            len,
        } = *request;
        let refuse = |error, why| Work::Refuse(Refusal { cookie, error, why });
        let allowed = match command {
            // DF "MUST NOT be set unless the transmission flags include NBD_FLAG_SEND_DF".
            command::READ if self.terms.structured => command_flag::DF,
            command::BLOCK_STATUS => command_flag::REQ_ONE,
            command::READ | command::CACHE => 0,
            command::TRIM | command::WRITE_ZEROES => return read_only(request),
            // FLUSH is among these: it was not offered.
            _ => return refuse(errno::EINVAL, "this server knows no such command"),
        };
        if flags & !allowed != 0 {
            // "It also SHOULD return EINVAL if it receives a request with a flag not explicitly
            // documented as applicable to the given request."
            return refuse(errno::EINVAL, "a command flag that was not offered");
        }
        if command == command::BLOCK_STATUS && !self.terms.allocation {
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
            // Only bytes that travel or are fetched count against the limit; a status costs the
            // same at any length.
            command::BLOCK_STATUS if len == 0 => refuse(errno::EINVAL, "block status of no bytes"),
            command::BLOCK_STATUS => Work::Status {
                cookie,
                offset,
                len,
                one: flags & command_flag::REQ_ONE != 0,
            },
            _ if len > REQUEST_LEN_MAX => refuse(errno::EINVAL, "more than 32 MiB in a request"),
            command::CACHE => Work::Cache {
                cookie,
                offset,
                len,
            },
            // "A server MAY reject a client's request with the error EOVERFLOW if the length is too
            // large to send without fragmentation".
            _ if flags & command_flag::DF != 0 && len > self.whole_max => {
                refuse(errno::EOVERFLOW, "too long to send in one chunk")
            }
            _ => Work::Read {
                cookie,
                offset,
                len,
                whole: flags & command_flag::DF != 0,
            },
        }
    }
}

/// "It SHOULD return EPERM if it receives a write or trim request on a read-only export."
fn read_only(request: &Request) -> Work {
    Work::Refuse(Refusal {
        cookie: request.cookie,
        error: errno::EPERM,
        why: "the export is read-only",
    })
}
