//! Ranges of one blob of a registry, whatever is in it.
//!
//! Why here: an image of this project is read by its frames; a layer of a container image has none
//! of them, and its reader knows which ranges it needs.
//! Must stay true: bytes come from ranges that passed the checks of every reply; they are not
//! checked against the blob's digest, which needs all of them.
//! Called from: any thread; blocks.

use crate::fault::Fault;
use crate::origin::{Ask, Identity, Origin, Reply};
use crate::{Repository, patiently};
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A blob that is read by ranges.
pub struct RemoteBlob {
    repository: Repository,
    /// At each server of the registry.
    origins: Vec<Origin>,
    /// The server that answered last.
    current: AtomicUsize,
    identity: OnceLock<Identity>,
    fetched_bytes: AtomicU64,
}

impl RemoteBlob {
    /// The blob with a digest (without `sha256:`). Sends nothing yet.
    ///
    /// # Errors
    /// The digest is none.
    pub fn new(repository: &Repository, sha256: &str) -> Result<Self, Fault> {
        Ok(Self {
            origins: repository.origins(sha256)?,
            current: AtomicUsize::new(0),
            repository: repository.clone(),
            identity: OnceLock::new(),
            fetched_bytes: AtomicU64::new(0),
        })
    }

    /// Its size in bytes; the first call sends a request.
    ///
    /// # Errors
    /// The registry's or the network's.
    pub fn size_bytes(&self) -> io::Result<u64> {
        if let Some(identity) = self.identity.get() {
            return Ok(identity.size_bytes);
        }
        let retry = self.repository.retry();
        let reply = patiently(retry, 4, || self.ask(&Ask::Head(1)))?;
        Ok(self.identity.get_or_init(|| reply.identity).size_bytes)
    }

    /// The bytes of a range that is not empty.
    ///
    /// # Errors
    /// The registry's or the network's, after the retries that are allowed.
    pub fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let seed = range.start;
        let ask = Ask::Range(range);
        let retry = self.repository.retry();
        let reply = patiently(retry, seed, || self.ask(&ask))?;
        let bytes = u64::try_from(reply.bytes.len()).unwrap_or_default();
        self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(reply.bytes)
    }

    /// Asks the server that answered last, and after a fault each other one.
    fn ask(&self, ask: &Ask) -> Result<Reply, Fault> {
        // Relaxed: a hint.
        let first = self.current.load(Ordering::Relaxed);
        let mut last = Fault::Final("the registry has no server".into());
        for step in 0..self.origins.len() {
            let number = (first + step) % self.origins.len();
            // Caches on the way may change the validator: the size stays.
            match self.origins[number].get(ask, None, &mut |_| ()) {
                Ok(reply) => {
                    self.current.store(number, Ordering::Relaxed);
                    return Ok(reply);
                }
                // A fault that may pass is worth another attempt.
                Err(fault) if matches!(last, Fault::Passing(_)) => {
                    tracing::debug!("{fault}");
                }
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    /// Bytes that were fetched since it was opened.
    #[must_use]
    pub fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes.load(Ordering::Relaxed)
    }
}
