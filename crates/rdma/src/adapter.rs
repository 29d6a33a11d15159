//! Registered memory of this process.

use crate::{Access, Piece, RdmaError, Remote, Stag};
use sidecore_rdma_wire::{Buffers, Domain, REGIONS_MAX, RegionId, Registration};

/// A protection domain with its memory.
#[derive(Debug)]
pub struct Adapter {
    pub(crate) domain: Domain,
    pub(crate) memory: Buffers,
    pairs: u32,
}

/// A registered region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Its steering tag.
    pub stag: Stag,
    /// Its length, in bytes.
    pub bytes: u32,
    id: RegionId,
}

impl Region {
    /// `bytes` bytes of it from `at` on.
    #[must_use]
    pub fn piece(&self, at: u32, bytes: u32) -> Piece {
        Piece {
            stag: self.stag,
            offset: at.into(),
            bytes,
        }
    }

    /// A place in it, as a peer has to name it.
    #[must_use]
    pub fn remote(&self, at: u32) -> Remote {
        Remote {
            stag: self.stag,
            offset: at.into(),
        }
    }
}

impl Adapter {
    /// A domain whose steering tags nobody can guess.
    ///
    /// # Errors
    /// The system's, which has no random numbers.
    pub fn new() -> Result<Self, RdmaError> {
        let mut secret = [0; 16];
        let mut got = 0;
        while got < secret.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            got +=
                rustix::rand::getrandom(&mut secret[got..], flags).map_err(std::io::Error::from)?;
        }
        Ok(Self {
            domain: Domain::new(REGIONS_MAX / 16, secret),
            memory: Buffers::default(),
            pairs: 0,
        })
    }

    /// Registers `bytes`, which peers of all connections with this adapter may use by `access`.
    ///
    /// # Errors
    /// As many regions as there may be; more than 4 GiB.
    pub fn register(&mut self, bytes: Vec<u8>, access: Access) -> Result<Region, RdmaError> {
        let count = u32::try_from(bytes.len()).map_err(|_| RdmaError::Unexpected("is too long"))?;
        let id = self.memory.add(bytes);
        let registration = Registration {
            region: id,
            base: 0,
            bytes: count.into(),
            access,
            pair: None,
        };
        match self.domain.register(registration) {
            Ok(stag) => Ok(Region {
                stag,
                bytes: count,
                id,
            }),
            Err(full) => {
                self.memory.remove(id);
                Err(full.into())
            }
        }
    }

    /// Takes a region back; no peer reaches it any more.
    pub fn deregister(&mut self, region: Region) -> Option<Vec<u8>> {
        self.domain.deregister(region.stag);
        self.memory.remove(region.id)
    }

    /// The bytes of a region as they are.
    #[must_use]
    pub fn bytes(&self, region: Region) -> &[u8] {
        self.memory.bytes(region.id)
    }

    /// The bytes of a region, to be changed.
    pub fn bytes_mut(&mut self, region: Region) -> &mut [u8] {
        self.memory.bytes_mut(region.id)
    }

    pub(crate) fn next_pair(&mut self) -> u32 {
        self.pairs = self.pairs.wrapping_add(1);
        self.pairs
    }
}
