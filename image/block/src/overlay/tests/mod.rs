//! Layers on a disk that loses unsynced writes, compared with a model; chains; damage.

#![allow(clippy::unwrap_used)] // Helpers fail the test.

mod chains;
mod crashes;
mod damage;
mod disk;
mod files;
mod sealed;

use super::format::{Parent, SLOTS_AT, Superblock};
use super::layer::{Layer, write_superblocks};
use super::seal::{LayerLock, Seal};
use super::{Overlay, OverlayError};
use crate::format::lock::{Cipher, FrameKey, ImageKey};
use crate::source::MemorySource;
use disk::Disk;
use std::sync::Arc;

const GRAIN: usize = 4096;

/// A superblock of a new overlay of `size_bytes`.
fn superblock(size_bytes: u64, grain_bytes: u32) -> Superblock {
    Superblock {
        grain_bytes,
        id: [7; 16],
        salt: 99,
        generation: 1,
        size_bytes,
        frozen: false,
        half: 0,
        sequence: 1,
        slots: 0,
        snapshot: None,
        parent: Parent::Base,
        base: [3; 32],
        base_name: "base".to_owned(),
        lock: None,
    }
}

/// Key of the image below those overlays that are sealed.
fn key() -> Arc<FrameKey> {
    FrameKey::of_secret(Cipher::fastest(), &ImageKey::new([5; 32]))
}

/// A new layer's disk, on an encrypted image.
fn fresh_sealed(size_bytes: u64, grain_bytes: u32, cipher: Cipher) -> Disk {
    let disk = Disk::default();
    let lock = LayerLock {
        cipher,
        salt: [8; 32],
        code: [0; 32],
    };
    let superblock = Superblock {
        lock: Some(lock),
        ..superblock(size_bytes, grain_bytes)
    };
    write_superblocks(&disk, &superblock, &Seal::of(&lock, &key())).unwrap();
    super::store::Store::sync(&disk).unwrap();
    disk
}

/// A new layer's disk.
fn fresh(size_bytes: u64, grain_bytes: u32) -> Disk {
    let disk = Disk::default();
    write_superblocks(&disk, &superblock(size_bytes, grain_bytes), &Seal::Open).unwrap();
    super::store::Store::sync(&disk).unwrap();
    disk
}

fn layer(disk: &Disk, writable: bool, map_bytes: usize) -> Result<Layer, OverlayError> {
    let is_sealed = super::load::superblock(disk).is_ok_and(|it| it.0.lock.is_some());
    let key = is_sealed.then(key);
    Layer::open(Box::new(disk.clone()), key.as_deref(), writable, map_bytes)
}

/// One layer on `base`.
fn overlay(disk: &Disk, base: Vec<u8>) -> Overlay {
    let layers = vec![layer(disk, true, 1 << 20).unwrap()];
    Overlay::new(Arc::new(MemorySource::new(base)), layers, true)
}

fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let words = std::iter::repeat_with(|| sidecore_random::split_mix(&mut seed).to_le_bytes());
    words.take(len.div_ceil(8)).flatten().take(len).collect()
}

fn slot_at(slot: usize) -> usize {
    SLOTS_AT as usize + slot * GRAIN
}
