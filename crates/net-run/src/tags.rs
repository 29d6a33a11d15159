//! Whom a datagram is from: a tag that travels with it through the pair.
//!
//! A datagram in a pair carries a descriptor of an empty file, whose inode stands for an address.
//! Programs that read without asking for the sender never see it. Must stay true: a bounded number
//! of files.

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Files that stand for addresses.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    files: HashMap<SocketAddr, (Rc<OwnedFd>, u64)>,
    addresses: HashMap<u64, SocketAddr>,
    order: VecDeque<SocketAddr>,
}

impl Tags {
    /// The file for `address`.
    ///
    /// # Errors
    /// The kernel's: no descriptors left.
    pub(crate) fn file(&mut self, address: SocketAddr) -> Result<Rc<OwnedFd>, Errno> {
        if let Some((file, _)) = self.files.get(&address) {
            return Ok(Rc::clone(file));
        }
        if self.order.len() >= FILES_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some((_, inode)) = self.files.remove(&oldest)
        {
            self.addresses.remove(&inode);
        }
        let file = rustix::fs::memfd_create("sidecore-peer", MemfdFlags::CLOEXEC)?;
        let inode = rustix::fs::fstat(&file)?.st_ino;
        let file = Rc::new(file);
        self.files.insert(address, (Rc::clone(&file), inode));
        self.addresses.insert(inode, address);
        self.order.push_back(address);
        Ok(file)
    }

    /// The address that a file stands for.
    pub(crate) fn address(&self, file: &OwnedFd) -> Option<SocketAddr> {
        let inode = rustix::fs::fstat(file).ok()?.st_ino;
        self.addresses.get(&inode).copied()
    }
}

/// Peers that are remembered; a datagram of an earlier one that still waits has no sender.
const FILES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_stands_for_an_address_until_many_others_came() {
        let mut tags = Tags::default();
        let address = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let first = tags.file(address(1)).unwrap();
        assert!(Rc::ptr_eq(&first, &tags.file(address(1)).unwrap()));
        let copy = first.try_clone().unwrap();
        assert_eq!(tags.address(&copy), Some(address(1)));
        for port in 2..=FILES_MAX as u16 + 1 {
            let file = tags.file(address(port)).unwrap();
            assert_eq!(tags.address(&file), Some(address(port)));
        }
        assert_eq!(tags.address(&copy), None);
    }
}
