//! A disk in memory.

use super::super::request::{self, kind};
use super::super::{Server, VhostUserError};
use super::{Guest, Running};
use parking_lot::Mutex;
use sidecore_format::source::{
    BlockSource, BlockWrites, Deliver, Extent, ReadError, WriteError, check_range,
};
use sidecore_sys::local_socket;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use vhost::VhostBackend as _;
use vhost::vhost_user::VhostUserFrontend as _;
use vhost::vhost_user::message::VhostUserConfigFlags;

/// Bytes that take writes, if they are to, and how often they were flushed.
pub(super) struct Disk(
    pub(super) Mutex<Vec<u8>>,
    pub(super) bool,
    pub(super) AtomicUsize,
);

impl Disk {
    pub(super) fn new(bytes: Vec<u8>, writable: bool) -> Arc<Self> {
        Arc::new(Self(Mutex::new(bytes), writable, AtomicUsize::new(0)))
    }
}

impl BlockSource for Disk {
    fn size_bytes(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn preferred_bytes(&self) -> u32 {
        4096
    }

    fn read_with_max_bytes(&self) -> usize {
        64 << 10
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.size_bytes())?;
        let from = offset as usize;
        dst.copy_from_slice(&self.0.lock()[from..from + dst.len()]);
        Ok(())
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        let mut bytes = vec![0; len];
        match self.read_into(offset, &mut bytes) {
            // In two pieces, as from two frames.
            Ok(()) => deliver(Ok(&[&bytes[..len / 3], &bytes[len / 3..]])),
            Err(error) => deliver(Err(&error)),
        }
    }

    fn extent(&self, offset: u64) -> Extent {
        Extent {
            len: self.size_bytes() - offset,
            zero: false,
        }
    }

    fn writes(&self) -> Option<&dyn BlockWrites> {
        self.1.then_some(self as _)
    }
}

impl BlockWrites for Disk {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let from = offset as usize;
        self.0.lock()[from..from + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), WriteError> {
        self.0.lock()[offset as usize..(offset + len) as usize].fill(0);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), WriteError> {
        self.write_zeroes(offset, len)
    }

    fn flush(&self) -> Result<(), WriteError> {
        self.2.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn grain_bytes(&self) -> u32 {
        4096
    }
}

/// The device's configuration as a driver reads it ("Device configuration layout").
#[test]
fn a_guest_sees_small_sectors_on_blocks_of_a_grain() {
    for writable in [false, true] {
        let disk = Disk::new(vec![0; 1 << 20], writable);
        let served = request::Disk::new(disk, 1, "", 512).unwrap();
        let config = served.config();
        assert_eq!(config[..8], 2048_u64.to_le_bytes());
        assert_eq!(config[20..24], 512_u32.to_le_bytes());
        // Eight sectors a block, aligned to the first; the least and the best length of a request.
        assert_eq!(config[24..26], [3, 0]);
        assert_eq!(config[26..28], 8_u16.to_le_bytes());
        assert_eq!(config[28..32], 8_u32.to_le_bytes());
        // Discards are aligned to a grain.
        let aligned = if writable { 8_u32 } else { 0 };
        assert_eq!(config[44..48], aligned.to_le_bytes());
        assert!(served.features() >> 10 & 1 == 1);
    }
}

/// Sectors of 4 KiB (4Kn): lengths in the configuration are in those, positions of requests stay in
/// units of 512 bytes.
#[test]
fn a_guest_on_sectors_of_a_page_reads_and_writes_whole_ones() {
    let disk = Disk::new(vec![0; 1 << 20], true);
    let served = request::Disk::new(disk, 1, "", 4096).unwrap();
    let config = served.config();
    assert_eq!(config[..8], 2048_u64.to_le_bytes());
    assert_eq!(config[20..24], 4096_u32.to_le_bytes());
    assert_eq!(config[24..26], [0, 0]);
    assert_eq!(config[26..28], 1_u16.to_le_bytes());
    assert_eq!(config[28..32], 1_u32.to_le_bytes());
    assert_eq!(config[44..48], 8_u32.to_le_bytes());
    let running = Running::with_sectors(true, 4096);
    let mut guest = Guest::new(&running);
    for (sector, bytes, expected) in [
        (0, 4096, 0),
        (8, 8192, 0),
        (1, 4096, 1),
        (8, 512, 1),
        (8, 4096 + 512, 1),
        (4, 512, 1),
    ] {
        let (status, _) = guest.request(0, kind::IN, sector, Err(bytes));
        assert_eq!(status, expected, "{bytes} bytes at {sector}");
        let data = vec![9; bytes];
        let (status, _) = guest.request(1, kind::OUT, sector, Ok(&data));
        assert_eq!(status, expected, "{bytes} bytes at {sector}");
    }
    let now = running.disk.0.lock();
    assert!(now[..3 * 4096].iter().all(|&byte| byte == 9) && now[3 * 4096] != 9);
}

#[test]
fn a_disk_that_ends_within_a_page_has_no_sectors_of_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let bind = |sector_bytes| {
        let disk = Disk::new(vec![0; 8192 + 512], false);
        Server::bind(disk, &folder.path().join("socket"), 1, "", sector_bytes).map(drop)
    };
    let refused = bind(4096).unwrap_err();
    assert!(
        matches!(refused, VhostUserError::Sectors { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("--size"));
    bind(512).unwrap();
}

/// The client hears of it by its channel, reads the size again, and reads there.
#[test]
fn a_guest_hears_of_a_larger_disk() {
    let running = Running::new(true);
    running.notifier.size_changed();
    let mut guest = Guest::new(&running);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    guest.frontend.set_backend_request_fd(&theirs).unwrap();
    // Answered behind that message.
    guest.frontend.get_features().unwrap();
    running.disk.0.lock().resize(2 << 20, 7);
    running.notifier.size_changed();
    let mut message = [0; 12];
    ours.read_exact(&mut message).unwrap();
    let words = message
        .as_chunks()
        .0
        .iter()
        .map(|word| u32::from_ne_bytes(*word));
    // A change of the configuration, version 1, no body.
    assert_eq!(words.collect::<Vec<u32>>(), [2, 1, 0]);
    let config = guest
        .frontend
        .get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]);
    assert_eq!(config.unwrap().1[..8], 4096_u64.to_le_bytes());
    let (status, came) = guest.request(0, kind::IN, 4095, Err(512));
    assert_eq!((status, came), (0, vec![7; 512]));
    // Its channel goes with it.
    drop(guest);
    drop(theirs);
    assert_eq!(ours.read(&mut message).unwrap(), 0);
    running.notifier.size_changed();
}

#[test]
fn a_socket_that_is_served_is_not_taken() {
    let running = Running::new(false);
    let source = Arc::clone(&running.disk) as Arc<dyn BlockSource>;
    let again = |path: &Path, queues| Server::bind(Arc::clone(&source), path, queues, "", 512);
    assert!(again(&running.socket(), 1).is_err());
    let other = running.folder.path().join("other");
    assert!(again(&other, 0).is_err() && again(&other, 33).is_err());
    // Left by a server that was killed.
    drop(UnixListener::bind(&other).unwrap());
    drop(again(&other, 1).unwrap());
    std::fs::remove_file(&other).unwrap();
    std::fs::write(&other, "a file").unwrap();
    assert!(again(&other, 1).is_err() && other.exists());
}

/// A message that comes in single bytes is a message; one with more descriptors than any of the
/// protocol ends its connection alone, and so does one that is longer than any.
#[test]
fn a_client_that_splits_messages_is_served_and_one_that_floods_is_not() {
    let running = Running::new(false);
    // GET_FEATURES, version 1, no body; answered with 64 bits.
    let ask = |client: &mut UnixStream| {
        let words = [1_u32, 1, 0].map(u32::to_ne_bytes);
        for byte in words.as_flattened() {
            client.write_all(&[*byte]).unwrap();
        }
        let mut answer = [0; 20];
        client.read_exact(&mut answer).unwrap();
        // The same request, version 1 and a reply, 8 bytes.
        let heads = [1_u32, 5, 8].map(u32::to_ne_bytes);
        assert_eq!(&answer[..12], heads.as_flattened());
    };
    let connect = || {
        let client = UnixStream::connect(running.socket()).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        client
    };
    let mut client = connect();
    ask(&mut client);
    ask(&mut client);
    drop(client);
    let mut client = connect();
    let file = local_socket::poker().unwrap();
    for _ in 0..12 {
        // It may have been refused before all was sent.
        let _ = local_socket::send(client.as_fd(), &[1], &[file.as_fd(); 4]);
    }
    assert!(!matches!(client.read(&mut [0]), Ok(1..)));
    let mut client = connect();
    let words = [1_u32, 1, 0x1001].map(u32::to_ne_bytes);
    client.write_all(words.as_flattened()).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    ask(&mut connect());
}
