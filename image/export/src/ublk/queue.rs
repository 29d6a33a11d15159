//! One queue of a ublk device: a thread that answers the requests of the CPUs that map to it, one
//! at a time.
//!
//! Why here: this is the data path; everything else of ublk is set-up.
//! Must stay true: each request is completed exactly once. The completion is handed to the kernel
//! inside the source's delivery, so that a reader continues while the source still finishes the
//! frame or reads ahead. Nothing is allocated.
//! Threads: [`serve`] owns its thread until the device stops.
//! Source: the kernel's `Documentation/block/ublk.rst`, "data plane" and "user copy".

use super::SECTOR_BYTES;
use super::error::{Error, driver_error};
use crate::tracks;
use arrayvec::ArrayVec;
use libublk::io::{BufDesc, BufDescList, UblkDev, UblkIOCtx, UblkQueue, with_task_io_ring_mut};
use libublk::{UblkIORes, sys};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_format::source::BlockSource;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::RawFd;

/// Answers the requests of queue `queue_id` from `source` until the device is stopped or loses its
/// server.
///
/// # Errors
/// [`Error::Driver`] and [`Error::Io`] when the queue could not be set up; nothing was
/// answered then.
pub(super) fn serve(queue_id: u16, dev: &UblkDev, source: &dyn BlockSource) -> Result<(), Error> {
    let dev_id = dev.dev_info.dev_id;
    // A descriptor that this thread owns: the library closes its own when the device ends.
    let pages = duplicate(dev.tgt.fds[0])?;
    let queue = UblkQueue::new(queue_id, dev)
        .and_then(|queue| queue.submit_fetch_commands_unified(BufDescList::Slices(None)))
        .map_err(|error| driver_error(dev_id, "set up a queue", &error))?;
    let answerer = Answerer {
        queue_id,
        pages,
        source,
    };
    queue.wait_and_handle_io(|queue, tag, _| answerer.answer(queue, tag));
    Ok(())
}

/// Answers requests of one queue.
struct Answerer<'a> {
    queue_id: u16,
    /// `/dev/ublkcN`: a write to it at a request's own offset goes into that request's pages.
    pages: File,
    source: &'a dyn BlockSource,
}

impl Answerer<'_> {
    fn answer(&self, queue: &UblkQueue, tag: u16) {
        // Read once: the driver writes to the descriptor's memory.
        let descriptor = queue.get_iod(tag);
        let (op, first_sector, sectors) = (
            descriptor.op_flags & 0xff,
            descriptor.start_sector,
            descriptor.nr_sectors,
        );
        match op {
            sys::UBLK_IO_OP_READ => {
                let offset = first_sector.saturating_mul(SECTOR_BYTES);
                self.read(
                    queue,
                    tag,
                    offset,
                    sectors.to_usize() * SECTOR_BYTES.to_usize(),
                );
            }
            // No data are ever dirty.
            sys::UBLK_IO_OP_FLUSH => complete(queue, tag, 0),
            // The device is read-only, so the block layer sends no such request.
            _ => complete(queue, tag, -libc::EROFS),
        }
    }

    fn read(&self, queue: &UblkQueue, tag: u16, offset: u64, len: usize) {
        let left = self.source.size_bytes().saturating_sub(offset);
        let wanted = left.min(len.to_u64()).to_usize();
        let _read = sidecore_trace::span(&tracks::UBLK_READ, offset, len.to_u64());
        let mut completed = false;
        if wanted > 0 {
            self.source.read_with(offset, wanted, &mut |delivered| {
                // A second completion would answer another request, which has the same tag by then.
                if completed {
                    return;
                }
                completed = true;
                let result = match delivered {
                    Ok(pieces) => self.fill(tag, pieces, len),
                    Err(error) => -error.errno(),
                };
                complete(queue, tag, result);
            });
        } else {
            // Wholly past the end: only possible inside the padding of the last block.
            completed = true;
            complete(queue, tag, self.fill(tag, &[], len));
        }
        if !completed {
            complete(queue, tag, -libc::EIO);
        }
    }

    /// Writes `pieces`, and zeros up to `len`, into the request's pages; returns `len` or a
    /// negative errno.
    fn fill(&self, tag: u16, pieces: &[&[u8]], len: usize) -> i32 {
        let mut done = 0;
        for group in pieces.chunks(PIECES_PER_WRITE) {
            match self.write(tag, done, group) {
                Some(written) => done += written,
                None => return -libc::EIO,
            }
        }
        // The block layer asks for whole sectors: zeros follow the source's last byte.
        while done < len {
            let zeros = &ZEROS[..(len - done).min(ZEROS.len())];
            match self.write(tag, done, &[zeros]) {
                Some(written) => done += written,
                None => return -libc::EIO,
            }
        }
        debug_assert_eq!(done, len, "a source delivers what it was asked for");
        len as i32
    }

    /// Writes at most [`PIECES_PER_WRITE`] pieces at byte `at` of the request; `None` unless all
    /// bytes were written.
    fn write(&self, tag: u16, at: usize, pieces: &[&[u8]]) -> Option<usize> {
        let slices: ArrayVec<IoSlice<'_>, PIECES_PER_WRITE> =
            pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let wanted: usize = pieces.iter().map(|piece| piece.len()).sum();
        let position = UblkIOCtx::ublk_user_copy_pos(self.queue_id, tag, u32::try_from(at).ok()?);
        match rustix::io::pwritev(&self.pages, &slices, position) {
            Ok(written) if written == wanted => Some(written),
            Ok(written) => {
                tracing::error!(
                    tag,
                    written,
                    wanted,
                    "the kernel took only a part of a ublk answer"
                );
                None
            }
            Err(error) => {
                tracing::error!(tag, %error, "cannot hand bytes to the kernel's ublk request");
                None
            }
        }
    }
}

/// Returns a request to the kernel with its result (bytes, or a negative errno) and asks for the
/// next one.
fn complete(queue: &UblkQueue, tag: u16, result: i32) {
    let outcome =
        queue.complete_io_cmd_unified(tag, BufDesc::Slice(&[]), Ok(UblkIORes::Result(result)));
    if let Err(error) = outcome {
        tracing::error!(tag, %error, "cannot complete a ublk request");
        return;
    }
    // Without this the reply would wait until the whole batch of requests is processed.
    if let Err(error) = with_task_io_ring_mut(|ring| ring.submit()) {
        tracing::warn!(tag, %error, "a ublk answer waits for the next one to be submitted");
    }
}

/// A descriptor of our own for the device that the library has open: it can be opened only once,
/// and the library returns a bare number. Taken through our own pidfd, which is a safe call.
fn duplicate(fd: RawFd) -> Result<File, Error> {
    let of = |what| {
        move |errno: rustix::io::Errno| Error::Io {
            what,
            source: errno.into(),
        }
    };
    let own =
        pidfd_open(getpid(), PidfdFlags::empty()).map_err(of("open a pidfd of this process"))?;
    let fd = pidfd_getfd(own, fd, PidfdGetfdFlags::empty())
        .map_err(of("duplicate the descriptor of the ublk device"))?;
    Ok(File::from(fd))
}

/// Pieces passed to the kernel in one call.
const PIECES_PER_WRITE: usize = 32;
static ZEROS: [u8; 4096] = [0; 4096];
