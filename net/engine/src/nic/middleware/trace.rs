//! Packet capture of a NIC, as a pcap file.
//!
//! The classic pcap format with nanoseconds, one file for both directions. Must stay true: a write
//! error ends the trace, not the network. Source: draft-ietf-opsawg-pcap, sections 4 and 5.

use super::Clock;
use crate::nic::{Capabilities, Nic, NicError, NicReport, Outgoing, Received};
use sidecore_bare::width::ToU64;
use std::io::Write;
use std::os::fd::BorrowedFd;

/// A NIC whose frames are captured.
#[derive(Debug)]
pub struct Trace<N, W: Write> {
    nic: N,
    clock: Clock,
    file: W,
    /// Bytes captured of each frame.
    frame_bytes_max: usize,
    error: Option<std::io::Error>,
}

impl<N: Nic, W: Write> Trace<N, W> {
    /// Captures the frames of `nic` in `file`, at most `frame_bytes_max` bytes of each. The caller
    /// has to buffer `file`.
    ///
    /// # Errors
    /// Errors of writing the file's header.
    pub fn new(nic: N, clock: Clock, mut file: W, frame_bytes_max: usize) -> std::io::Result<Self> {
        file.write_all(&file_header(frame_bytes_max))?;
        Ok(Self {
            nic,
            clock,
            file,
            frame_bytes_max,
            error: None,
        })
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// The first write error.
    pub fn finish(mut self) -> std::io::Result<(N, W)> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.file.flush()?;
        Ok((self.nic, self.file))
    }
}

impl<N: Nic, W: Write> Nic for Trace<N, W> {
    fn capabilities(&self) -> Capabilities {
        self.nic.capabilities()
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        let now_ns = self.clock.now_ns();
        let (file, error, limit) = (&mut self.file, &mut self.error, self.frame_bytes_max);
        self.nic.receive(budget, &mut |received| {
            if error.is_none() {
                *error = write_frame(file, now_ns, limit, &[received.bytes]).err();
            }
            sink(received);
        })
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        let sent = self.nic.transmit(frame)?;
        // A frame that was refused is offered again, and would be captured twice.
        if sent && self.error.is_none() {
            let pieces = [frame.header, frame.payload[0], frame.payload[1]];
            let now_ns = self.clock.now_ns();
            self.error = write_frame(&mut self.file, now_ns, self.frame_bytes_max, &pieces).err();
        }
        Ok(sent)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        self.nic.flush()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.nic.descriptor()
    }

    fn arm(&mut self) -> Result<bool, NicError> {
        self.nic.arm()
    }

    fn has_carrier(&self) -> bool {
        self.nic.has_carrier()
    }

    fn report(&self) -> Option<NicReport> {
        self.nic.report()
    }
}

fn file_header(frame_bytes_max: usize) -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
    // Version 2.4 of the format.
    header[4..6].copy_from_slice(&2u16.to_le_bytes());
    header[6..8].copy_from_slice(&4u16.to_le_bytes());
    let limit = u32::try_from(frame_bytes_max).unwrap_or(u32::MAX);
    header[16..20].copy_from_slice(&limit.to_le_bytes());
    header[20..24].copy_from_slice(&LINK_ETHERNET.to_le_bytes());
    header
}

fn write_frame(
    file: &mut impl Write,
    now_ns: u64,
    limit: usize,
    pieces: &[&[u8]],
) -> std::io::Result<()> {
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut left = bytes.min(limit);
    let mut record = [0; 16];
    let (seconds, rest_ns) = (now_ns / 1_000_000_000, now_ns % 1_000_000_000);
    let words = [seconds, rest_ns, left.to_u64(), bytes.to_u64()];
    // All of them have 32 bits in this format: its seconds last until 2106.
    for (field, word) in record.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        field.copy_from_slice(&word.to_le_bytes()[..4]);
    }
    file.write_all(&record)?;
    for piece in pieces {
        let kept = piece.len().min(left);
        file.write_all(&piece[..kept])?;
        left -= kept;
    }
    Ok(())
}

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINK_ETHERNET: u32 = 1;
