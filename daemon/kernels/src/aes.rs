//! AES-256-GCM: the kernels `aes256gcm_seal` and `aes256gcm_open`.
//!
//! Input 0 is the data. Input 1 is the key, 32 bytes, followed by N rows (N is word 0) of eight
//! words: offset and length of the item in input 0; offset and length of its associated data there;
//! offset and room in output 0; 12 bytes of nonce, and 4 bytes of 0. A sealed item becomes its
//! ciphertext followed by the tag of 16 bytes; such an item is opened. Output 1 gets N results of
//! two words: bytes put, and an [`ItemStatus`]. Word 0 of the reply is N, word 1 the number of
//! items that were not done.
//!
//! Must stay true: nothing of an item that is not authentic is put. Key and plaintext are nowhere
//! in texts or logs, and are wiped from the engine's memory before the request ends; a nonce is the
//! caller's to use once. An item and its associated data have at most [`BYTES_MAX`] bytes together,
//! which take some 200 us. Sources: NIST SP 800-38D; RFC 5116 for the form of the result.

use crate::table::{self, Budget, ItemStatus, REQUEST_BYTES_MAX, Stop, Table, go_on};
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{AeadInOut, Aes256Gcm, KeyInit, Nonce, Tag};
use sidecore_daemon::served::{Cx, Memory, Reply, Request, Served};
use sidecore_engine::KernelError;
use sidecore_sys::SharedSlice;
use zeroize::Zeroize;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Bytes of an item and its associated data together, at most.
pub const BYTES_MAX: usize = 256 << 10;

/// Seals: the kernel `aes256gcm_seal`.
#[derive(Debug)]
pub struct Seal;

/// Opens: the kernel `aes256gcm_open`.
#[derive(Debug)]
pub struct Open;

impl Served for Seal {
    const NAME: &'static str = "aes256gcm_seal";
    const LS: usize = table::store_bytes(ROW_WORDS, RESULT_BYTES);
    type State = Copies;

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        run(Self::NAME, cx, request, memory, seal)
    }
}

impl Served for Open {
    const NAME: &'static str = "aes256gcm_open";
    const LS: usize = table::store_bytes(ROW_WORDS, RESULT_BYTES);
    type State = Copies;

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        run(Self::NAME, cx, request, memory, open)
    }
}

/// An engine's copies of an item and of its associated data; empty between requests.
#[derive(Default)]
pub struct Copies {
    item: Vec<u8>,
    associated: Vec<u8>,
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "copies of an item")
    }
}

impl Copies {
    fn get(&mut self, item: SharedSlice<'_>, associated: SharedSlice<'_>) {
        for (copy, range, more) in [
            (&mut self.item, item, TAG_BYTES),
            (&mut self.associated, associated, 0),
        ] {
            // In one step, so that no part of a secret stays behind in memory that was too small.
            copy.reserve(range.len() + more);
            copy.resize(range.len(), 0);
            range.read_at(0, copy);
        }
    }

    /// Overwrites the keys, in a way that the compiler does not leave out.
    fn wipe(&mut self) {
        self.item.as_mut_slice().zeroize();
        self.associated.as_mut_slice().zeroize();
        self.item.clear();
        self.associated.clear();
    }
}

type Work = fn(&Aes256Gcm, &Nonce<aes_gcm::aead::consts::U12>, &mut Copies) -> Option<()>;

fn run<'c, S: Served<State = Copies>>(
    name: &'static str,
    cx: &mut Cx<'c, S>,
    request: &Request,
    memory: &'c Memory<'c>,
    work: Work,
) -> Result<Reply, KernelError> {
    let (data, keyed, output) = (memory.input(0)?, memory.input(1)?, memory.output(0)?);
    let count = request.words[0];
    let results = (memory.output(1)?, RESULT_BYTES);
    let table = Table::new(name, count, (keyed, KEY_BYTES, ROW_WORDS), results)?;
    let mut key = [0; KEY_BYTES];
    let Some(of_key) = keyed.range(0..KEY_BYTES) else {
        return Err(KernelError::failed(format!("{name}: input 1 has no key")));
    };
    of_key.read_at(0, &mut key);
    let cipher = Aes256Gcm::new((&key).into());
    key.zeroize();
    let copies = &mut *cx.state;
    let mut budget = Budget::new(name, REQUEST_BYTES_MAX);
    let mut failures = 0;
    // One key for all rows: its schedule costs more than a short item.
    let done = table.each::<ROW_WORDS, RESULT_BYTES>(cx.store, cx.mfc, |row, result| {
        go_on(memory)?;
        let Some(item) = Item::of(row, data, output) else {
            *result = table::settled(Err(Stop::Item(ItemStatus::BadRow)), &mut failures)?;
            return Ok(());
        };
        budget.take_item(item.cost())?;
        let one = item.run(&cipher, copies, work);
        // Before the outcome is looked at: a plaintext that found no room is a plaintext.
        copies.wipe();
        *result = table::settled(one.map_err(Stop::Item), &mut failures)?;
        Ok(())
    });
    done?;
    let mut reply = Reply::word(count);
    reply.words[1] = failures;
    Ok(reply)
}

/// A row whose ranges are there.
struct Item<'m> {
    item: SharedSlice<'m>,
    associated: SharedSlice<'m>,
    target: SharedSlice<'m>,
    nonce: [u8; NONCE_BYTES],
}

impl<'m> Item<'m> {
    /// `None` where the row points outside the ranges, or its item is too long.
    fn of(row: &[u64; ROW_WORDS], data: SharedSlice<'m>, output: SharedSlice<'m>) -> Option<Self> {
        let &[offset, bytes, aad_offset, aad_bytes, to, room, begin, end] = row;
        let item = table::part(data, offset, bytes)?;
        let associated = table::part(data, aad_offset, aad_bytes)?;
        let target = table::part(output, to, room)?;
        // Both lengths are of ranges in memory, so their sum cannot overflow.
        let is_fit = item.len() + associated.len() <= BYTES_MAX;
        if !is_fit || end > u64::from(u32::MAX) {
            return None;
        }
        let mut nonce = [0; NONCE_BYTES];
        nonce[..8].copy_from_slice(&begin.to_le_bytes());
        nonce[8..].copy_from_slice(&end.to_le_bytes()[..4]);
        Some(Self {
            item,
            associated,
            target,
            nonce,
        })
    }

    /// Bytes that it takes and may fill; both have a bound, so the sum has one.
    fn cost(&self) -> usize {
        let put = (self.item.len() + TAG_BYTES).min(self.target.len());
        self.item.len() + self.associated.len() + put
    }

    /// Does it; the bytes put.
    fn run(
        &self,
        cipher: &Aes256Gcm,
        copies: &mut Copies,
        work: Work,
    ) -> Result<usize, ItemStatus> {
        copies.get(self.item, self.associated);
        work(cipher, &Nonce::from(self.nonce), copies).ok_or(ItemStatus::Damaged)?;
        // The length of the result is known now: sealing adds a tag, opening takes one away.
        if copies.item.len() > self.target.len() {
            return Err(ItemStatus::NoRoom);
        }
        self.target.write_at(0, &copies.item);
        Ok(copies.item.len())
    }
}

/// Makes the item its ciphertext and tag.
fn seal(
    cipher: &Aes256Gcm,
    nonce: &Nonce<aes_gcm::aead::consts::U12>,
    copies: &mut Copies,
) -> Option<()> {
    let text = InOutBuf::from(copies.item.as_mut_slice());
    let tag = cipher
        .encrypt_inout_detached(nonce, &copies.associated, text)
        .ok()?;
    copies.item.extend_from_slice(&tag);
    Some(())
}

/// Makes the item its plaintext; `None` where it is not authentic.
fn open(
    cipher: &Aes256Gcm,
    nonce: &Nonce<aes_gcm::aead::consts::U12>,
    copies: &mut Copies,
) -> Option<()> {
    let (text, tag) = copies.item.split_last_chunk_mut::<TAG_BYTES>()?;
    let tag = Tag::from(*tag);
    let bytes = text.len();
    let opened = cipher.decrypt_inout_detached(nonce, &copies.associated, text.into(), &tag);
    opened.ok()?;
    // The tag goes; it stood in the room that was reserved for it.
    copies.item.truncate(bytes);
    Some(())
}

/// Words of a row.
const ROW_WORDS: usize = 8;
/// Bytes of a result: bytes put, status.
const RESULT_BYTES: usize = 16;
