//! A private network namespace: interfaces that no other process sees.
//!
//! Why here: leaving a namespace is a system call about the calling thread alone, which needs care.
//! Must stay true: only the network's namespace changes, for the calling thread, the threads that
//! it starts afterwards, and their children; descriptors and memory stay shared. Source:
//! unshare(2), network_namespaces(7).
//!
//! ```
//! use sidecore_sys::{interface, namespace};
//!
//! let own = || namespace::leave_network().map(|()| interface::set_up("lo"));
//! let thread = std::thread::spawn(own);
//! match thread.join().expect("no panic") {
//!     Ok(up) => assert!(up.is_ok(), "its own loopback is the thread's to change"),
//!     Err(error) => println!("needs root: {error}"),
//! }
//! ```
#![allow(unsafe_code)] // unshare(2)

use crate::SysError;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the calling thread a network namespace of its own, in which only a loopback is, still
/// down. It ends, with every interface in it, when its last thread and process do.
///
/// # Errors
/// [`SysError::Call`] where the thread may not (it needs `CAP_SYS_ADMIN`).
pub fn leave_network() -> Result<(), SysError> {
    // SAFETY: the flag unshares the network namespace and nothing that memory or descriptors of
    // other threads depend on.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|source| SysError::Call {
        call: "unshare",
        source: source.into(),
    })
}

#[cfg(test)]
mod tests {
    use crate::interface;

    #[test]
    fn a_thread_sees_other_interfaces_than_before() {
        let namespace = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let before = namespace();
        std::thread::spawn(move || {
            super::leave_network().unwrap();
            assert_ne!(namespace(), before);
            // A loopback, which is down; a kernel may add tunnels, which are down, too.
            assert!(interface::index("lo").is_ok());
            let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
            assert!(routes.lines().count() <= 1, "a line of heads: {routes}");
        })
        .join()
        .unwrap();
    }
}
