//! The FUSE file as programs read it. Needs root and /dev/fuse.

use super::*;
use sidecore_format::source::{Deliver, Extent, ReadError, check_range};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Frames of 64 KiB delivered one by one; one of them is damaged, one is zeros.
struct Framed {
    bytes: Vec<u8>,
    delivered: AtomicUsize,
    read_with_max_bytes: usize,
}

const FRAME: usize = 64 << 10;
const DAMAGED: usize = 5;
const ZERO: usize = 8;
const SIZE: usize = 40 * FRAME + 777;

impl Framed {
    fn new(read_with_max_bytes: usize) -> Self {
        let mut bytes: Vec<u8> = (0..SIZE).map(|at| (at * 7 + at / 251 + 1) as u8).collect();
        bytes[ZERO * FRAME..][..FRAME].fill(0);
        Self {
            bytes,
            delivered: AtomicUsize::new(0),
            read_with_max_bytes,
        }
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), ReadError> {
        check_range(offset, len, SIZE as u64)?;
        let (first, last) = (offset as usize / FRAME, (offset as usize + len - 1) / FRAME);
        if (first..=last).contains(&DAMAGED) {
            let reason = "made so".into();
            return Err(ReadError::BadFrame {
                frame: DAMAGED as u64,
                reason,
            });
        }
        Ok(())
    }
}

impl BlockSource for Framed {
    fn size_bytes(&self) -> u64 {
        SIZE as u64
    }

    fn preferred_bytes(&self) -> u32 {
        FRAME as u32
    }

    fn read_with_max_bytes(&self) -> usize {
        self.read_with_max_bytes
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        self.check(offset, dst.len())?;
        dst.copy_from_slice(&self.bytes[offset as usize..][..dst.len()]);
        Ok(())
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        assert!(
            len <= self.read_with_max_bytes,
            "more was asked for than is taken"
        );
        self.delivered.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.check(offset, len) {
            return deliver(Err(&error));
        }
        let mut rest = &self.bytes[offset as usize..][..len];
        let mut pieces = Vec::new();
        let mut take = FRAME - offset as usize % FRAME;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(take.min(rest.len()));
            pieces.push(piece);
            rest = after;
            take = FRAME;
        }
        deliver(Ok(&pieces));
    }

    fn extent(&self, offset: u64) -> Extent {
        let left = (SIZE as u64).saturating_sub(offset);
        let in_frame = FRAME as u64 - offset % FRAME as u64;
        Extent {
            len: left.min(in_frame),
            zero: offset as usize / FRAME == ZERO,
        }
    }
}

fn serve(source: &Arc<Framed>, pad_to_bytes: u64) -> (File, JoinHandle<io::Result<()>>) {
    let options = FuseOptions {
        pad_to_bytes,
        queued: false,
        ..FuseOptions::default()
    };
    let source = Arc::clone(source) as Arc<dyn BlockSource>;
    let server = FuseServer::start(source, &options, MountPoint::Hidden, || ()).unwrap();
    let file = server.open_image().unwrap();
    (file, server.release())
}

#[test]
fn reads_of_any_place_and_length_give_the_bytes_or_the_error() {
    for read_with_max_bytes in [FRAME, 1 << 20] {
        let source = Arc::new(Framed::new(read_with_max_bytes));
        let (file, thread) = serve(&source, 1);
        read_anywhere(&source, &file);
        drop(file);
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn queues_give_the_bytes_or_the_error_where_the_kernel_has_them() {
    // Queues are offered only to a server that asks for them, as this test does.
    let offer = Offer::make();
    let source = Arc::new(Framed::new(1 << 20));
    let shared = Arc::clone(&source) as Arc<dyn BlockSource>;
    let options = FuseOptions::default();
    let server = FuseServer::start(shared, &options, MountPoint::Hidden, || ()).unwrap();
    let rings = sidecore_sys::fuse_ring::FuseQueue::new(2, 8192).is_ok();
    assert_eq!(server.is_queued(), offer.made && rings);
    let file = server.open_image().unwrap();
    let thread = server.release();
    read_anywhere(&source, &file);
    // Several at once, each of which finds another's queue busy.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| read_anywhere(&source, &file));
        }
    });
    drop(file);
    thread.join().unwrap().unwrap();
}

/// The kernel's offer of queues, taken back in the end.
struct Offer {
    before: String,
    made: bool,
}

impl Offer {
    const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

    fn make() -> Self {
        Self {
            before: std::fs::read_to_string(Self::PARAMETER).unwrap_or_default(),
            made: std::fs::write(Self::PARAMETER, "Y").is_ok(),
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if self.made {
            let _ = std::fs::write(Self::PARAMETER, self.before.trim());
        }
    }
}

/// Reads at random places, across the damaged frame too.
fn read_anywhere(source: &Framed, file: &File) {
    let seed = u64::from(std::process::id());
    let mut state = seed | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % below
    };
    let mut bytes = vec![0; 2 << 20];
    for round in 0..300 {
        let at = random(SIZE);
        let len = 1 + random(if round % 3 == 0 { 2 << 20 } else { 9000 });
        let len = len.min(SIZE - at);
        let part = &mut bytes[..len];
        let result = file.read_exact_at(part, at as u64);
        // Read-ahead asks for the damaged frame together with its neighbours; the neighbours'
        // readers must not suffer from its failure.
        let touches = at < (DAMAGED + 1) * FRAME && at + len > DAMAGED * FRAME;
        if touches {
            let error = result.expect_err("a damaged frame was read");
            assert_eq!(
                error.raw_os_error(),
                Some(libc::EIO),
                "seed {seed}, {len} at {at}"
            );
        } else {
            result.unwrap_or_else(|error| panic!("seed {seed}, {len} at {at}: {error}"));
            assert!(
                *part == source.bytes[at..at + len],
                "seed {seed}, {len} at {at}"
            );
        }
    }
    assert!(
        source.delivered.load(Ordering::Relaxed) > 0,
        "no read came by pieces"
    );
}

#[test]
fn padding_is_zeros_and_holes_are_found() {
    let source = Arc::new(Framed::new(1 << 20));
    let (file, thread) = serve(&source, 4096);
    let padded = SIZE.next_multiple_of(4096);
    assert_eq!(file.metadata().unwrap().len(), padded as u64);
    let mut tail = vec![1; padded - (SIZE - 1000)];
    file.read_exact_at(&mut tail, SIZE as u64 - 1000).unwrap();
    assert!(tail[..1000] == source.bytes[SIZE - 1000..]);
    assert!(tail[1000..].iter().all(|&byte| byte == 0));
    let seek = |from| rustix::fs::seek(&file, from).map_err(io::Error::from);
    let (hole, end) = ((ZERO * FRAME) as u64, padded as u64);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)).unwrap(), hole);
    assert_eq!(
        seek(rustix::fs::SeekFrom::Data(hole)).unwrap(),
        hole + FRAME as u64
    );
    assert_eq!(seek(rustix::fs::SeekFrom::Data(17)).unwrap(), 17);
    let after = seek(rustix::fs::SeekFrom::Hole(hole + FRAME as u64)).unwrap();
    assert!(after == end || after == SIZE as u64, "{after}");
    let beyond = seek(rustix::fs::SeekFrom::Data(end)).expect_err("there is nothing");
    assert_eq!(beyond.raw_os_error(), Some(libc::ENXIO));
    drop(file);
    thread.join().unwrap().unwrap();
}

#[test]
fn an_abort_ends_the_session_and_its_users_get_errors() {
    let source = Arc::new(Framed::new(1 << 20));
    let options = FuseOptions::default();
    let (sender, ended) = std::sync::mpsc::channel();
    let server = FuseServer::start(source, &options, MountPoint::Hidden, move || {
        sender.send(()).unwrap();
    })
    .unwrap();
    let file = server.open_image().unwrap();
    place::abort(server.device().minor).unwrap();
    ended
        .recv_timeout(std::time::Duration::from_secs(30))
        .unwrap();
    assert!(file.read_exact_at(&mut [0; 100], 0).is_err());
}

#[test]
fn a_senseless_number_of_threads_is_refused() {
    for threads in [0, THREADS_MAX + 1] {
        let options = FuseOptions {
            threads,
            ..FuseOptions::default()
        };
        let source = Arc::new(Framed::new(1 << 20));
        let error = FuseServer::start(source, &options, MountPoint::Hidden, || ()).unwrap_err();
        assert!(error.to_string().contains(&threads.to_string()));
    }
}
