//! Integrity of a store, copies of versions to another store or other packs, and figures.
//!
//! Why here: walks over all names. Objects are named by their hash, so that damage is found, and
//! copies are made, without any key.
//! Must stay true: a copy is published only once all that it needs is there; damage ends no check.

use crate::backend::{Id, MANIFESTS, PACKS};
use crate::domain::Domain;
use crate::gc::Lease;
use crate::pack::{PACK_BYTES_MAX, PackIndex, Packed, check_contents, lists, pack_overhead_bytes};
use crate::version::Version;
use crate::writer::Session;
use crate::{SETTINGS, SETTINGS_BYTES_MAX, Store, StoreError, reference_key, sum};
use sidecore_bare::width::{ToU64, ToUsize};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A version, as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Size of the image in bytes.
    pub raw_bytes: u64,
    /// Time of its publication, in seconds since 1970.
    pub created_s: u64,
    /// Number of the key of its domain that encrypts its manifest; 0 without encryption.
    pub key: u32,
    /// Packs that hold its chunks.
    pub packs: u64,
    /// Id of its manifest.
    pub manifest: String,
    /// The same for versions with the same contents, where the keys to look are here.
    pub digest: Option<String>,
    /// Id of the manifest that had its name before, where the keys to look are here.
    pub parent: Option<String>,
}

/// Figures of a store.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Totals {
    /// Number of versions.
    pub versions: u64,
    /// Sizes of their images in bytes, summed.
    pub raw_bytes: u64,
    /// Number of packs.
    pub packs: u64,
    /// Sizes of packs and manifests in bytes, summed.
    pub stored_bytes: u64,
    /// The part of it that garbage collections will free.
    pub condemned_bytes: u64,
    /// `raw_bytes` by `stored_bytes`; 0 for an empty store.
    pub ratio: f64,
    /// Average bytes of a chunk's contents.
    pub chunk_bytes: u32,
}

/// Result of [`Store::check`].
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Checked {
    /// Number of versions.
    pub versions: u64,
    /// Those whose list of chunks was checked, too: the keys to look are here.
    pub opened: u64,
    /// Packs that they need.
    pub packs: u64,
    /// Bytes of packs that were read.
    pub read_bytes: u64,
    /// All faults.
    pub faults: Vec<String>,
}

/// Result of [`Store::compact`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Compacted {
    /// Versions whose chunks were moved.
    pub moved_versions: u64,
    /// Packs that they need no longer.
    pub left_packs: u64,
    /// Bytes that were written.
    pub moved_bytes: u64,
}

/// Result of [`Store::copy_to`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Copied {
    /// Versions that are in both stores now.
    pub versions: u64,
    /// Those that were there before.
    pub unchanged: u64,
    /// Packs and manifests that were written.
    pub objects: u64,
    /// Their bytes.
    pub copied_bytes: u64,
}

/// Takes an object by its key.
type Put<'p> = &'p mut dyn FnMut(&str, &[u8]) -> Result<(), StoreError>;

impl Store {
    /// All versions, sorted by name. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn versions(&self, domain: &Domain) -> Result<Vec<Listed>, StoreError> {
        let mut listed = Vec::new();
        for name in self.names()? {
            // It may be removed meanwhile.
            let Some(id) = self.reference(&name)? else {
                continue;
            };
            let (head, _) = self.manifest_bytes(&id)?;
            // By the tag, not by trying: a list shows versions of all domains, and the keys of one.
            let opened = match head.tag == domain.tag() {
                true => Some(self.manifest(&name, domain)?.1),
                false => None,
            };
            let digest = opened.as_ref().map(|it| Id(it.digest).to_string());
            let parent = opened.and_then(|it| it.parent);
            listed.push(Listed {
                name,
                raw_bytes: head.size_bytes,
                created_s: head.created_s,
                key: head.key,
                packs: head.packs.len().to_u64(),
                manifest: id.to_string(),
                digest,
                parent: parent.map(|id| id.to_string()),
            });
        }
        Ok(listed)
    }

    /// Figures of the store. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn totals(&self) -> Result<Totals, StoreError> {
        let versions = self.versions(&Domain::shared())?;
        // Sizes of versions whose keys are elsewhere are as their heads say: any.
        let sizes = versions.iter().map(|it| it.raw_bytes);
        let raw_bytes = sizes.fold(0, u64::saturating_add);
        let packs = self.list(PACKS)?;
        let manifests = self.list(MANIFESTS)?;
        let keys = packs.iter().map(|name| format!("{PACKS}/{name}"));
        let others = manifests.iter().map(|name| format!("{MANIFESTS}/{name}"));
        let keys: Vec<String> = keys.chain(others).collect();
        let stored_bytes = sum(&self.sizes(&keys)?);
        Ok(Totals {
            versions: versions.len().to_u64(),
            raw_bytes,
            packs: packs.len().to_u64(),
            stored_bytes,
            condemned_bytes: self.condemned_bytes()?,
            ratio: match stored_bytes {
                0 => 0.0,
                stored => raw_bytes as f64 / stored as f64,
            },
            chunk_bytes: self.chunk_bytes(),
        })
    }

    /// Checks all versions: references, manifests, the packs' indexes, and, of versions of
    /// `domain`, that each chunk is listed where its manifest says. With `read_data`, all bytes of
    /// packs, and the contents of those chunks. `progress` is called with the number of bytes of
    /// packs read. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`] where the names cannot be listed; damage is in the result.
    pub fn check(
        &self,
        domain: &Arc<Domain>,
        read_data: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Checked, StoreError> {
        let mut checked = Checked::default();
        // Packs are shared among versions: each is read once, and faults of it are said once.
        let mut indexes = HashMap::new();
        let mut seen = HashSet::new();
        for name in self.names()? {
            checked.versions += 1;
            let before = checked.faults.len();
            let found = self.check_version(&name, &mut indexes, read_data, progress, &mut checked);
            let id = match found {
                Ok(id) => id,
                Err(error) => {
                    checked.faults.push(format!("{name}: {error}"));
                    continue;
                }
            };
            // With a pack damaged, every chunk in it would be another fault.
            if checked.faults.len() > before {
                continue;
            }
            match self.check_chunks(&name, domain, id, &indexes) {
                Err(error) if is_elsewhere(&error) => {}
                // It stands for another version by now, whose packs were not looked at.
                Err(StoreError::Changed(_)) => {}
                Err(error) => checked.faults.push(format!("{name}: {error}")),
                Ok(version) => {
                    checked.opened += 1;
                    if read_data {
                        let faults = version.read_all(&mut seen, &mut |_| {});
                        let faults = faults.into_iter().map(|fault| format!("{name}: {fault}"));
                        checked.faults.extend(faults);
                    }
                }
            }
        }
        checked.packs = indexes.len().to_u64();
        Ok(checked)
    }

    /// Checks a version's manifest, and those of its packs that are not in `indexes`. Returns the
    /// manifest's id.
    fn check_version(
        &self,
        name: &str,
        indexes: &mut HashMap<Id, Vec<Packed>>,
        read_data: bool,
        progress: &mut dyn FnMut(u64),
        checked: &mut Checked,
    ) -> Result<Option<Id>, StoreError> {
        // It may be removed meanwhile.
        let Some(id) = self.reference(name)? else {
            return Ok(None);
        };
        let (head, _) = self.manifest_bytes(&id)?;
        for pack in &head.packs {
            if indexes.contains_key(pack) {
                continue;
            }
            let index = PackIndex::read(&*self.backend, &pack.pack());
            let read = index.and_then(|index| {
                let read_bytes = match read_data {
                    true => self.check_bytes(pack)?,
                    false => 0,
                };
                Ok((index, read_bytes))
            });
            match read {
                Ok((index, read_bytes)) if index.tag == head.tag => {
                    checked.read_bytes += read_bytes;
                    progress(checked.read_bytes);
                    indexes.insert(*pack, index.chunks);
                }
                Ok(_) => {
                    let fault = format!("{name}: `{}` belongs to another domain", pack.pack());
                    checked.faults.push(fault);
                }
                Err(error) => checked.faults.push(format!("{name}: {error}")),
            }
        }
        Ok(Some(id))
    }

    /// Makes sure that a pack has the bytes of its name; returns their number.
    fn check_bytes(&self, pack: &Id) -> Result<u64, StoreError> {
        let key = pack.pack();
        // One that is gone has no bytes, whose hash is never a pack's name.
        let bytes = self.get(&key, PACK_BYTES_MAX)?.unwrap_or_default();
        match Id::of(&bytes) == *pack {
            true => Ok(bytes.len().to_u64()),
            false => Err(StoreError::damaged(
                &key,
                "its bytes are not those of its name",
            )),
        }
    }

    /// Opens a version, which has the manifest `id`, and makes sure that each chunk is listed by
    /// its pack.
    fn check_chunks(
        &self,
        name: &str,
        domain: &Arc<Domain>,
        id: Option<Id>,
        indexes: &HashMap<Id, Vec<Packed>>,
    ) -> Result<Version, StoreError> {
        let version = Version::open(self, name, Arc::clone(domain))?;
        if id != Some(version.id()) {
            return Err(StoreError::Changed(name.to_owned()));
        }
        let manifest = version.manifest();
        for entry in manifest.entries.iter().filter(|entry| !entry.is_hole()) {
            let pack = manifest.head.packs[entry.pack.to_usize()];
            let lengths = (entry.stored_bytes, entry.raw_bytes);
            let index = indexes.get(&pack);
            if !index.is_some_and(|chunks| lists(chunks, &entry.key, entry.at, lengths)) {
                let what = format!("{} byte {}", pack.pack(), entry.at);
                let reason = "another chunk is there than its manifest says";
                return Err(StoreError::damaged(&what, reason));
            }
        }
        Ok(version)
    }

    /// Moves chunks of versions of `domain` out of packs of which less than `percent` is used, so
    /// that garbage collections can remove these packs. The versions stay as they are, in new
    /// manifests. `progress` is called with the number of bytes written. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and others; versions that were moved before stay so.
    pub fn compact(
        &self,
        domain: &Arc<Domain>,
        percent: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Compacted, StoreError> {
        // Before the session's lease: a pack that becomes poor later waits for the next compaction.
        let poor = self.poor_packs(domain, percent)?;
        let mut compacted = Compacted::default();
        if poor.is_empty() {
            return Ok(compacted);
        }
        // Nothing is compressed: chunks stay as they are.
        let mut session = Session::begin(self, domain, 1, 1)?;
        // Else the session would find each chunk where it is, and move nothing.
        session.forget(&poor);
        for name in self.names()? {
            let version = match Version::open(self, &name, Arc::clone(domain)) {
                Err(error) if is_elsewhere(&error) => continue,
                opened => opened?,
            };
            let mut packs = version.manifest().head.packs.iter();
            if !packs.any(|pack| poor.contains(pack)) {
                continue;
            }
            match session.move_version(&version) {
                // Its new version was made meanwhile.
                Err(StoreError::Changed(_)) => continue,
                moved => compacted.moved_bytes += moved?,
            }
            compacted.moved_versions += 1;
            progress(compacted.moved_bytes);
        }
        compacted.left_packs = poor.len().to_u64();
        Ok(compacted)
    }

    /// Packs of which versions of `domain` use less than `percent`, and all that need them are
    /// such versions.
    fn poor_packs(&self, domain: &Arc<Domain>, percent: u64) -> Result<HashSet<Id>, StoreError> {
        let mut used: HashMap<Id, HashMap<u32, u32>> = HashMap::new();
        for name in self.names()? {
            let version = match Version::open(self, &name, Arc::clone(domain)) {
                Err(error) if is_elsewhere(&error) => continue,
                opened => opened?,
            };
            let manifest = version.manifest();
            for entry in manifest.entries.iter().filter(|entry| !entry.is_hole()) {
                let pack = manifest.head.packs[entry.pack.to_usize()];
                // By place: a chunk that many versions use counts once.
                let chunks = used.entry(pack).or_default();
                chunks.insert(entry.at, entry.stored_bytes);
            }
        }
        let mut poor = HashSet::new();
        for (pack, chunks) in used {
            let used_bytes: u64 = chunks.values().map(|bytes| u64::from(*bytes)).sum();
            // Else no pack would ever be used in full.
            let used_bytes = used_bytes + pack_overhead_bytes(chunks.len());
            let size_bytes = self.size(&pack.pack())?.unwrap_or(0);
            // In integers: a percentage from a program's user times a size may pass 2^64.
            if used_bytes.saturating_mul(100) < size_bytes.saturating_mul(percent) {
                poor.insert(pack);
            }
        }
        Ok(poor)
    }

    /// Copies versions to another store, with what it lacks of them; all versions unless `names`
    /// are given. Keys are not needed. With `replace`, a name may stand for another version there.
    /// `progress` is called with the number of bytes written. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Damaged`] and others; versions that were copied before
    /// stay.
    pub fn copy_to(
        &self,
        to: &Self,
        names: &[String],
        replace: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Copied, StoreError> {
        let all = match names.is_empty() {
            true => self.names()?,
            false => names.to_vec(),
        };
        // On the target alone. A pack that the source's collector removes meanwhile is an error,
        // and the copy is run again.
        let mut lease = Lease::take(to)?;
        let mut copied = Copied::default();
        for name in all {
            let id = self.reference(&name)?;
            let id = id.ok_or_else(|| StoreError::Unknown(name.clone()))?;
            let old = to.reference(&name)?;
            copied.versions += 1;
            if old == Some(id) {
                copied.unchanged += 1;
                continue;
            }
            if old.is_some() && !replace {
                return Err(StoreError::Exists(name));
            }
            let (head, bytes) = self.manifest_bytes(&id)?;
            for pack in &head.packs {
                let key = pack.pack();
                if lease.keep_to_write(&key)? {
                    continue;
                }
                let bytes = self.whole_pack(pack)?;
                to.put(&key, &bytes)?;
                copied.objects += 1;
                copied.copied_bytes += bytes.len().to_u64();
                progress(copied.copied_bytes);
                // Each pack may take minutes to come, and a lease has fifteen.
                lease.renew()?;
            }
            let key = id.manifest();
            if !lease.keep_to_write(&key)? {
                to.put(&key, &bytes)?;
                copied.objects += 1;
                copied.copied_bytes += bytes.len().to_u64();
            }
            lease.renew()?;
            lease.publish(&name, old, id)?;
        }
        Ok(copied)
    }

    /// The bytes of a pack, as its name and its index say.
    fn whole_pack(&self, pack: &Id) -> Result<Vec<u8>, StoreError> {
        let key = pack.pack();
        let found = self.get(&key, PACK_BYTES_MAX)?;
        // Damage must not spread: the target's own check would find it too late.
        let found = found.filter(|bytes| Id::of(bytes) == *pack);
        let reason = "it is not there, or its bytes are not those of its name";
        let bytes = found.ok_or_else(|| StoreError::damaged(&key, reason))?;
        check_contents(&bytes).map_err(|reason| StoreError::damaged(&key, reason))?;
        Ok(bytes)
    }

    /// Calls `put` with each object that versions need, by its key and its bytes, for a place that
    /// gets all of them at once: settings, and of each version its name, packs and manifest. Those
    /// that the place `has` are left out, but for settings and names. All versions unless `names`
    /// are given. Returns their number. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::Damaged`] and others, and those of `put`.
    pub fn export(
        &self,
        names: &[String],
        has: &dyn Fn(&str) -> bool,
        put: Put<'_>,
    ) -> Result<u64, StoreError> {
        let all = match names.is_empty() {
            true => self.names()?,
            false => names.to_vec(),
        };
        let settings = self.get(SETTINGS, SETTINGS_BYTES_MAX)?;
        put(SETTINGS, &settings.unwrap_or_default())?;
        let mut done = HashSet::new();
        for name in &all {
            let id = self.reference(name)?;
            let id = id.ok_or_else(|| StoreError::Unknown(name.clone()))?;
            put(&reference_key(name), format!("{id}\n").as_bytes())?;
            let (head, bytes) = self.manifest_bytes(&id)?;
            for pack in &head.packs {
                let key = pack.pack();
                if !has(&key) && done.insert(*pack) {
                    put(&key, &self.whole_pack(pack)?)?;
                }
            }
            let key = id.manifest();
            if !has(&key) && done.insert(id) {
                put(&key, &bytes)?;
            }
        }
        Ok(all.len().to_u64())
    }
}

/// True for a version of another domain, whose keys are elsewhere, and for one that was just
/// removed.
fn is_elsewhere(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Domain(_) | StoreError::NotEncrypted(_) | StoreError::Unknown(_)
    )
}
