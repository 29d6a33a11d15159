//! The hash of a kernel's code, by which a client can insist on a build of it.
//!
//! Why here: a name and a version identify a kernel's meaning, not its code. A loaded kernel has
//! the SHA-256 of its shared object, which `sha256sum FILE` prints as well; one that is built in
//! has that of its name, version and build. Pure.

use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// SHA-256 of a kernel's code. Written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelHash([u8; Self::BYTES]);

impl KernelHash {
    /// Bytes of a hash.
    pub const BYTES: usize = 32;

    /// The hash of an object's bytes.
    #[must_use]
    pub fn of(object: &[u8]) -> Self {
        Self(Sha256::digest(object).into())
    }

    /// The hash of a kernel that is compiled in.
    pub(crate) fn of_built_in(name: &str, version: u32, build: &str) -> Self {
        Self::of(format!("{name}\n{version}\n{build}\n").as_bytes())
    }

    /// The hash that consists of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> [u8; Self::BYTES] {
        self.0
    }
}

impl fmt::Display for KernelHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KernelHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for KernelHash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits: Option<Vec<u8>> = text
            .chars()
            .map(|digit| digit.to_digit(16).map(|value| value as u8))
            .collect();
        let digits = digits.filter(|digits| digits.len() == 2 * Self::BYTES);
        let digits = digits.ok_or(NOT_A_HASH)?;
        let mut bytes = [0; Self::BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(bytes))
    }
}

/// Error of a text that is no hash.
const NOT_A_HASH: &str =
    "a kernel's hash is 64 hexadecimal digits, as `sidecore offload kernels` prints it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_sha256_and_comes_back_from_its_text() {
        let hash = KernelHash::of(b"abc");
        let text = hash.to_string();
        // FIPS 180-4's example.
        assert_eq!(
            text,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(text.parse(), Ok(hash));
        assert_eq!(text.to_uppercase().parse(), Ok(hash));
        for wrong in [
            "",
            "ba78",
            &text[1..],
            &format!("{text}00"),
            &"g".repeat(64),
        ] {
            assert_eq!(wrong.parse::<KernelHash>(), Err(NOT_A_HASH), "{wrong}");
        }
        let (one, two) = ("1.0", "1.1");
        assert_ne!(
            KernelHash::of_built_in("echo", 1, one),
            KernelHash::of_built_in("echo", 1, two)
        );
    }
}
