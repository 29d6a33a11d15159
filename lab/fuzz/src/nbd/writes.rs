//! The same dialogues against an export that takes writes.
//!
//! Why here: requests that change the device have rules of their own, and a model is simple: plain
//! bytes.
//! Must stay true: [`dialogue`] panics on, and only on, a fault of ours: a change outside the
//! device, a device that differs from the model, a reply that is missing or says something else.
//! Any thread may call it; it keeps nothing. Source: own.

use super::{Arriving, Memory, chunk_head, cookie, shake_hands};
use parking_lot::Mutex;
use sidecore_block::source::{
    BlockSource, BlockWrites, Deliver, Extent, MemorySource, ReadError, WriteError, check_range,
};
use sidecore_export::nbd::reply::{reply, reply_change};
use sidecore_export::nbd::session::{Command, Next, Session};
use sidecore_export::nbd::wire::{self, Fields, Headers};

/// Bytes that are read and written.
struct Bytes(Mutex<Vec<u8>>);

impl BlockSource for Bytes {
    fn size_bytes(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn preferred_bytes(&self) -> u32 {
        4096
    }

    fn read_with_max_bytes(&self) -> usize {
        12 << 10
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.size_bytes())?;
        let start = offset as usize;
        dst.copy_from_slice(&self.0.lock()[start..start + dst.len()]);
        Ok(())
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        let mut bytes = vec![0; len];
        match self.read_into(offset, &mut bytes) {
            Ok(()) => deliver(Ok(&[&bytes])),
            Err(error) => deliver(Err(&error)),
        }
    }

    fn extent(&self, offset: u64) -> Extent {
        MemorySource::new(self.0.lock().clone()).extent(offset)
    }

    fn writes(&self) -> Option<&dyn BlockWrites> {
        Some(self)
    }
}

impl BlockWrites for Bytes {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let start = offset as usize;
        self.0.lock()[start..start + bytes.len()].copy_from_slice(bytes);
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
        Ok(())
    }

    fn grain_bytes(&self) -> u32 {
        4096
    }
}

/// Runs one dialogue with an export that holds `contents` and takes writes.
///
/// # Panics
/// On any fault of the core.
pub(super) fn dialogue(contents: &[u8], input: &[u8], arrival_bytes: usize) {
    let mut arriving = Arriving {
        input,
        start: 0,
        end: 0,
        arrival_bytes,
    };
    let device = Bytes(Mutex::new(contents.to_vec()));
    let mut model = contents.to_vec();
    let Some(terms) = shake_hands(&device, &mut arriving, &mut Vec::new()) else {
        return;
    };
    let size = contents.len() as u64;
    let mut session = Session::new(terms, size, device.read_with_max_bytes()).taking_writes(true);
    let mut memory = Memory::default();
    loop {
        let (used, command) = match session.next(arriving.seen()) {
            Next::Need if arriving.more() => continue,
            Next::Need | Next::Disconnect | Next::Violation(_) => break,
            Next::Used(used) => {
                arriving.take(used);
                continue;
            }
            Next::Command(used, command) => (used, command),
        };
        arriving.take(used);
        memory.bytes.clear();
        let outcome = match command {
            Command::Write { offset, len, .. } => {
                while arriving.seen().len() < len as usize && arriving.more() {}
                let Some(payload) = arriving.seen().get(..len as usize) else {
                    break;
                };
                let start = offset as usize;
                model[start..start + payload.len()].copy_from_slice(payload);
                let written = device.write(offset, payload);
                arriving.take(len as usize);
                reply_change(command.reply_to(terms.headers), written, &mut memory)
            }
            Command::Zero { offset, len, .. } | Command::Trim { offset, len, .. } => {
                model[offset as usize..offset as usize + len as usize].fill(0);
                reply(&device, terms.headers, &command, &mut memory)
            }
            _ => reply(&device, terms.headers, &command, &mut memory),
        };
        assert_eq!(outcome, Ok(()), "a device without damage");
        check(&command, terms.headers, &memory.bytes);
    }
    assert!(
        *device.0.lock() == model,
        "the device differs from the model"
    );
}

/// One reply, to this request, without an error unless it was refused.
fn check(command: &Command, headers: Headers, reply: &[u8]) {
    let mut fields = Fields(reply);
    let changes = matches!(
        command,
        Command::Write { .. } | Command::Zero { .. } | Command::Trim { .. } | Command::Flush { .. }
    );
    if headers != Headers::Simple {
        let (flags, kind, len) = chunk_head(&mut fields, command.reply_to(headers));
        if changes {
            assert_eq!(
                (flags, kind, len),
                (wire::chunk::DONE, wire::chunk::NONE, 0)
            );
            assert!(fields.is_empty());
        }
        return;
    }
    assert_eq!(fields.u32(), Some(wire::SIMPLE_REPLY_MAGIC));
    let word = fields.u32().expect("a reply is cut short");
    assert_eq!(fields.u64(), Some(cookie(command)));
    if changes {
        assert!(word == 0 && fields.is_empty());
    }
}
