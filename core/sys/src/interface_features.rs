//! Offload features of a network interface (as `ethtool -k` lists them), by name.
//!
//! Why here: the request carries a pointer. `ethtool -k NAME` lists features and their names; the
//! numbers behind the names differ from kernel to kernel, so the kernel is asked for them. Must
//! stay true: each buffer has the kernel's layout and is as long as it says. Any thread; acts in
//! the network namespace of the calling thread. Source: `include/uapi/linux/ethtool.h`, ethtool(8).
#![allow(unsafe_code)] // the kernel's C surface: ioctl(2) takes an untyped argument

use crate::SysError;
use crate::interface::{Request, refused, socket};
use rustix::ioctl::{Opcode, Setter, ioctl};
use rustix::net::AddressFamily;
use sidecore_bare::width::ToUsize;

/// Turns a feature on or off; one that the interface does not have, or that cannot be changed,
/// stays.
///
/// # Errors
/// [`SysError::Call`]: `EPERM` without CAP_NET_ADMIN, `ENODEV`; [`SysError::Size`] for a feature
/// that this kernel does not know.
pub fn set_feature(name: &str, feature: &str, on: bool) -> Result<(), SysError> {
    let (number, count) = number_of(name, feature)?;
    let blocks = count.div_ceil(32);
    let mut words = vec![ETHTOOL_SFEATURES, blocks as u32];
    // A pair of words for each 32 features: the selected ones, and their new values.
    words.resize(2 + 2 * blocks, 0);
    let bit = 1 << (number % 32);
    let block = 2 + number / 32 * 2;
    words[block] = bit;
    words[block + 1] = if on { bit } else { 0 };
    ask(name, &mut words)
}

/// The kernel's number of a feature, and the number of features that it has.
fn number_of(name: &str, feature: &str) -> Result<(usize, usize), SysError> {
    // Command, reserved, the set as a bit of 64, and its length as the answer.
    let mut counted = [ETHTOOL_GSSET_INFO, 0, 0, 0, 0];
    let set = (1_u64 << ETH_SS_FEATURES).to_ne_bytes();
    for (word, bytes) in counted[2..4].iter_mut().zip(set.chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    ask(name, &mut counted)?;
    let count = counted[4].to_usize().min(FEATURES_MAX);
    let mut listed = vec![ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32];
    // The kernel knows how many there are by itself: a moment later there are no more.
    listed.resize(3 + FEATURES_MAX * NAME_WORDS, 0);
    ask(name, &mut listed)?;
    let bytes: Vec<u8> = listed[3..]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    let names = bytes.chunks_exact(NAME_WORDS * 4).take(count);
    let found = names.enumerate().find(|(_, bytes)| {
        let used = bytes.iter().position(|&byte| byte == 0);
        bytes[..used.unwrap_or(bytes.len())] == *feature.as_bytes()
    });
    found
        .map(|(number, _)| (number, count))
        .ok_or(SysError::Size {
            what: "a feature of a network interface, by name",
            value: count,
            rule: "one of those that `ethtool -k` lists",
        })
}

/// Performs one request; the kernel answers in `words`.
fn ask(name: &str, words: &mut [u32]) -> Result<(), SysError> {
    let mut request = Request::new(name)?;
    let pointer = words.as_mut_ptr().expose_provenance();
    request.value[..size_of::<usize>()].copy_from_slice(&pointer.to_ne_bytes());
    // SAFETY: SIOCETHTOOL reads one `struct ifreq`, which `Request` is, with a pointer to a
    // request. Its command bounds the kernel's reads and writes: the callers above make it at least
    // that long, and it is ours until the call returns.
    unsafe {
        ioctl(
            socket(AddressFamily::INET)?,
            Setter::<SIOCETHTOOL, Request>::new(request),
        )
    }
    .map_err(refused("SIOCETHTOOL"))
}

const SIOCETHTOOL: Opcode = 0x8946;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
/// ETH_GSTRING_LEN, in words.
const NAME_WORDS: usize = 8;
/// Upper bound of the number of features; `netdev_features_t` is 64 bits today.
const FEATURES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_found_by_name() {
        let (generic, count) = number_of("lo", "tx-generic-segmentation").unwrap();
        let (nocache, _) = number_of("lo", "tx-nocache-copy").unwrap();
        assert!(generic != nocache && generic.max(nocache) < count);
        assert!(number_of("lo", "no-such-feature").is_err());
        assert!(number_of("no-such-one", "tx-nocache-copy").is_err());
    }
}
