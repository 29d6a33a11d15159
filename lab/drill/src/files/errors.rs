//! A socket's error queue: reports that recvmsg(2) gives with `MSG_ERRQUEUE`.
//!
//! Source: the kernel's `Documentation/networking/timestamping.rst` and `msg_zerocopy.rst`.

use super::{Answer, Files, Kind, errno, fail};
use sidecore_net_stack::{Stamp, StampKind};
use std::ops::RangeInclusive;

/// A report of the error queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// A write's last byte was sent or acknowledged (`SO_EE_ORIGIN_TIMESTAMPING`). The byte is
    /// given where the application requested it (`SOF_TIMESTAMPING_OPT_ID`).
    Stamp {
        /// The kernel's number of what happened: `SCM_TSTAMP_*`.
        kind: u32,
        /// When, in nanoseconds of the virtual clock.
        at_ns: u64,
        /// Place of the byte, or 0.
        byte: u32,
    },
    /// Writes with `MSG_ZEROCOPY` are done with (`SO_EE_ORIGIN_ZEROCOPY`), all of them copied:
    /// their numbers.
    Copied(RangeInclusive<u32>),
}

/// Writes with `MSG_ZEROCOPY`, counted; nothing is sent without a copy, which the interface allows.
#[derive(Debug, Clone, Default)]
pub(super) struct ZeroCopy {
    next: u32,
    reported: u32,
}

impl ZeroCopy {
    /// One more write was copied.
    pub(super) fn copied(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// True if there is something to report.
    pub(super) fn has_reports(&self) -> bool {
        self.next != self.reported
    }
}

impl Files {
    /// The oldest report of a socket's error queue.
    ///
    /// # Errors
    /// `EAGAIN` if there is none.
    pub fn report(&mut self, fd: i32) -> Answer<Report> {
        let socket = self.socket_mut(fd)?;
        if socket.zero_copy.has_reports() {
            let first = socket.zero_copy.reported;
            let last = socket.zero_copy.next.wrapping_sub(1);
            socket.zero_copy.reported = socket.zero_copy.next;
            return Ok(Report::Copied(first..=last));
        }
        let numbered = socket.requested.numbers_stamps();
        let Kind::Session(id) = socket.kind else {
            return fail(libc::EAGAIN);
        };
        let Some(stamp) = self.host.stack().next_stamp(id).map_err(errno)? else {
            return fail(libc::EAGAIN);
        };
        let Stamp { kind, at_ns, byte } = stamp;
        let kind = match kind {
            StampKind::Scheduled => SCHEDULED,
            StampKind::Acknowledged => ACKNOWLEDGED,
            _ => SENT,
        };
        let byte = if numbered { byte } else { 0 };
        Ok(Report::Stamp { kind, at_ns, byte })
    }
}

/// `SCM_TSTAMP_*` of the kernel's `include/uapi/linux/errqueue.h`.
const SENT: u32 = 0;
const SCHEDULED: u32 = 1;
const ACKNOWLEDGED: u32 = 2;
