//! Digests: XXH3, SHA-256, BLAKE3 and CRC-32C.
//!
//! A request without a table digests input 0; the digest's bytes are the reply's words, as they lie
//! in memory. With word 0 = N, input 1 has N rows of two words (offset and length in input 0) and
//! output 0 gets N digests, one after the other; word 0 of the reply is N. Word 1 of the request is
//! the seed of XXH3. Digests as their programs print them, except that XXH3 and CRC-32C are numbers
//! and lie there little-endian.
//!
//! Must stay true: an item of any length is done in pieces of [`PIECE_BYTES`], with a look at
//! whether to go on after each. A row outside input 0 fails the request, as do items of more bytes
//! together than input 0 has, and more than [`crate::REQUEST_BYTES_MAX`]. Sources: FIPS 180-4;
//! RFC 3720, 12.1 (CRC-32C); the BLAKE3 and xxHash specifications.

use crate::table::{self, Budget, REQUEST_BYTES_MAX, Table, go_on};
use sidecore_daemon::served::{Cx, Memory, Reply, Request, Served, chunks};
use sidecore_engine::mfc::Mfc;
use sidecore_engine::{Buf, KernelError};
use sidecore_sys::SharedSlice;
use std::marker::PhantomData;
use xxhash_rust::xxh3;

/// Bytes of an item that are digested between two looks at whether to go on.
pub const PIECE_BYTES: usize = 64 << 10;

/// A digest of 1 to 48 bytes, made piece by piece.
pub trait Digest: Default + Send + 'static {
    /// Name of the kernel.
    const NAME: &'static str;
    /// An array of as many bytes as the digest has.
    type Bytes: AsRef<[u8]>;

    /// Begins another.
    fn begin(&mut self, seed: u64);

    /// The next bytes.
    fn update(&mut self, bytes: &[u8]);

    /// The digest of all bytes since it began.
    fn finish(&mut self) -> Self::Bytes;

    /// The digest of these bytes.
    fn of(&mut self, bytes: &[u8], seed: u64) -> Self::Bytes {
        self.begin(seed);
        self.update(bytes);
        self.finish()
    }
}

/// The kernel of a digest whose bytes are `N`.
#[derive(Debug)]
pub struct Hash<D, const N: usize>(PhantomData<D>);

/// XXH3 with 64 bits: the kernel `xxh3_64`.
pub(crate) type Xxh3Of64 = Hash<Xxh3State<8>, 8>;
/// XXH3 with 128 bits: the kernel `xxh3_128`.
pub(crate) type Xxh3Of128 = Hash<Xxh3State<16>, 16>;
/// SHA-256: the kernel `sha256`.
pub type Sha256 = Hash<sha2::Sha256, 32>;
/// BLAKE3: the kernel `blake3`.
pub(crate) type Blake3 = Hash<blake3::Hasher, 32>;
/// CRC-32C (Castagnoli): the kernel `crc32c`.
pub(crate) type Crc32c = Hash<Crc32cState, 4>;

impl<D: Digest<Bytes = [u8; N]>, const N: usize> Served for Hash<D, N> {
    const NAME: &'static str = D::NAME;
    const LS: usize = PIECE_BYTES + table::store_bytes(ROW_WORDS, N);
    type State = D;

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let data = memory.input(0)?;
        let [count, seed, ..] = request.words;
        // One buffer for all items; a transfer takes it, and gives it back when it is done.
        let mut buffer = Some(cx.store.alloc::<u8>(PIECE_BYTES)?);
        let (state, mfc) = (&mut *cx.state, cx.mfc);
        if count == 0 {
            let digest = digest(state, seed, mfc, &mut buffer, data, memory)?;
            return Ok(words_of(&digest));
        }
        let results = (memory.output(0)?, N);
        let table = Table::new(D::NAME, count, (memory.input(1)?, 0, ROW_WORDS), results)?;
        // Items may overlap, but not so that a short input is work for ever.
        let mut budget = Budget::new(D::NAME, data.len().max(REQUEST_BYTES_MAX));
        table.each::<ROW_WORDS, N>(cx.store, mfc, |&[offset, bytes], result| {
            // A digest has no place for a status: a wrong row fails the request.
            let item = table::part(data, offset, bytes).ok_or_else(|| {
                let name = D::NAME;
                KernelError::failed(format!("{name}: an item beyond the end of input 0"))
            })?;
            budget.take(item.len())?;
            *result = digest(state, seed, mfc, &mut buffer, item, memory)?;
            Ok(())
        })?;
        Ok(Reply::word(count))
    }
}

/// The digest of an item, through `buffer`, which is there before and after.
#[inline]
fn digest<'c, D: Digest>(
    state: &mut D,
    seed: u64,
    mfc: &'c Mfc<'c>,
    buffer: &mut Option<Buf<'c, u8>>,
    item: SharedSlice<'c>,
    memory: &Memory<'_>,
) -> Result<D::Bytes, KernelError> {
    let Some(mut piece) = buffer.take() else {
        return Err(KernelError::failed("a buffer that an error took along"));
    };
    // Most items: one transfer, and no state that has to be made and finished.
    if item.len() <= PIECE_BYTES {
        go_on(memory)?;
        piece = mfc.get_large(piece, item)?.wait();
        let digest = state.of(&piece, seed);
        *buffer = Some(piece);
        return Ok(digest);
    }
    state.begin(seed);
    for part in chunks(item, PIECE_BYTES) {
        go_on(memory)?;
        piece = mfc.get_large(piece, part)?.wait();
        state.update(&piece);
    }
    *buffer = Some(piece);
    Ok(state.finish())
}

/// A reply whose words are these bytes.
fn words_of(digest: &[u8]) -> Reply {
    let mut reply = Reply::default();
    for (word, bytes) in reply.words.iter_mut().zip(digest.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    reply
}

/// XXH3 of `N` bytes, 8 or 16.
#[derive(Default)]
pub struct Xxh3State<const N: usize> {
    state: xxh3::Xxh3,
}

impl Digest for Xxh3State<8> {
    const NAME: &'static str = "xxh3_64";
    type Bytes = [u8; 8];

    fn begin(&mut self, seed: u64) {
        self.state = xxh3::Xxh3::with_seed(seed);
    }

    fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
    }

    fn finish(&mut self) -> [u8; 8] {
        self.state.digest().to_le_bytes()
    }

    // In one go: the state takes longer to make than a short item to digest.
    fn of(&mut self, bytes: &[u8], seed: u64) -> [u8; 8] {
        xxh3::xxh3_64_with_seed(bytes, seed).to_le_bytes()
    }
}

impl Digest for Xxh3State<16> {
    const NAME: &'static str = "xxh3_128";
    type Bytes = [u8; 16];

    fn begin(&mut self, seed: u64) {
        self.state = xxh3::Xxh3::with_seed(seed);
    }

    fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
    }

    fn finish(&mut self) -> [u8; 16] {
        self.state.digest128().to_le_bytes()
    }

    fn of(&mut self, bytes: &[u8], seed: u64) -> [u8; 16] {
        xxh3::xxh3_128_with_seed(bytes, seed).to_le_bytes()
    }
}

impl Digest for sha2::Sha256 {
    const NAME: &'static str = "sha256";
    type Bytes = [u8; 32];

    fn begin(&mut self, _seed: u64) {
        sha2::Digest::reset(self);
    }

    fn update(&mut self, bytes: &[u8]) {
        sha2::Digest::update(self, bytes);
    }

    fn finish(&mut self) -> [u8; 32] {
        sha2::Digest::finalize_reset(self).into()
    }
}

impl Digest for blake3::Hasher {
    const NAME: &'static str = "blake3";
    type Bytes = [u8; 32];

    fn begin(&mut self, _seed: u64) {
        self.reset();
    }

    fn update(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }

    fn finish(&mut self) -> [u8; 32] {
        self.finalize().into()
    }

    fn of(&mut self, bytes: &[u8], _seed: u64) -> [u8; 32] {
        blake3::hash(bytes).into()
    }
}

/// CRC-32C so far.
#[derive(Debug, Default)]
pub struct Crc32cState(u32);

impl Digest for Crc32cState {
    const NAME: &'static str = "crc32c";
    type Bytes = [u8; 4];

    fn begin(&mut self, _seed: u64) {
        self.0 = 0;
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    fn finish(&mut self) -> [u8; 4] {
        self.0.to_le_bytes()
    }
}

/// Words of a row: offset and length.
const ROW_WORDS: usize = 2;
