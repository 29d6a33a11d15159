//! A disk that loses writes: unsynced bytes may be there after a crash, or not, sector by sector.

use crate::overlay::store::Store;
use parking_lot::Mutex;
use sidecore_random::split_mix;
use std::io;
use std::sync::Arc;

/// The disk; clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Disk(Arc<Mutex<Contents>>);

#[derive(Default)]
struct Contents {
    /// Sees every write.
    now: Vec<u8>,
    /// The bytes that are certainly there after a crash.
    durable: Vec<u8>,
    /// Sectors that were written since the last sync.
    unsynced: std::collections::BTreeSet<usize>,
    /// The disk is full at this size.
    bytes_max: Option<usize>,
    syncs: u64,
    /// From this number of syncs on all fail.
    syncs_max: Option<u64>,
}

impl Disk {
    /// A crash: of the sectors that were not synced each is kept or not.
    pub(super) fn crash(&self, seed: &mut u64, kept_of_256: u64) {
        let mut disk = self.0.lock();
        let Contents {
            now,
            durable,
            unsynced,
            ..
        } = &mut *disk;
        // Its size is kept or not, too.
        if split_mix(seed) % 256 < kept_of_256 {
            durable.resize(now.len().max(durable.len()), 0);
        }
        for sector in std::mem::take(unsynced) {
            if split_mix(seed) % 256 < kept_of_256 {
                let range = sector * SECTOR..((sector + 1) * SECTOR).min(now.len());
                durable.resize(durable.len().max(range.end), 0);
                durable[range.clone()].copy_from_slice(&now[range]);
            }
        }
        *now = durable.clone();
    }

    pub(super) fn limit(&self, bytes_max: Option<usize>) {
        self.0.lock().bytes_max = bytes_max;
    }

    /// Has syncs fail behind the next `syncs` ones.
    pub(super) fn fail_after(&self, syncs: Option<u64>) {
        let mut disk = self.0.lock();
        disk.syncs_max = syncs.map(|syncs| disk.syncs + syncs);
    }

    pub(super) fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().now.clone()
    }

    /// Changes bytes as rot does.
    pub(super) fn damage(&self, offset: usize, len: usize) {
        let mut disk = self.0.lock();
        for byte in &mut disk.now[offset..offset + len] {
            *byte ^= 0x55;
        }
        disk.durable = disk.now.clone();
    }
}

impl Store for Disk {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.0.lock().now.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let disk = self.0.lock();
        let range = offset as usize..offset as usize + buf.len();
        let bytes = disk.now.get(range).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.0.lock();
        let end = offset as usize + bytes.len();
        if disk
            .bytes_max
            .is_some_and(|max| end > max.max(disk.now.len()))
        {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if disk.now.len() < end {
            disk.now.resize(end, 0);
        }
        disk.now[offset as usize..end].copy_from_slice(bytes);
        let sectors = offset as usize / SECTOR..end.div_ceil(SECTOR);
        disk.unsynced.extend(sectors);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.0.lock();
        if disk.syncs_max.is_some_and(|max| disk.syncs >= max) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        disk.syncs += 1;
        let Contents {
            now,
            durable,
            unsynced,
            ..
        } = &mut *disk;
        durable.resize(now.len(), 0);
        for sector in std::mem::take(unsynced) {
            let range = sector * SECTOR..((sector + 1) * SECTOR).min(now.len());
            durable[range.clone()].copy_from_slice(&now[range]);
        }
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let size = self.size_bytes()?;
        match size < offset + len {
            true => self.write_at(&[0], offset + len - 1),
            false => Ok(()),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let size = self.size_bytes()?;
        let len = size.saturating_sub(offset).min(len);
        self.write_at(&vec![0; len as usize], offset)
    }
}

const SECTOR: usize = 512;
