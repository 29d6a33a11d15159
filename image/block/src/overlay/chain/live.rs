//! A snapshot of a running overlay: a new layer on top, while reads and writes go on; and another
//! size of its device.
//!
//! The new file is made and opened first. The pause is an exchange of the list of layers, which
//! waits for the writes under way. The old top layer, which takes no more writes, is made durable
//! and frozen after that.
//!
//! Must stay true: no flush is answered between the exchange and the freezing. So after a crash
//! either the new file stands on a frozen one, or nothing that was promised is in it, and the old
//! file is whole as it was at its last flush.
//! Called from: any thread; blocks on the disk.

use super::super::OverlayError;
use super::super::format::Superblock;
use super::super::layer::Layer;
use super::{LAYERS_MAX, Layers, Overlay};
use parking_lot::RwLockWriteGuard;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// True if a device of `size_bytes` is to become larger; an error if smaller.
pub(in super::super) fn larger(size_bytes: u64, wanted: u64) -> Result<bool, OverlayError> {
    match wanted < size_bytes {
        true => Err(OverlayError::Smaller { wanted, size_bytes }),
        false => Ok(wanted > size_bytes),
    }
}

/// Makes and opens a layer: the path of the one below, its own, and the superblock of the one
/// below.
type Put = dyn Fn(&Path, &Path, &Superblock) -> Result<Layer, OverlayError> + Send;

/// The top layer's file, and the maker of one above it.
pub(in super::super) struct Origin {
    path: PathBuf,
    put: Box<Put>,
}

impl Overlay {
    /// The same overlay, which knows its file and puts layers above it by `put`.
    pub(in super::super) fn lying_at(self, path: &Path, put: Box<Put>) -> Self {
        // A server leaves its directory, and is asked for a layer next to this one afterwards.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        *self.origin.lock() = Some(Origin { path, put });
        self
    }

    /// Puts a new layer at `new` on top; the one below stays as it is now, for ever. Returns the
    /// time for which writes had to wait.
    ///
    /// # Errors
    /// [`OverlayError`]. Where making the old layer durable fails, the new one is on top all the
    /// same, and flushes fail until the old one is durable.
    pub fn take_snapshot(&self, new: &Path) -> Result<Duration, OverlayError> {
        let mut origin = self.origin.lock();
        let Some(here) = origin.as_mut().filter(|_| self.writable) else {
            return Err(OverlayError::NotWritable);
        };
        let top = Arc::clone(&self.list()[0]);
        if self.list().len() == LAYERS_MAX {
            return Err(OverlayError::TooManyLayers.of(&here.path));
        }
        // Now, so that little is left for after the exchange.
        self.freeze()?;
        top.flush()?;
        let below = top.superblock();
        let layer = Arc::new((here.put)(&here.path, new, &below)?);
        let began = Instant::now();
        self.put_on_top(self.layers.write(), layer);
        let pause = began.elapsed();
        new.clone_into(&mut here.path);
        self.freeze()?;
        Ok(pause)
    }

    /// Makes the device larger while it is read and written; zeros lie behind the former end. The
    /// size is durable then. Returns the former size.
    ///
    /// # Errors
    /// [`OverlayError::Smaller`], [`OverlayError::TooLarge`], [`OverlayError::NotWritable`]; on a
    /// full disk nothing has changed.
    pub fn grow(&self, size_bytes: u64) -> Result<u64, OverlayError> {
        // No other layer comes on top meanwhile.
        let _origin = self.origin.lock();
        if !self.writable {
            return Err(OverlayError::NotWritable);
        }
        let former = self.size();
        if larger(former, size_bytes)? {
            // A layer is opened again only above a frozen one: a snapshot's last step may have
            // failed.
            self.freeze()?;
            // The file first: a size that clients have seen must be there after a crash.
            Arc::clone(&self.list()[0]).grow(size_bytes)?;
            self.base.grow(size_bytes);
            // Release pairs with Acquire in `size`.
            self.size_bytes.store(size_bytes, Ordering::Release);
        }
        Ok(former)
    }

    /// Exchanges the list, which the caller has locked. The former top layer is to be frozen.
    fn put_on_top(&self, mut layers: RwLockWriteGuard<'_, Layers>, layer: Arc<Layer>) {
        *self.unfrozen.lock() = Some(Arc::clone(&layers[0]));
        let list: Layers = [&[layer], &layers[..]].concat().into();
        *layers = list;
    }

    /// As [`Self::take_snapshot`], at a free name next to the overlay unless a path is given;
    /// returns the new layer's path, too.
    ///
    /// # Errors
    /// As [`Self::take_snapshot`]; [`OverlayError::NoName`].
    pub fn snapshot(&self, new: Option<&Path>) -> Result<(PathBuf, Duration), OverlayError> {
        let path = match new {
            Some(path) => path.to_owned(),
            None => self.next_path().ok_or(OverlayError::NoName)?,
        };
        let pause = self.take_snapshot(&path)?;
        Ok((path, pause))
    }

    /// A name for the next layer that no file has: that of the first one and a number.
    fn next_path(&self) -> Option<PathBuf> {
        let origin = self.origin.lock();
        let here = &origin.as_ref()?.path;
        let is_number = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
        let numbered = here
            .extension()
            .and_then(|it| it.to_str())
            .filter(|it| is_number(it));
        let stem = match numbered {
            Some(_) => here.with_extension(""),
            None => here.clone(),
        };
        let named = (1..=LAYERS_MAX * 16).map(|number| {
            let mut name = stem.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        });
        let mut free = named.filter(|path| path.symlink_metadata().is_err());
        free.next()
    }

    /// Makes all writes durable that were made before the call; returns the top layer of that
    /// moment. Another one may come on top meanwhile, and the list is not held: a new top layer
    /// need not wait for the disk.
    pub(super) fn flush_layers(&self) -> Result<Arc<Layer>, OverlayError> {
        // The top layer first. One that is exchanged before has left the former to `freeze`; one
        // that is exchanged behind it is flushed here. The other way round, an exchange between the
        // two steps would leave the writes to the former layer to neither.
        let top = Arc::clone(&self.list()[0]);
        self.freeze()?;
        top.flush()?;
        Ok(top)
    }

    /// Makes the former top layer durable and frozen, where that is not done yet.
    pub(super) fn freeze(&self) -> Result<(), OverlayError> {
        // Held meanwhile: another flush must wait for it, too.
        let mut unfrozen = self.unfrozen.lock();
        if let Some(layer) = &*unfrozen {
            layer.freeze()?;
            *unfrozen = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::identity::Identity;
    use super::super::super::tools::{create, open};
    use super::*;
    use crate::source::{BlockWrites, MemorySource};

    /// The flush begins before the exchange of the list and ends behind it.
    #[test]
    fn a_flush_during_a_snapshot_includes_the_former_layer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one");
        let identity = Identity {
            size_bytes: 1 << 16,
            hash: [1; 32],
            key: None,
        };
        create(&path, &identity, 4096, "base").unwrap();
        let base = Arc::new(MemorySource::new(vec![0; 1 << 16]));
        let over = open(&path, base, &identity, true).unwrap();
        let top = Arc::clone(&over.list()[0]);
        let above = {
            let origin = over.origin.lock();
            let put = &origin.as_ref().unwrap().put;
            Arc::new(put(&path, &folder.path().join("two"), &top.superblock()).unwrap())
        };
        over.write(0, &[5; 4096]).unwrap();
        assert_eq!(top.used().dirty_bytes, 4096);
        let layers = over.layers.write();
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| over.flush());
            // It has time to come as far as it can: to the list. It passes without that time, too.
            std::thread::sleep(Duration::from_millis(100));
            over.put_on_top(layers, above);
            flush.join().unwrap().unwrap();
        });
        assert_eq!(top.used().dirty_bytes, 0);
    }
}
