//! A store of versions in a bucket that is written to, and the lock among its writers.
//!
//! Why here: a folder has locks and renames of the system; a bucket has single requests, some with
//! a condition. This module makes the operations of a store's backend of them.
//!
//! The lock is an object. It is taken, renewed and freed by writes that require the entity tag
//! which was read before, so that of two takers one is refused. A taker that finds it held waits
//! until it is free. After a whole term with the same tag, by its own clock, it takes the holder
//! for dead and takes the lock over. A holder renews the lock before a request once a quarter of a
//! term is over, and sends nothing more once half a term is over. No clock of another machine is
//! read.
//!
//! Must stay true: a name, a lease and the list of what may go are written only if their entity tag
//! is the one that was read under the same lock. So a request that was held up for longer than a
//! term changes none of them. A removal has no condition, which some servers
//! do not know for it: the store marks what it removes first. A server without conditional writes
//! is refused before anything is written. Listed keys are used only if they are plain names.
//! Called from: any thread; blocks.
//! Source: C. Gray, D. Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed
//! file cache consistency", SOSP 1989.

use crate::fault::Fault;
use crate::origin::bucket::{Bucket, Condition, Written};
use crate::{Location, Retry, patiently};
use bytes::Bytes;
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use sidecore_block::trust::digits_of;
use sidecore_random::Random;
use sidecore_store::{Backend, Lock};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The objects of a store below a key of a bucket.
pub struct BucketBackend(Arc<Objects>);

struct Objects {
    base: Location,
    /// Begin of all keys, with a slash at the end.
    prefix: String,
    bucket: Arc<Bucket>,
    retry: Retry,
    /// Time for which a lock that is not renewed is watched before it is taken over.
    patience: Duration,
    /// Name of this holder of the lock.
    holder: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Option<Tenure>,
    /// Entity tag of the lock as this process has freed it.
    freed: Option<String>,
    /// Number of the last claim, so that no two are equal.
    claims: u64,
    /// True once the server was seen to keep conditions.
    is_proven: bool,
}

/// The time for which the lock is held.
struct Tenure {
    /// Number of the claim by which the lock was taken.
    number: u64,
    tag: String,
    /// Before the request that renewed it, by two clocks.
    renewed: (Instant, SystemTime),
    /// Entity tags of objects that change, as they were seen or written; `None` for one that is
    /// not there.
    seen: HashMap<String, Option<String>>,
}

/// The lock's contents.
#[derive(Serialize, Deserialize)]
struct Claim {
    holder: String,
    number: u64,
    is_free: bool,
}

impl BucketBackend {
    /// The objects below `s3://BUCKET/KEY`. Sends nothing yet.
    ///
    /// # Errors
    /// Another kind of location; a key with `.` or `..`; settings or credentials that cannot be
    /// used.
    pub fn new(base: &Location, retry: Retry) -> io::Result<Self> {
        let Location::S3 { bucket, key } = base else {
            return Err(io::Error::other(
                "a store that is written to is in a bucket",
            ));
        };
        // A URL has no such parts, and a list takes them as they are: it would be that of another
        // place.
        let is_odd = |part: &str| matches!(part, "." | "..") || part.contains(char::is_control);
        if bucket.split('/').chain(key.split('/')).any(is_odd) {
            return Err(io::Error::other(
                "a part of its key is `.` or `..`, or has a control character",
            ));
        }
        let bucket = Arc::new(Bucket::new(bucket, &retry)?);
        Ok(Self(Arc::new(Objects {
            base: base.clone(),
            prefix: format!("{}/", key.trim_end_matches('/')),
            bucket,
            retry,
            patience: TERM,
            holder: drawn()?,
            state: Mutex::default(),
        })))
    }

    /// Another user of the same objects, as if in another process. It takes over the lock of one
    /// that has died after this time; for tests.
    ///
    /// # Errors
    /// The system has no random bytes.
    #[doc(hidden)]
    pub fn another(&self, patience: Duration) -> io::Result<Self> {
        Ok(Self(Arc::new(Objects {
            base: self.0.base.clone(),
            prefix: self.0.prefix.clone(),
            bucket: Arc::clone(&self.0.bucket),
            retry: self.0.retry,
            patience,
            holder: drawn()?,
            state: Mutex::default(),
        })))
    }
}

impl Objects {
    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Makes a request as often as is sensible, and none in the name of a lock that may be
    /// another's by now.
    fn ask<T>(&self, make: impl Fn() -> Result<T, Fault>) -> io::Result<T> {
        let answer = patiently(&self.retry, 6, || {
            self.keep_lock()?;
            make()
        });
        Ok(answer?)
    }

    /// Renews the lock, if it is held and a part of its term is over.
    fn keep_lock(&self) -> Result<(), Fault> {
        let mut state = self.state.lock();
        let Some(age) = state.held.as_ref().map(Tenure::age) else {
            return Ok(());
        };
        if age < TERM / 4 {
            return Ok(());
        }
        if age >= TERM / 2 {
            let text = "the lock of the store was held for too long without an answer of the \
                        server; run the command again";
            return Err(Fault::Final(text.into()));
        }
        let claim = self.claim(&mut state, false)?;
        let Some(tenure) = state.held.as_mut() else {
            return Ok(());
        };
        let now = (Instant::now(), SystemTime::now());
        let condition = Condition::Tag(tenure.tag.clone());
        match self.bucket.put(&self.key(LOCK), &claim, &condition)? {
            Written::Done(Some(tag)) => {
                tenure.tag = tag;
                tenure.renewed = now;
                Ok(())
            }
            Written::Done(None) => Err(Fault::Final(NO_TAGS.into())),
            Written::Refused | Written::NoConditions => {
                // An earlier attempt may have been the one, and its answer was lost. Its time
                // counts, so that `renewed` stays.
                let found = self.bucket.get(&self.key(LOCK), LOCK_BYTES_MAX)?;
                let found = found.filter(|it| self.is_own(&it.bytes));
                let Some(tag) = found.and_then(|it| it.tag) else {
                    return Err(Fault::Final(LOST.into()));
                };
                tenure.tag = tag;
                Err(Fault::Passing("the lock is renewed once more".into()))
            }
        }
    }

    /// True for a claim of this holder.
    fn is_own(&self, claim: &[u8]) -> bool {
        let claim: Option<Claim> = serde_json::from_slice(claim).ok();
        claim.is_some_and(|claim| claim.holder == self.holder && !claim.is_free)
    }

    /// Contents of the lock that it never had before.
    fn claim(&self, state: &mut State, is_free: bool) -> Result<Bytes, Fault> {
        state.claims += 1;
        let claim = Claim {
            holder: self.holder.clone(),
            number: state.claims,
            is_free,
        };
        let text = serde_json::to_vec(&claim).map_err(|error| Fault::Final(error.to_string()))?;
        Ok(text.into())
    }

    /// Writes an object under a condition, as often as is sensible; if it `keeps` the lock, only
    /// while that is held. Returns its entity tag; `None` where the condition does not hold.
    fn write(
        &self,
        key: &str,
        bytes: &Bytes,
        condition: &Condition,
        keeps: bool,
    ) -> io::Result<Option<String>> {
        let key = self.key(key);
        let put = || {
            if keeps {
                self.keep_lock()?;
            }
            self.bucket.put(&key, bytes, condition)
        };
        match patiently(&self.retry, 7, put)? {
            Written::Done(Some(tag)) => Ok(Some(tag)),
            Written::Done(None) => Err(io::Error::other(NO_TAGS)),
            Written::NoConditions => Err(self.no_conditions()),
            Written::Refused => {
                // An earlier attempt may have been the one, and its answer was lost.
                let get = || self.bucket.get(&key, CHANGING_BYTES_MAX);
                let found = patiently(&self.retry, 8, get)?;
                let found = found.filter(|it| it.bytes == *bytes);
                Ok(found.and_then(|it| it.tag))
            }
        }
    }

    /// Waits for the lock, and takes it. Returns the tenure's number.
    fn take(&self) -> io::Result<u64> {
        let begun = Instant::now();
        let mut watched = None;
        let mut pause = PAUSE_FIRST;
        let mut random = Random::new(u64::from(std::process::id()));
        loop {
            // The lock that this process has freed is free, as a rule.
            let freed = self.state.lock().freed.take();
            let condition = match freed {
                Some(tag) => Some(Condition::Tag(tag)),
                None => self.look(&mut watched)?,
            };
            if let Some(condition) = condition
                && let Some(number) = self.seize(&condition)?
            {
                return Ok(number);
            }
            if begun.elapsed() > WAIT_MAX {
                let text = "another process holds the lock of the store";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            // Not in step with others that wait.
            std::thread::sleep(pause.mul_f64(0.5 + random.unit()));
            pause = PAUSE_MAX.min(2 * pause);
        }
    }

    /// The condition under which the lock can be taken now; `None` while another process holds it.
    /// `watched` is the tag that was seen last, and the time since which it was seen.
    fn look(&self, watched: &mut Option<(String, Instant)>) -> io::Result<Option<Condition>> {
        let key = self.key(LOCK);
        let get = || self.bucket.get(&key, LOCK_BYTES_MAX);
        let Some(found) = patiently(&self.retry, 9, get)? else {
            return Ok(Some(Condition::Absent));
        };
        let tag = found.tag.ok_or_else(|| io::Error::other(NO_TAGS))?;
        let claim: Option<Claim> = serde_json::from_slice(&found.bytes).ok();
        if claim.is_some_and(|claim| claim.is_free) {
            return Ok(Some(Condition::Tag(tag)));
        }
        match watched {
            Some((same, since)) if *same == tag => {
                let is_dead = since.elapsed() >= self.patience;
                Ok(is_dead.then(|| {
                    tracing::info!("the lock of a process that has died is taken over");
                    Condition::Tag(tag)
                }))
            }
            _ => {
                *watched = Some((tag, Instant::now()));
                Ok(None)
            }
        }
    }

    /// Takes the lock under a condition, and returns the tenure's number; `None` where it does not
    /// hold.
    fn seize(&self, condition: &Condition) -> io::Result<Option<u64>> {
        let renewed = (Instant::now(), SystemTime::now());
        let claim = self.claim(&mut self.state.lock(), false)?;
        let Some(tag) = self.write(LOCK, &claim, condition, false)? else {
            return Ok(None);
        };
        let number = {
            let mut state = self.state.lock();
            let number = state.claims;
            state.held = Some(Tenure {
                number,
                tag,
                renewed,
                seen: HashMap::new(),
            });
            number
        };
        let proven = self.prove();
        if proven.is_err() {
            self.free(number);
        }
        proven.map(|()| Some(number))
    }

    /// Makes sure, once, that the server keeps conditions: some ignore them, and two writers would
    /// each believe that they are alone. The lock is held.
    fn prove(&self) -> io::Result<()> {
        if self.state.lock().is_proven {
            return Ok(());
        }
        let key = self.key(LOCK);
        for condition in [Condition::Absent, Condition::Tag(NO_TAG.to_owned())] {
            let claim = self.claim(&mut self.state.lock(), false)?;
            // The lock is there, and has another tag: neither condition holds.
            let put = || self.bucket.put(&key, &claim, &condition);
            if patiently(&self.retry, 11, put)? != Written::Refused {
                return Err(self.no_conditions());
            }
        }
        self.state.lock().is_proven = true;
        Ok(())
    }

    /// Frees the lock, if it is still that of this tenure.
    fn free(&self, number: u64) {
        let mut state = self.state.lock();
        let Some(tenure) = state.held.take_if(|it| it.number == number) else {
            return;
        };
        let claim = self.claim(&mut state, true);
        drop(state);
        // Not removed, but written under a condition: another process may have taken it over.
        let condition = Condition::Tag(tenure.tag);
        let freed = claim.map_err(io::Error::from);
        match freed.and_then(|claim| self.write(LOCK, &claim, &condition, false)) {
            Ok(freed) => self.state.lock().freed = freed,
            Err(error) => tracing::info!("the lock stays until its term is over: {error}"),
        }
    }

    fn no_conditions(&self) -> io::Error {
        io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "the server of {} has no conditional writes (If-None-Match, If-Match), by which \
                 writers exclude one another; take a server that has them, or a folder",
                self.base
            ),
        )
    }

    /// Keeps the entity tag of an object that changes, as it was first seen under the lock. Another
    /// one later is the work of a process that has taken the lock over: it must not be overwritten.
    fn saw(&self, key: &str, tag: Option<String>) {
        if changes(key)
            && let Some(tenure) = self.state.lock().held.as_mut()
        {
            tenure.seen.entry(key.to_owned()).or_insert(tag);
        }
    }

    /// Keeps the entity tag of an object that was written or removed under the lock.
    fn wrote(&self, key: &str, tag: Option<String>) {
        if changes(key)
            && let Some(tenure) = self.state.lock().held.as_mut()
        {
            tenure.seen.insert(key.to_owned(), tag);
        }
    }

    /// The condition under which an object that changes may be written: as it is known under the
    /// lock. One that was not looked for is new.
    fn as_seen(&self, key: &str) -> Condition {
        let state = self.state.lock();
        let seen = state.held.as_ref().and_then(|it| it.seen.get(key));
        match seen.cloned().flatten() {
            Some(tag) => Condition::Tag(tag),
            None => Condition::Absent,
        }
    }
}

impl Tenure {
    /// Time since the lock was renewed: one clock alone counts while a machine sleeps.
    fn age(&self) -> Duration {
        let (instant, time) = self.renewed;
        instant.elapsed().max(time.elapsed().unwrap_or_default())
    }
}

impl Backend for BucketBackend {
    fn name(&self) -> String {
        self.0.base.to_string()
    }

    fn get(&self, key: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let full = self.0.key(key);
        let found = self.0.ask(|| self.0.bucket.get(&full, bytes_max))?;
        let tag = found.as_ref().map(|it| it.tag.clone());
        self.0.saw(key, tag.flatten());
        Ok(found.map(|it| it.bytes))
    }

    fn read(&self, key: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let full = self.0.key(key);
        self.0.ask(|| self.0.bucket.read(&full, range.clone()))
    }

    fn read_end(&self, key: &str, bytes_max: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
        let full = self.0.key(key);
        self.0.ask(|| self.0.bucket.end(&full, bytes_max))
    }

    fn size(&self, key: &str) -> io::Result<Option<u64>> {
        let full = self.0.key(key);
        let found = self.0.ask(|| self.0.bucket.look(&full))?;
        let tag = found.as_ref().map(|(_, tag)| tag.clone());
        self.0.saw(key, tag.flatten());
        Ok(found.map(|(size_bytes, _)| size_bytes))
    }

    fn put(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let bytes = Bytes::copy_from_slice(bytes);
        if !changes(key) {
            // Its name is the hash of its bytes: each writer of it writes the same.
            let full = self.0.key(key);
            let put = || self.0.bucket.put(&full, &bytes, &Condition::Any);
            return self.0.ask(put).map(|_| ());
        }
        let condition = self.0.as_seen(key);
        let Some(tag) = self.0.write(key, &bytes, &condition, true)? else {
            return Err(io::Error::other(CHANGED));
        };
        self.0.wrote(key, Some(tag));
        Ok(())
    }

    fn remove(&self, key: &str) -> io::Result<()> {
        let full = self.0.key(key);
        self.0.ask(|| self.0.bucket.delete(&full))?;
        self.0.wrote(key, None);
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{}/", self.0.key(folder));
        let mut names = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let list = || self.0.bucket.list(&prefix, token.as_deref());
            let page = self.0.ask(list)?;
            // What is no plain name in this folder is not ours, or leads out of it.
            let found = page.keys.iter().filter_map(|key| key.strip_prefix(&prefix));
            names.extend(found.filter(|name| is_plain(name)).map(str::to_owned));
            match page.next {
                // Else the same page would come for ever.
                Some(next) if token.as_ref() != Some(&next) => token = Some(next),
                Some(_) => return Err(io::Error::other("a list of objects goes in a circle")),
                None => {
                    names.sort_unstable();
                    names.dedup();
                    return Ok(names);
                }
            }
        }
        let text = format!("a list of objects has more than {PAGES_MAX} pages");
        Err(io::Error::other(text))
    }

    fn lock(&self) -> io::Result<Lock> {
        let number = self.0.take()?;
        let objects = Arc::clone(&self.0);
        Ok(Box::new(Held { objects, number }))
    }

    fn lock_may_end(&self) -> bool {
        true
    }

    fn requests_max(&self) -> usize {
        REQUESTS_MAX
    }
}

/// The lock, until this is dropped.
struct Held {
    objects: Arc<Objects>,
    number: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.objects.free(self.number);
    }
}

/// True for an object that is written more than once: the name of another one is its hash.
pub(super) fn changes(key: &str) -> bool {
    !["packs/", "manifests/"]
        .iter()
        .any(|it| key.starts_with(it))
}

/// True for what a store names an object: it becomes a part of a key and of a URL.
pub(super) fn is_plain(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+:@".contains(&byte);
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(is_inner)
}

/// Sixteen random bytes as digits.
fn drawn() -> io::Result<String> {
    let mut bytes = [0; 16];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system has no random bytes"))?;
    Ok(digits_of(&bytes))
}

const LOCK: &str = "lock";
const LOCK_BYTES_MAX: u64 = 4096;
/// The list of what may go is the largest object that changes.
const CHANGING_BYTES_MAX: u64 = 64 << 20;
const NAME_BYTES_MAX: usize = 128;
/// Pages of a thousand names: packs of some 30 TiB.
const PAGES_MAX: usize = 2000;
/// Longer than a request takes that is answered at all.
const TERM: Duration = Duration::from_secs(120);
/// Steps under the lock take seconds, and the lock of a dead process one term.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Enough to hide round trips; each is answered by a server of its own.
const REQUESTS_MAX: usize = 8;
/// Between two looks at a lock that is held, at first and at last.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// An entity tag that no object has: that of S3 has 32 digits.
const NO_TAG: &str = "\"00\"";
const NO_TAGS: &str = "the server gives no entity tags (ETag), by which writers exclude one \
                       another; take a server that gives them, or a folder";
const LOST: &str = "another process has taken over the lock of the store; run the command again";
const CHANGED: &str = "another process has changed it meanwhile; run the command again";
