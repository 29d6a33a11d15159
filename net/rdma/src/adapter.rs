//! Registered memory of this process.

use crate::regions::{EVERYTHING, Regions};
use crate::{Access, Piece, RdmaError, Remote, Stag};
use sidecore_bare::width::ToU64;
use sidecore_rdma_wire::{Domain, Fault, PairId, REGIONS_MAX, RegionId, Registration};

/// Regions of an adapter.
const OWN_REGIONS_MAX: usize = REGIONS_MAX;
/// Size of a process's address space.
const ADDRESS_SPACE_BYTES: u64 = 1 << 47;

/// A protection domain with its memory.
#[derive(Debug)]
pub struct Adapter {
    pub(crate) domain: Domain,
    pub(crate) memory: Regions,
    /// Buffer for units to a stream that lends none.
    pub(crate) units: Vec<u8>,
    pairs: u32,
}

/// A registered region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Its steering tag.
    pub stag: Stag,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Tagged offset of its first byte: 0 for a vector, the address for the application's own
    /// memory.
    pub base: u64,
    id: RegionId,
}

impl Region {
    /// Its `bytes` bytes from `at` on.
    #[must_use]
    pub fn piece(&self, at: u64, bytes: u32) -> Piece {
        Piece {
            stag: self.stag,
            offset: self.base + at,
            bytes,
        }
    }

    /// A location in it, for the peer.
    #[must_use]
    pub fn remote(&self, at: u64) -> Remote {
        Remote {
            stag: self.stag,
            offset: self.base + at,
        }
    }
}

impl Adapter {
    /// A domain with unpredictable steering tags.
    ///
    /// # Errors
    /// The system's, if it has no random numbers.
    pub fn new() -> Result<Self, RdmaError> {
        // A peer that could foresee tags would reach regions that it was not given.
        let mut secret = [0; 16];
        let mut got = 0;
        while got < secret.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            got +=
                rustix::rand::getrandom(&mut secret[got..], flags).map_err(std::io::Error::from)?;
        }
        Ok(Self {
            domain: Domain::new(OWN_REGIONS_MAX, secret),
            memory: Regions::default(),
            units: Vec::new(),
            pairs: 0,
        })
    }

    /// Registers `bytes`, which peers of all connections with this adapter may use according to
    /// `access`.
    ///
    /// # Errors
    /// Too many regions.
    pub fn register(&mut self, bytes: Vec<u8>, access: Access) -> Result<Region, RdmaError> {
        let count = bytes.len().to_u64();
        let id = self.memory.add(bytes);
        self.register_as(id, 0, count, access)
    }

    /// Registers `bytes` bytes of the application's own memory; a peer names a location in it by
    /// its address.
    ///
    /// # Errors
    /// Too many regions.
    ///
    /// # Safety
    /// The memory is readable and writable until [`Self::deregister`]. Any call that makes progress
    /// may read it, and, if `access` allows it, write it: no reference to it may be alive during
    /// such a call.
    #[allow(unsafe_code)] // hands the promise on to `Regions::lend`
    pub unsafe fn register_memory(
        &mut self,
        address: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Region, RdmaError> {
        // SAFETY: the caller's promise is the one that is asked for.
        let id = unsafe { self.memory.lend(address, bytes) };
        self.register_as(id, address.addr().to_u64(), bytes.to_u64(), access)
    }

    /// The same at another tagged offset than the address, and for pairs of one owner only
    /// ([`Options::owner`](crate::Options::owner)).
    ///
    /// # Errors
    /// Too many regions; a range beyond 64 bits.
    ///
    /// # Safety
    /// As [`Self::register_memory`].
    #[allow(unsafe_code)] // hands the promise on to `Regions::lend`
    pub unsafe fn register_mapped(
        &mut self,
        address: *mut u8,
        bytes: usize,
        base: u64,
        access: Access,
        owner: PairId,
    ) -> Result<Region, RdmaError> {
        // SAFETY: the caller's promise is the one that is asked for.
        let id = unsafe { self.memory.lend(address, bytes) };
        self.register_for(Some(owner), id, base, bytes.to_u64(), access)
    }

    /// A number for an owner of pairs and regions.
    pub fn new_owner(&mut self) -> PairId {
        PairId(self.next_pair())
    }

    /// Checks that an owner's pair may use `bytes` bytes of a region with `rights`; the address of
    /// the first one, if the region is the application's own memory.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn check(
        &self,
        owner: PairId,
        piece: Piece,
        rights: Access,
    ) -> Result<Option<*mut u8>, Fault> {
        let (offset, bytes) = (piece.offset, piece.bytes.into());
        let (region, at) = self
            .domain
            .check(owner, piece.stag, offset, bytes, rights)?;
        Ok(self.memory.address(region, at))
    }

    /// A steering tag for all memory of this process, by addresses, which no peer may use.
    ///
    /// # Errors
    /// Too many regions.
    ///
    /// # Safety
    /// Each piece that is posted with it satisfies the conditions of [`Self::register_memory`],
    /// until its completion.
    #[allow(unsafe_code)] // hands the promise on to `Regions::lend_everything`
    pub unsafe fn register_everything(&mut self) -> Result<Stag, RdmaError> {
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { self.memory.lend_everything() };
        // No remote right: the tag is worth nothing to a peer that guesses it.
        let access = Access::LOCAL_WRITE;
        let region = self.register_as(EVERYTHING, 0, ADDRESS_SPACE_BYTES, access)?;
        Ok(region.stag)
    }

    fn register_as(
        &mut self,
        id: RegionId,
        base: u64,
        bytes: u64,
        access: Access,
    ) -> Result<Region, RdmaError> {
        self.register_for(None, id, base, bytes, access)
    }

    fn register_for(
        &mut self,
        pair: Option<PairId>,
        id: RegionId,
        base: u64,
        bytes: u64,
        access: Access,
    ) -> Result<Region, RdmaError> {
        let registration = Registration {
            region: id,
            base,
            bytes,
            access,
            pair,
        };
        match self.domain.register(registration) {
            Ok(stag) => Ok(Region {
                stag,
                bytes,
                base,
                id,
            }),
            Err(full) => {
                // Nothing may keep memory that no tag leads to.
                self.memory.remove(id);
                Err(full.into())
            }
        }
    }

    /// Deregisters a region; peers lose access to it. Returns the bytes, if they were a vector.
    pub fn deregister(&mut self, region: Region) -> Option<Vec<u8>> {
        // The tag first: from then on no unit reaches the memory that its owner gets back.
        self.domain.deregister(region.stag);
        self.memory.remove(region.id)
    }

    /// The bytes of a region; empty for memory that was registered by its address.
    #[must_use]
    pub fn bytes(&self, region: Region) -> &[u8] {
        self.memory.bytes(region.id)
    }

    /// The bytes of a region, mutable; likewise.
    pub fn bytes_mut(&mut self, region: Region) -> &mut [u8] {
        self.memory.bytes_mut(region.id)
    }

    pub(crate) fn next_pair(&mut self) -> u32 {
        self.pairs = self.pairs.wrapping_add(1);
        self.pairs
    }
}
