//! Valid dialogues, and how they are spoilt.
//!
//! Why here: a mutation of a dialogue that gets far reaches deeper than noise does.
//! Must stay true: the same state of the random numbers gives the same dialogue.
//! Any thread may call it. Source: own; the layouts are the NBD protocol document's.

use super::{FRAME_BYTES, NAME, SIZE_BYTES};
use sidecore_export::nbd::wire::{self, REQUEST_BYTES, Request, command, command_flag, option};
use sidecore_random::split_mix;

/// Valid dialogues, each a beginning for mutations.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut plain = Script::new(3);
    plain.option(option::EXPORT_NAME, NAME.as_bytes());
    plain.requests(0);
    let mut old = Script::new(1);
    old.option(option::LIST, &[]);
    old.option(option::STARTTLS, &[]);
    old.option(option::EXPORT_NAME, &[]);
    old.requests(0);
    let mut chunks = Script::new(3);
    chunks.option(option::STRUCTURED_REPLY, &[]);
    chunks.option(option::LIST_META_CONTEXT, &meta(NAME, &[]));
    chunks.option(option::SET_META_CONTEXT, &meta(NAME, &["base:allocation"]));
    chunks.option(option::INFO, &info_data(NAME, &[0, 1, 2, 3]));
    chunks.option(option::GO, &info_data(NAME, &[3]));
    chunks.requests(command_flag::DF);
    let mut default = Script::new(3);
    default.option(11, &[]);
    default.option(option::STRUCTURED_REPLY, &[]);
    default.option(
        option::SET_META_CONTEXT,
        &meta("", &["qemu:dirty", "base:allocation"]),
    );
    default.option(option::GO, &info_data("", &[]));
    default.requests(0);
    let mut leaves = Script::new(3);
    leaves.option(option::LIST, &[]);
    leaves.option(option::ABORT, &[]);
    [plain, old, chunks, default, leaves]
        .map(|script| script.bytes)
        .to_vec()
}

/// `seed` changed in one to four places, sometimes with a piece of another dialogue.
#[must_use]
pub fn mutate(seeds: &[Vec<u8>], random: &mut u64) -> Vec<u8> {
    let mut pick = |below: usize| (split_mix(random) % below.max(1) as u64) as usize;
    let mut bytes = seeds[pick(seeds.len())].clone();
    for _ in 0..1 + pick(4) {
        // The first byte only determines how the rest arrives; changes begin after it.
        let at = 1 + pick(bytes.len() - 1);
        match pick(8) {
            0 => bytes[at] ^= 1 << pick(8),
            1 => bytes[at] = pick(256) as u8,
            2 => {
                let value = BOUNDARIES[pick(BOUNDARIES.len())].to_be_bytes();
                let width = [2, 4, 8][pick(3)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&value[8 - width..]);
            }
            3 => {
                let end = (at + 1 + pick(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + 1 + pick(REQUEST_BYTES * 2)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                let to = 1 + pick(bytes.len() - 1);
                bytes.splice(to..to, copy);
            }
            5 => bytes.truncate(at + 1),
            6 => {
                let other = &seeds[pick(seeds.len())];
                let from = pick(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                // A whole random request, most of it within the device.
                let request = Request {
                    flags: [0, 0, command_flag::DF, command_flag::REQ_ONE, 1][pick(5)],
                    command: pick(9) as u16,
                    cookie: pick(1 << 20) as u64,
                    offset: pick(SIZE_BYTES + 100) as u64,
                    len: pick(SIZE_BYTES) as u64,
                };
                bytes.extend_from_slice(&request.encode());
            }
        }
        if bytes.len() < 2 {
            bytes.extend_from_slice(&[0, 0]);
        }
    }
    bytes[0] = pick(256) as u8;
    bytes
}

/// An input that is put together: how it arrives, the client's flags, options, requests.
#[derive(Debug)]
pub struct Script {
    bytes: Vec<u8>,
}

impl Script {
    /// Begins with the client's flags; arrives at once.
    #[must_use]
    pub fn new(client_flags: u32) -> Self {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&client_flags.to_be_bytes());
        Self { bytes }
    }

    /// Adds an option.
    pub fn option(&mut self, option: u32, data: &[u8]) {
        self.bytes
            .extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        self.bytes.extend_from_slice(&option.to_be_bytes());
        self.bytes
            .extend_from_slice(&(data.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(data);
    }

    /// Adds bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn requests(&mut self, flags: u16) {
        let size = SIZE_BYTES as u64;
        let table = [
            (0, command::READ, 0, 512),
            (flags, command::READ, 4096, 8192),
            (0, command::READ, 3 * FRAME_BYTES as u64 - 100, 300),
            (0, command::READ, 0, SIZE_BYTES as u64),
            (0, command::BLOCK_STATUS, 0, SIZE_BYTES as u64),
            (command_flag::REQ_ONE, command::BLOCK_STATUS, 7000, 20_000),
            (0, command::CACHE, 0, 4096),
            (0, command::WRITE, 0, 40),
            (command_flag::FUA, command::WRITE, 5000, 300),
            (command_flag::NO_HOLE, command::WRITE_ZEROES, 100, 9000),
            (0, command::TRIM, 8192, 4096),
            (0, command::FLUSH, 0, 0),
        ];
        for (cookie, (flags, command, offset, len)) in table.into_iter().enumerate() {
            let request = Request {
                flags,
                command,
                cookie: cookie as u64,
                offset,
                len,
            };
            self.request(&request);
        }
        for (command, offset) in [(command::READ, size - 1), (command::DISC, 0)] {
            let request = Request {
                flags: 0,
                command,
                cookie: 99,
                offset,
                len: u64::from(command == command::READ),
            };
            self.request(&request);
        }
    }

    /// Adds a request, with the contents of a write.
    pub fn request(&mut self, request: &Request) {
        self.bytes.extend_from_slice(&request.encode());
        if request.command == command::WRITE {
            let contents = std::iter::repeat_n(0xaa, request.len as usize);
            self.bytes.extend(contents);
        }
    }

    /// What the client sends.
    #[must_use]
    pub fn dialogue(&self) -> &[u8] {
        &self.bytes[1..]
    }
}

/// Data of `INFO` and `GO`: the export's name, and kinds of information.
#[must_use]
pub fn info_data(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    for kind in kinds {
        data.extend_from_slice(&kind.to_be_bytes());
    }
    data
}

/// Data of the options of meta contexts: the export's name, and queries.
#[must_use]
pub fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

const BOUNDARIES: [u64; 10] = [
    0,
    1,
    511,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    SIZE_BYTES as u64,
    SIZE_BYTES as u64 + 1,
    32 << 20,
    u64::MAX,
];
