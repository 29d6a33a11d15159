//! Limits of the provider, the location of its stack, and gathering of buffers.

use crate::abi::iovec;
use sidecore_net::sock::client;
use sidecore_rdma::Transport;
use std::net::IpAddr;
use std::path::PathBuf;

/// Operations of an endpoint, each way, with unread completions, at most.
pub(crate) const DEPTH_MAX: usize = 512;
/// Longest message that may be injected, in bytes.
pub(crate) const INJECT_BYTES: usize = 256;
/// Longest supported private data, in bytes.
pub(crate) const CM_BYTES: usize = 256;

/// The path of the stack's engine, if the environment names one.
pub(crate) fn stack_socket() -> Option<PathBuf> {
    match Transport::from_environment() {
        Transport::Stack(path) => Some(path),
        _ => None,
    }
}

/// Addresses of an engine's stack, each with its prefix length.
pub(crate) fn stack_addresses(path: &std::path::Path) -> Vec<(IpAddr, u32)> {
    let Ok(status) = client::status(path) else {
        return Vec::new();
    };
    let Ok(status) = serde_json::from_str::<serde_json::Value>(&status) else {
        return Vec::new();
    };
    // An engine of another version may not list them: then there is no address to offer.
    let listed = status.get("addresses").and_then(|list| list.as_array());
    let texts = listed.into_iter().flatten().filter_map(|one| one.as_str());
    texts
        .filter_map(|text| {
            let (address, bits) = text.split_once('/')?;
            Some((address.parse().ok()?, bits.parse().ok()?))
        })
        .collect()
}

/// Copies several buffers to `target`; the number of bytes, if they fit.
pub(crate) fn gather(buffers: &[iovec], target: &mut [u8]) -> Option<usize> {
    let mut count = 0_usize;
    for buffer in buffers {
        let end = count.checked_add(buffer.iov_len)?;
        let place = target.get_mut(count..end)?;
        // A buffer of no bytes may have any address.
        if buffer.iov_len > 0 {
            // SAFETY: buffers of an operation, which are readable while its call runs.
            unsafe {
                let source = buffer.iov_base.cast::<u8>();
                std::ptr::copy_nonoverlapping(source, place.as_mut_ptr(), buffer.iov_len);
            }
        }
        count = end;
    }
    Some(count)
}

/// Stores the old value of an atomic at its result address.
pub(crate) fn put_word(at: usize, original: u64) {
    let at: *mut u64 = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: a result address of a call, which its caller leaves alone until the completion, as
    // fi_atomic(3) requires; those of closed endpoints are dropped with their operations.
    unsafe { at.write_unaligned(original) };
}
