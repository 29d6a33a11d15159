//! A protection domain: regions under steering tags, and shared receive queues.
//!
//! Steering tags are drawn from a keyed function (SipHash-2-4 of a counter), all 32 bits of them:
//! knowledge of some of a domain's tags reveals nothing about the others. A wrong guess ends the
//! peer's stream.
//!
//! Must stay true: [`Domain::check`] is the only way from a steering tag to memory.

use crate::Stag;
use crate::memory::RegionId;
use crate::piece::{Fault, PostError, Receive, SharedId, message_bytes};
use sidecore_bare::width::ToUsize;
use siphasher::sip::SipHasher24;
use std::collections::VecDeque;
use std::hash::Hasher;

/// Most regions of a domain.
pub const REGIONS_MAX: usize = 1 << 20;
/// Places of a domain's table at first.
const PLACES_MIN: usize = 64;
/// Most shared receive queues of a domain.
pub const SHARED_QUEUES_MAX: usize = 256;
/// Most receives of a shared receive queue.
pub const RECEIVES_MAX: usize = 1 << 14;
/// Draws of a steering tag before a search for a free place.
const DRAWS_MAX: usize = 64;

/// A pair, by its owner's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PairId(pub u32);

/// Rights in a region. Its owner may always read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(u8);

impl Access {
    /// No right except the owner's reading.
    pub const NONE: Self = Self(0);
    /// Receives and read responses may be placed.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(2);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(4);
    /// Peers may change words by atomics.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Peers may invalidate the steering tag.
    pub const REMOTE_INVALIDATE: Self = Self(16);

    /// True if it includes all of `others`.
    #[must_use]
    pub fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

impl std::ops::BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A region to register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// The memory, by its owner's number.
    pub region: RegionId,
    /// Tagged offset of its first byte.
    pub base: u64,
    /// Its length.
    pub bytes: u64,
    /// Rights.
    pub access: Access,
    /// The only pair that may use it; any pair of the domain if none is given.
    pub pair: Option<PairId>,
}

/// A domain has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DomainFull {
    /// For regions.
    #[error("the domain has its {0} regions; deregister one, or make it for more")]
    Regions(usize),
    /// An impossible range: beyond 64 bits.
    #[error("a region of {bytes} bytes at tagged offset {base} ends beyond 64 bits")]
    Range {
        /// Tagged offset of the first byte.
        base: u64,
        /// The length.
        bytes: u64,
    },
    /// For shared receive queues.
    #[error("the domain has its {SHARED_QUEUES_MAX} shared receive queues")]
    Queues,
}

/// A protection domain.
#[derive(Debug)]
pub struct Domain {
    /// Indexed by the lower bits of their tags, which are as random as the others. A power of two,
    /// at most half full, so that draws seldom hit a used place.
    regions: Vec<Option<(Stag, Registration)>>,
    count: usize,
    regions_max: usize,
    keyed: SipHasher24,
    drawn: u64,
    queues: Vec<SharedQueue>,
}

#[derive(Debug, Default)]
struct SharedQueue {
    generation: u32,
    receives: VecDeque<Receive>,
    /// 0 if the queue was dropped.
    depth: usize,
}

impl Domain {
    /// A domain for `regions_max` regions, at most [`REGIONS_MAX`]; `secret` must be known to no
    /// one else.
    #[must_use]
    pub fn new(regions_max: usize, secret: [u8; 16]) -> Self {
        Self {
            regions: vec![None; PLACES_MIN],
            count: 0,
            regions_max: regions_max.clamp(1, REGIONS_MAX),
            keyed: SipHasher24::new_with_key(&secret),
            drawn: 0,
            queues: Vec::new(),
        }
    }

    /// Registers a region under a new steering tag.
    ///
    /// # Errors
    /// [`DomainFull`]; a range beyond 64 bits.
    pub fn register(&mut self, registration: Registration) -> Result<Stag, DomainFull> {
        let Registration { base, bytes, .. } = registration;
        if base.checked_add(bytes).is_none() {
            return Err(DomainFull::Range { base, bytes });
        }
        if self.count == self.regions_max {
            return Err(DomainFull::Regions(self.regions_max));
        }
        if 2 * self.count >= self.regions.len() {
            self.grow();
        }
        let stag = self.free_stag();
        let place = self.place(stag);
        self.regions[place] = Some((stag, registration));
        self.count += 1;
        Ok(stag)
    }

    /// Invalidates a steering tag; returns its registration.
    pub fn deregister(&mut self, stag: Stag) -> Option<Registration> {
        let place = self.place(stag);
        let (own, registration) = self.regions[place]?;
        // Other tags have the same place, too.
        if own != stag {
            return None;
        }
        self.regions[place] = None;
        self.count -= 1;
        Some(registration)
    }

    /// Number of registered regions.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.count
    }

    /// Registration of a steering tag.
    #[must_use]
    pub fn registration(&self, stag: Stag) -> Option<&Registration> {
        let (own, registration) = self.regions[self.place(stag)].as_ref()?;
        (*own == stag).then_some(registration)
    }

    /// The memory of `bytes` bytes from the tagged offset `offset`, if `pair` may use them with
    /// `rights`. A range of no bytes is checked, too: callers skip the check for those.
    ///
    /// # Errors
    /// [`Fault`]: the tag, the pair, the rights, the range, in this order.
    pub fn check(
        &self,
        pair: PairId,
        stag: Stag,
        offset: u64,
        bytes: u64,
        rights: Access,
    ) -> Result<(RegionId, u64), Fault> {
        // A fixed order: the first fault that is found is the one that the peer learns.
        let registration = self.registration(stag).ok_or(Fault::Stag)?;
        if registration.pair.is_some_and(|own| own != pair) {
            return Err(Fault::NotAssociated);
        }
        if !registration.access.has(rights) {
            return Err(Fault::Access);
        }
        let end = offset.checked_add(bytes).ok_or(Fault::Wrap)?;
        // The sum cannot overflow: `register` has checked it.
        if offset < registration.base || end > registration.base + registration.bytes {
            return Err(Fault::Bounds);
        }
        Ok((registration.region, offset - registration.base))
    }

    /// Invalidates a steering tag for a peer of `pair`.
    ///
    /// # Errors
    /// [`Fault`]: the tag, the pair, the right.
    pub(crate) fn invalidate(&mut self, pair: PairId, stag: Stag) -> Result<(), Fault> {
        let registration = self.registration(stag).ok_or(Fault::Stag)?;
        if registration.pair.is_some_and(|own| own != pair) {
            return Err(Fault::NotAssociated);
        }
        if !registration.access.has(Access::REMOTE_INVALIDATE) {
            return Err(Fault::Access);
        }
        self.deregister(stag);
        Ok(())
    }

    /// A queue of `depth` receives, at most [`RECEIVES_MAX`], for several pairs.
    ///
    /// # Errors
    /// [`DomainFull::Queues`].
    pub fn share_receives(&mut self, depth: usize) -> Result<SharedId, DomainFull> {
        let vacant = self.queues.iter().position(|queue| queue.depth == 0);
        let index = match vacant {
            Some(index) => index,
            None if self.queues.len() == SHARED_QUEUES_MAX => return Err(DomainFull::Queues),
            None => {
                self.queues.push(SharedQueue::default());
                self.queues.len() - 1
            }
        };
        let queue = &mut self.queues[index];
        queue.depth = depth.clamp(1, RECEIVES_MAX);
        Ok(SharedId {
            index: u32::try_from(index).map_err(|_| DomainFull::Queues)?,
            generation: queue.generation,
        })
    }

    /// Drops a shared queue, whose pairs find no receive any more; returns the receives in it.
    pub fn unshare_receives(&mut self, queue: SharedId) -> Vec<Receive> {
        let Some(place) = self.shared_mut(queue) else {
            return Vec::new();
        };
        // Numbers of queues stay positive as signed numbers.
        place.generation = (place.generation + 1) & (u32::MAX >> 1);
        place.depth = 0;
        std::mem::take(&mut place.receives).into()
    }

    /// Posts a buffer to a shared receive queue.
    ///
    /// # Errors
    /// [`PostError`]: the queue is full, or does not exist ([`PostError::Ended`]); a piece is not
    /// in a writable region. A buffer in a region of one pair serves messages of that pair only.
    pub fn post_shared(&mut self, queue: SharedId, receive: Receive) -> Result<(), PostError> {
        let place = self.shared(queue).ok_or(PostError::Ended)?;
        if place.receives.len() >= place.depth {
            return Err(PostError::Full(place.depth));
        }
        message_bytes(&receive.pieces).ok_or(PostError::TooLong)?;
        for piece in receive.pieces.iter().filter(|piece| piece.bytes > 0) {
            let registration = self.registration(piece.stag).ok_or(Fault::Stag)?;
            // Which pair will take it is not known yet: it is checked again when one does.
            let pair = registration.pair.unwrap_or(PairId(0));
            let (offset, bytes) = (piece.offset, piece.bytes.into());
            self.check(pair, piece.stag, offset, bytes, Access::LOCAL_WRITE)?;
        }
        if let Some(place) = self.shared_mut(queue) {
            place.receives.push_back(receive);
        }
        Ok(())
    }

    /// Cancels a receive that no message has begun to fill: the first one with that number; false
    /// if there is none. It has no completion.
    pub fn cancel_shared(&mut self, queue: SharedId, id: u64) -> bool {
        let Some(place) = self.shared_mut(queue) else {
            return false;
        };
        let index = place.receives.iter().position(|receive| receive.id == id);
        let receive = index.and_then(|index| place.receives.remove(index));
        receive.is_some()
    }

    /// Receives in a shared queue.
    #[must_use]
    pub fn shared_receives(&self, queue: SharedId) -> usize {
        self.shared(queue).map_or(0, |queue| queue.receives.len())
    }

    pub(crate) fn take_shared(&mut self, queue: SharedId) -> Option<Receive> {
        self.shared_mut(queue)?.receives.pop_front()
    }

    fn shared(&self, queue: SharedId) -> Option<&SharedQueue> {
        let place = self.queues.get(queue.index.to_usize())?;
        (place.generation == queue.generation && place.depth > 0).then_some(place)
    }

    fn shared_mut(&mut self, queue: SharedId) -> Option<&mut SharedQueue> {
        let place = self.queues.get_mut(queue.index.to_usize())?;
        (place.generation == queue.generation && place.depth > 0).then_some(place)
    }

    fn place(&self, stag: Stag) -> usize {
        stag.0.to_usize() & (self.regions.len() - 1)
    }

    /// Doubles the table: memory is paid for as regions come.
    fn grow(&mut self) {
        let places = 2 * self.regions.len();
        let old = std::mem::replace(&mut self.regions, vec![None; places]);
        for entry in old.into_iter().flatten() {
            // Tags at different places differ in a lower bit, so no two meet at one place now.
            let place = self.place(entry.0);
            self.regions[place] = Some(entry);
        }
    }

    fn free_stag(&mut self) -> Stag {
        let mut stag = self.draw();
        for _ in 0..DRAWS_MAX {
            if self.regions[self.place(stag)].is_none() {
                return stag;
            }
            stag = self.draw();
        }
        // Practically never: takes the next free place; at least half of them are free.
        let mask = u32::try_from(self.regions.len() - 1).unwrap_or(u32::MAX);
        let next = |step| Stag(stag.0 & !mask | stag.0.wrapping_add(step) & mask);
        let mut all = (0..=mask).map(next);
        let free = all.find(|&stag| self.regions[self.place(stag)].is_none());
        free.unwrap_or(stag)
    }

    fn draw(&mut self) -> Stag {
        self.drawn += 1;
        let mut hasher = self.keyed;
        hasher.write_u64(self.drawn);
        // Half of the hash: tags have 32 bits.
        Stag(hasher.finish() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(bytes: u64) -> Registration {
        Registration {
            region: RegionId(7),
            base: 100,
            bytes,
            access: Access::REMOTE_WRITE,
            pair: None,
        }
    }

    #[test]
    fn a_full_domain_refuses_and_its_tags_differ() {
        let mut domain = Domain::new(300, [1; 16]);
        let mut tags: Vec<_> = (0..300)
            .map(|_| domain.register(registration(8)).expect("a place"))
            .collect();
        assert_eq!(
            domain.register(registration(8)),
            Err(DomainFull::Regions(300))
        );
        tags.sort();
        tags.dedup();
        assert_eq!((tags.len(), domain.regions()), (300, 300));
        for stag in tags {
            assert!(
                domain
                    .check(PairId(1), stag, 100, 8, Access::REMOTE_WRITE)
                    .is_ok()
            );
            assert!(domain.deregister(stag).is_some());
            assert_eq!(domain.deregister(stag), None);
        }
        assert_eq!(domain.regions(), 0);
    }

    #[test]
    fn a_shared_queue_is_bounded_checked_and_dropped_for_good() {
        let mut domain = Domain::new(4, [5; 16]);
        let stag = domain.register(Registration {
            access: Access::LOCAL_WRITE,
            ..registration(8)
        });
        let receive = |id, offset| Receive {
            id,
            pieces: crate::Pieces::from_iter([crate::Piece {
                stag: stag.expect("a place"),
                offset,
                bytes: 8,
            }]),
        };
        let queue = domain.share_receives(2).expect("a queue");
        assert_eq!(
            domain.post_shared(queue, receive(0, 101)),
            Err(PostError::Fault(Fault::Bounds))
        );
        for id in [1, 2] {
            assert_eq!(domain.post_shared(queue, receive(id, 100)), Ok(()));
        }
        assert_eq!(
            domain.post_shared(queue, receive(3, 100)),
            Err(PostError::Full(2))
        );
        assert!(domain.cancel_shared(queue, 1) && !domain.cancel_shared(queue, 1));
        assert_eq!(domain.unshare_receives(queue), [receive(2, 100)]);
        let other = domain.share_receives(2).expect("its place");
        assert_ne!(queue, other);
        assert_eq!(
            domain.post_shared(queue, receive(4, 100)),
            Err(PostError::Ended)
        );
        assert_eq!(domain.shared_receives(other), 0);
        assert_eq!(SharedId::from_number(other.number()), other);
    }

    #[test]
    fn other_secrets_give_other_tags() {
        let tag = |secret| Domain::new(4, secret).register(registration(1));
        assert_eq!(tag([3; 16]), tag([3; 16]));
        assert_ne!(tag([3; 16]), tag([4; 16]));
    }

    #[test]
    fn ranges_end_where_they_should() {
        let mut domain = Domain::new(4, [0; 16]);
        let stag = domain.register(registration(10)).expect("a place");
        let check =
            |offset, bytes| domain.check(PairId(0), stag, offset, bytes, Access::REMOTE_WRITE);
        assert_eq!(check(100, 10), Ok((RegionId(7), 0)));
        assert_eq!(check(109, 1), Ok((RegionId(7), 9)));
        assert_eq!(check(109, 2), Err(Fault::Bounds));
        assert_eq!(check(99, 2), Err(Fault::Bounds));
        assert_eq!(check(u64::MAX, 2), Err(Fault::Wrap));
        let beyond = Registration {
            base: u64::MAX,
            ..registration(2)
        };
        assert!(matches!(
            domain.register(beyond),
            Err(DomainFull::Range { .. })
        ));
    }
}
