//! Answers requests that come by a queue over io_uring.
//!
//! Why here: such a request lies in two places, and its reply goes into memory that the kernel
//! takes it from. Everything else is as for the device.
//!
//! Must stay true: each entry is returned with a reply, whatever was in it.
//! Threads: one for each queue, which answers one request at a time.
//! Source: `Documentation/filesystems/fuse/fuse-io-uring.rst`.

use super::abi::{Body, Head, op};
use super::outlet::{Outlet, answer_lost};
use sidecore_sys::fuse_ring::FuseQueue;
use std::cell::Cell;
use std::io;

/// Answers a registered queue's requests until the file system is gone.
pub(super) fn serve(
    mut queue: FuseQueue,
    mut answer: impl FnMut(&Head, Body<'_>, Outlet<'_>),
) -> io::Result<()> {
    let mut body = Vec::new();
    let lost = Cell::new(false);
    while let Some(entry) = queue.wait()? {
        let request = queue.request(entry);
        let head = Head::alone(request.head)?;
        // One slice, as it comes from the device: both ways share the parsers.
        body.clear();
        body.extend_from_slice(request.operation);
        body.extend_from_slice(request.payload);
        let outlet = Outlet::of_queue(&mut queue, entry, head.unique, &lost);
        answer(&head, Body(&body), outlet);
        if head.operation == op::DESTROY {
            break;
        }
        if lost.get() {
            return Err(answer_lost());
        }
    }
    Ok(())
}
