//! Garbage collection: leases of writers, and the removal of what no name needs, in two phases.
//!
//! Why here: writers run for hours without the lock, and rely on packs that no name needs yet. A
//! collector must not take one away from below them, whatever moment either dies at.
//!
//! The protocol: `condemned` lists objects that no name needed, each with the list's generation at
//! that time. Changes of the list and of names, and renewals of leases, are made under the lock.
//!
//! 1. A writer takes a lease, which carries the generation that it has seen, and reads the list.
//! 2. A writer that needs an object of the list takes it off the list first (it revives it), under
//!    the lock, while its lease is there.
//! 3. `condemn` puts objects that no name needs on the list, with the next generation.
//! 4. `sweep` removes leases that have expired. Then it removes an object only if no name needs it,
//!    it is on the list for long enough, and each live lease has seen its generation.
//! 5. A writer publishes a name under the lock, and only while its lease is there.
//!
//! Must stay true: what a published name needs is never removed. Proof: take a writer that
//! publishes, and an object that it uses. From the taking of its lease to the publication the lease
//! was there, or it would not be at the publication: it is removed once, by a sweep, and never
//! comes back. An object that was on the list when the lease was taken was revived by the writer.
//! Any other one, and a revived one, can come onto the list later with a greater generation alone.
//! A sweep in that time finds the lease, whose generation is less, and leaves the object. A sweep
//! after that time finds the name. Expiry uses clocks, but only to give a writer up: one that was
//! given up publishes nothing.
//!
//! In a bucket, a lock may end while its holder stands still ([`crate::Backend::lock_may_end`]).
//! Writes of names, leases and the list are refused there if these have changed since they were
//! read. A removal has no such condition. So a sweep marks on the list what it will remove, before
//! it removes it: such an object is not revived, and a writer stores its chunks under another key.
//! A publication renews the lease, under the same lock: the lease is there for a whole term after
//! the lock was held.
//! What is left is a single request that the network or a stopped machine holds up. A removal does
//! harm after the term of the lock, while a copy brings the same object back, or the same name is
//! given again. A new name does after the term of a lease. `sidecore store verify` finds what is
//! lost so, but for a name.
//!
//! A crash between two steps leaves a longer list, a lease that expires, or an object that no name
//! needs: the next collection finds each of them.
//! Source: K. Fraser, "Practical lock-freedom", 2004, section 5.2.3 (epochs); the two phases are
//! those of distributed file systems with a grace period.

use crate::backend::{Id, LEASES, MANIFESTS, PACKS};
use crate::domain::random;
use crate::pack::in_parts;
use crate::{Store, StoreError, parse_json, reference_key, sum};
use sidecore_bare::width::ToU64;
use std::collections::HashSet;
use std::io;
use std::time::Duration;

/// Result of a collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Collected {
    /// Objects that were put on the list of those to be removed.
    pub condemned: u64,
    /// Objects that stay on the list, for a later collection.
    pub waiting: u64,
    /// Objects that were removed.
    pub removed: u64,
    /// Their size in bytes.
    pub removed_bytes: u64,
    /// Writers that are at work.
    pub leases: u64,
}

/// Objects that no name needed.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct Condemned {
    /// Number of the list's last extension.
    generation: u64,
    objects: Vec<Doomed>,
}

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Doomed {
    key: String,
    /// The time at which it was condemned, in milliseconds since 1970.
    since_ms: u64,
    generation: u64,
    /// True once its removal has begun: it is not revived any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_going: bool,
}

/// A lease as it is stored.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Term {
    expires_ms: u64,
    /// Generation of the list that its writer has read.
    generation: u64,
}

impl Condemned {
    /// Reads the list; the lock is held.
    fn read(store: &Store) -> Result<Self, StoreError> {
        match store.get(CONDEMNED, CONDEMNED_BYTES_MAX)? {
            Some(bytes) => parse_json(CONDEMNED, &bytes),
            None => Ok(Self::default()),
        }
    }

    /// Writes the list; the lock is held.
    fn write(&self, store: &Store) -> Result<(), StoreError> {
        store.put_json(CONDEMNED, self)
    }

    /// Keys of the objects whose removal has begun.
    fn going(&self) -> impl Iterator<Item = String> {
        let going = self.objects.iter().filter(|it| it.is_going);
        going.map(|it| it.key.clone())
    }
}

/// A writer's lease, which ends when this is dropped.
pub(crate) struct Lease<'s> {
    store: &'s Store,
    key: String,
    generation: u64,
    renew_at_ms: u64,
    /// Objects that were on the list, and may be gone.
    doomed: HashSet<String>,
    /// Those of them that were taken off it since.
    revived: HashSet<String>,
    /// Those whose removal has begun.
    going: HashSet<String>,
}

impl<'s> Lease<'s> {
    /// Takes a lease.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Damaged`].
    pub(crate) fn take(store: &'s Store) -> Result<Self, StoreError> {
        // Drawn: two writers, also on two machines, never renew or remove each other's lease.
        let key = format!("{LEASES}/{}", Id(*random()?));
        let _lock = store.lock()?;
        let condemned = Condemned::read(store)?;
        // List and lease under one lock: an object listed in between would carry a generation that
        // the lease claims to have seen.
        let going = condemned.going().collect();
        let doomed = condemned.objects.into_iter().map(|it| it.key).collect();
        let mut lease = Self {
            store,
            key,
            generation: condemned.generation,
            renew_at_ms: 0,
            doomed,
            revived: HashSet::new(),
            going,
        };
        lease.write()?;
        Ok(lease)
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let now_ms = self.store.now_ms();
        // Two more chances before it expires, should one renewal wait for the lock.
        self.renew_at_ms = now_ms.saturating_add(TERM_MS / 3);
        let term = Term {
            expires_ms: now_ms.saturating_add(TERM_MS),
            generation: self.generation,
        };
        self.store.put_json(&self.key, &term)
    }

    /// Makes the lease longer where a part of it is over. To be called once in a few MiB of work.
    ///
    /// # Errors
    /// [`StoreError::LeaseLost`].
    pub(crate) fn renew(&mut self) -> Result<(), StoreError> {
        if self.store.now_ms() < self.renew_at_ms {
            return Ok(());
        }
        // Under the lock: a lease that a sweep has removed must not come back.
        let _lock = self.store.lock()?;
        self.check()?;
        self.write()
    }

    /// Makes sure that the lease is there; the lock is held.
    fn check(&self) -> Result<(), StoreError> {
        match self.store.size(&self.key)? {
            Some(_) => Ok(()),
            None => Err(StoreError::LeaseLost),
        }
    }

    /// Makes sure that an object, if it is there, stays until the lease ends. True if it is there
    /// to stay.
    ///
    /// # Errors
    /// [`StoreError::LeaseLost`], [`StoreError::Io`].
    pub(crate) fn keep(&mut self, key: &str) -> Result<bool, StoreError> {
        if self.doomed.contains(key) {
            if !self.revived.contains(key) {
                self.revive(key)?;
            }
            if self.going.contains(key) {
                return Ok(false);
            }
            // Safe from here on, so that later chunks of the same pack cost a look-up alone.
            self.doomed.remove(key);
        }
        Ok(self.store.size(key)?.is_some())
    }

    /// As [`Self::keep`], for an object that is written under its key where it is not there.
    ///
    /// # Errors
    /// [`StoreError::Going`]: its removal has begun; [`StoreError::LeaseLost`], [`StoreError::Io`].
    pub(crate) fn keep_to_write(&mut self, key: &str) -> Result<bool, StoreError> {
        let is_there = self.keep(key)?;
        match self.going.contains(key) {
            true => Err(StoreError::Going(key.to_owned())),
            false => Ok(is_there),
        }
    }

    /// Takes an object off the list, and as many others as before: a writer that needs all of a
    /// long list writes it a few times, and not once for each object. Those that it does not need
    /// are listed again by a later collection.
    fn revive(&mut self, key: &str) -> Result<(), StoreError> {
        let _lock = self.store.lock()?;
        self.check()?;
        // Doubling: a list of n objects is written log n times, each time in full.
        let others = self.doomed.difference(&self.revived);
        let others = others.take(self.revived.len()).cloned();
        let mut revived: HashSet<String> = others.collect();
        revived.insert(key.to_owned());
        let mut condemned = Condemned::read(self.store)?;
        // Read anew: other writers and sweeps have changed the list since the lease was taken.
        self.going.extend(condemned.going());
        let before = condemned.objects.len();
        let stays = |it: &Doomed| it.is_going || !revived.contains(&it.key);
        condemned.objects.retain(stays);
        if condemned.objects.len() < before {
            condemned.write(self.store)?;
        }
        self.revived.extend(revived);
        Ok(())
    }

    /// True if an object was on the list when the lease was taken, and was not looked for since.
    pub(crate) fn is_doomed(&self, key: &str) -> bool {
        self.doomed.contains(key)
    }

    /// Has a name stand for a manifest, if it stands for `old` now.
    ///
    /// # Errors
    /// [`StoreError::LeaseLost`], [`StoreError::Changed`], [`StoreError::Io`].
    pub(crate) fn publish(
        &mut self,
        name: &str,
        old: Option<Id>,
        manifest: Id,
    ) -> Result<(), StoreError> {
        let _lock = self.store.lock()?;
        self.check()?;
        if self.store.backend.lock_may_end() {
            // So that the name, should it be held up, meets no sweep that has ended the lease.
            self.write()?;
        }
        // Under the lock this is a compare and exchange: of two writers one is refused.
        if self.store.reference(name)? != old {
            return Err(StoreError::Changed(name.to_owned()));
        }
        let text = format!("{manifest}\n");
        self.store.put(&reference_key(name), text.as_bytes())
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // Without it, removed objects wait until the lease expires: no harm.
        if let Err(error) = self.store.remove_object(&self.key) {
            tracing::info!("a lease is left: {error}");
        }
    }
}

impl Store {
    /// First phase: lists objects that no name needs. Returns their number. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]: a name's manifest cannot be read; [`StoreError::Changed`]: a name
    /// that the place lists is not there. Then nothing is listed, since what it needs is not known.
    pub fn condemn(&self) -> Result<u64, StoreError> {
        self.condemn_but(&mut self.likely_needed())
    }

    fn condemn_but(&self, needed: &mut Needed) -> Result<u64, StoreError> {
        let _lock = self.lock()?;
        needed.add_all(self)?;
        let needed = &needed.keys;
        let mut condemned = Condemned::read(self)?;
        let before = condemned.objects.len();
        // A name may need again what was listed: a copy from elsewhere has brought it.
        condemned.objects.retain(|it| !needed.contains(&it.key));
        let is_shorter = condemned.objects.len() < before;
        // Greater than any that a writer has seen, also where an older list was restored.
        let leases = self.leases()?;
        let seen = leases.iter().map(|(_, term)| term.generation).max();
        // Not saturating: an equal generation would look as if a writer had seen this list.
        let generation = condemned.generation.max(seen.unwrap_or(0)).checked_add(1);
        let generation = generation
            .ok_or_else(|| StoreError::damaged(CONDEMNED, "its generations are used up"))?;
        let since_ms = self.now_ms();
        let mut new = self.unlisted(needed, &condemned)?;
        // A list that nothing can read back would end all work. The rest has its turn later.
        new.truncate(CONDEMNED_MAX.saturating_sub(condemned.objects.len()));
        let new: Vec<Doomed> = (new.into_iter())
            .map(|key| Doomed {
                key,
                since_ms,
                generation,
                is_going: false,
            })
            .collect();
        let count = new.len();
        if count > 0 {
            // Only with new objects: a generation for nothing would hold up sweeps of what waits.
            condemned.generation = generation;
        }
        condemned.objects.extend(new);
        if count > 0 || is_shorter {
            condemned.write(self)?;
        }
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }

    /// Keys of objects that no name needs, and that are not on the list.
    fn unlisted(
        &self,
        needed: &HashSet<String>,
        condemned: &Condemned,
    ) -> Result<Vec<String>, StoreError> {
        let listed: HashSet<&str> = condemned.objects.iter().map(|it| &*it.key).collect();
        let mut new = Vec::new();
        for folder in [MANIFESTS, PACKS] {
            for name in self.list(folder)? {
                let key = format!("{folder}/{name}");
                // A file of another kind is not ours to remove.
                let is_object = Id::parse(&name).is_some();
                if is_object && !needed.contains(&key) && !listed.contains(&*key) {
                    new.push(key);
                }
            }
        }
        Ok(new)
    }

    /// Second phase: removes objects that were listed at least `grace` ago, that no name needs, and
    /// that no writer at work may rely on. The time is for readers of versions that were removed;
    /// writers need none. Blocks.
    ///
    /// # Errors
    /// As [`Store::condemn`].
    pub fn sweep(&self, grace: Duration) -> Result<Collected, StoreError> {
        self.sweep_but(&mut self.likely_needed(), grace)
    }

    fn sweep_but(&self, needed: &mut Needed, grace: Duration) -> Result<Collected, StoreError> {
        let _lock = self.lock()?;
        // Before the names are read: what a lease that is given up would publish from here on is
        // refused.
        let (leases, seen) = self.end_leases()?;
        needed.add_all(self)?;
        let mut condemned = Condemned::read(self)?;
        let before = condemned.objects.len();
        let needed = &needed.keys;
        condemned.objects.retain(|it| !needed.contains(&it.key));
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let now_ms = self.now_ms();
        let mut collected = Collected {
            leases,
            ..Collected::default()
        };
        // A clock that went back gives 0: too young, never too old.
        let waits = |it: &Doomed| {
            let is_young = now_ms.saturating_sub(it.since_ms) < grace_ms;
            (is_young || it.generation > seen) && !it.is_going
        };
        let objects = std::mem::take(&mut condemned.objects);
        let (waiting, mut going): (Vec<_>, Vec<_>) = objects.into_iter().partition(waits);
        // A damaged list must not lead to other files.
        if !going.iter().all(|it| is_removable(&it.key)) {
            return Err(StoreError::damaged(CONDEMNED, "it lists what is no object"));
        }
        if self.backend.lock_may_end() && going.iter().any(|it| !it.is_going) {
            going.iter_mut().for_each(|it| it.is_going = true);
            condemned.objects = [&waiting[..], &going[..]].concat();
            condemned.write(self)?;
        }
        // Side by side where each waits for a server: others wait for the lock.
        let removed = in_parts(&going, self.backend.requests_max(), |part| {
            let mut sizes = Vec::with_capacity(part.len());
            for doomed in part {
                // An earlier sweep may have removed it and died before it wrote the list.
                sizes.push(self.size(&doomed.key)?.unwrap_or(0));
                self.discard(&doomed.key)?;
            }
            Ok(sizes)
        })?;
        collected.removed = removed.len().to_u64();
        collected.removed_bytes = sum(&removed);
        collected.waiting = u64::try_from(waiting.len()).unwrap_or(u64::MAX);
        if waiting.len() < before {
            condemned.objects = waiting;
            condemned.write(self)?;
        }
        let age = UNFINISHED_AGE_MIN.max(grace);
        // Still under the lock: a name that is being published is not taken for a rest.
        let cleaned = self.backend.clean(age);
        cleaned.map_err(|source| StoreError::io("clean", "packs", &*self.backend, source))?;
        Ok(collected)
    }

    /// Both phases: what this call lists is removed by a later one, or at once with a `grace` of
    /// zero and no writer at work. Blocks.
    ///
    /// # Errors
    /// As [`Store::condemn`].
    pub fn collect(&self, grace: Duration) -> Result<Collected, StoreError> {
        let mut needed = self.likely_needed();
        let mut first = Collected::default();
        let condemned = match self.condemn_but(&mut needed) {
            // No room for a longer list: what is on it already goes first.
            Err(StoreError::Io { source, .. }) if is_full(&source) => {
                // Removal needs no room but for a shorter list, and makes room for the rest.
                first = self.sweep_but(&mut needed, grace)?;
                self.condemn_but(&mut needed)?
            }
            condemned => condemned?,
        };
        let swept = self.sweep_but(&mut needed, grace)?;
        Ok(Collected {
            condemned,
            removed: first.removed + swept.removed,
            removed_bytes: first.removed_bytes + swept.removed_bytes,
            ..swept
        })
    }

    /// Sizes in bytes of the objects on the list, summed.
    pub(crate) fn condemned_bytes(&self) -> Result<u64, StoreError> {
        let objects = Condemned::read(self)?.objects.into_iter();
        let keys: Vec<String> = objects.map(|it| it.key).collect();
        Ok(sum(&self.sizes(&keys)?))
    }

    /// Removes leases that have expired. Returns the number of the others, and the least generation
    /// that one of them has seen. The lock is held.
    fn end_leases(&self) -> Result<(u64, u64), StoreError> {
        // Without a lease every generation was seen by all writers.
        let (mut live, mut seen) = (0, u64::MAX);
        // The clock is read for each: a lease of a long list may expire in the meantime.
        for (key, term) in self.leases()? {
            let now_ms = self.now_ms();
            // A lease of a machine whose clock is far ahead would hold removals up for as long. It
            // is given up, too: its writer then publishes nothing.
            let is_odd = term.expires_ms > now_ms.saturating_add(TERM_MS + CLOCK_ERROR_MS);
            if term.expires_ms < now_ms || is_odd {
                self.remove_object(&key)?;
                continue;
            }
            live += 1;
            seen = seen.min(term.generation);
        }
        Ok((live, seen))
    }

    /// All leases, by their keys.
    fn leases(&self) -> Result<Vec<(String, Term)>, StoreError> {
        let mut leases = Vec::new();
        for name in self.list(LEASES)? {
            let key = format!("{LEASES}/{name}");
            // Writers remove their own without the lock.
            if let Some(bytes) = self.get(&key, TERM_BYTES_MAX)? {
                let term = parse_json(&key, &bytes)?;
                leases.push((key, term));
            }
        }
        Ok(leases)
    }

    /// The packs that names need at this time. Manifests are read here, without the lock, which
    /// others wait for no longer than a minute.
    fn likely_needed(&self) -> Needed {
        let mut needed = Needed::default();
        // A name that is removed meanwhile, or damage: what counts is seen with the lock.
        if let Err(error) = needed.add_all(self) {
            tracing::info!("looked at again: {error}");
        }
        needed
    }

    /// Removes an object that nothing needs.
    fn discard(&self, key: &str) -> Result<(), StoreError> {
        let removed = self.backend.discard(key);
        removed.map_err(|source| StoreError::io("remove", key, &*self.backend, source))
    }
}

/// Keys of objects that names need, or needed a short time ago.
#[derive(Default)]
struct Needed {
    keys: HashSet<String>,
}

impl Needed {
    /// Adds what names need now; with the lock held, all that they need. A manifest never changes:
    /// one that was read before is not read again.
    fn add_all(&mut self, store: &Store) -> Result<(), StoreError> {
        for name in store.names()? {
            let id = store.reference(&name)?;
            // No name goes while the lock is held: what this one needs is not known, and not none.
            let id = id.ok_or(StoreError::Changed(name))?;
            let key = id.manifest();
            if self.keys.contains(&key) {
                continue;
            }
            // The head is never encrypted: collections need no keys.
            let (head, _) = store.manifest_bytes(&id)?;
            self.keys.extend(head.packs.iter().map(Id::pack));
            self.keys.insert(key);
        }
        Ok(())
    }
}

/// True for the errors of a full disk.
fn is_full(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(
        kind,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// True for the key of a pack or of a manifest.
fn is_removable(key: &str) -> bool {
    let name = key.split_once('/');
    name.is_some_and(|(folder, name)| {
        [PACKS, MANIFESTS].contains(&folder) && Id::parse(name).is_some()
    })
}

const CONDEMNED: &str = "condemned";
/// Objects on the list, of at most 200 bytes each.
const CONDEMNED_MAX: usize = 330_000;
const CONDEMNED_BYTES_MAX: u64 = 64 << 20;
const TERM_BYTES_MAX: u64 = 4096;
/// A writer that says nothing for this long is given up.
const TERM_MS: u64 = 15 * 60 * 1000;
/// More than clocks of machines differ by.
const CLOCK_ERROR_MS: u64 = 24 * 3600 * 1000;
/// A writer that lives has renamed its file before.
const UNFINISHED_AGE_MIN: Duration = Duration::from_secs(3600);
