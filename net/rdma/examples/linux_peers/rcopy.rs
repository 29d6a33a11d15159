//! `rcopy`: a file over an rsocket.
//!
//! Each request is a header of 16 bytes and its data: version 0, command, length of both (2 bytes),
//! a word (4), a number (8), little-endian. Open (1): the mode in the word, a path that ends with
//! zeros. Write (3): the length in 8 bytes, and then the file's. Close (2). A reply is a header
//! alone, with the command and 0x80, and an errno or 0 in the word.

use crate::node::{Failure, Node};
use crate::rsocket::Rsocket;
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

const OPEN: u8 = 1;
const CLOSE: u8 = 2;
const WRITE: u8 = 3;
const ANSWER: u8 = 0x80;
const HEADER_BYTES: usize = 16;
const PATH_BYTES_MAX: usize = 4096;
const CHUNK_BYTES: usize = 1 << 20;
const MODE: u32 = 0o100_644;

/// Receives one file into a folder, under the last component of the client's name.
pub(crate) fn serve(node: Node, folder: &Path) -> Result<String, Failure> {
    let mut stream = Stream(Rsocket::accept(node)?);
    let begun = Instant::now();
    let open = stream.request(OPEN)?;
    let end = open.iter().position(|&byte| byte == 0);
    let path = std::str::from_utf8(&open[..end.ok_or("a path without an end")?])?;
    let name = Path::new(path).file_name().ok_or("a path without a name")?;
    let mut file = File::create(folder.join(name))?;
    stream.answer(OPEN)?;
    let write = stream.request(WRITE)?;
    let bytes = u64::from_le_bytes(write.get(..8).ok_or("no length")?.try_into()?);
    let mut left = bytes;
    while left > 0 {
        let came = stream.some(usize::try_from(left)?.min(CHUNK_BYTES))?;
        file.write_all(&came)?;
        left -= came.len() as u64;
    }
    stream.answer(WRITE)?;
    let elapsed = begun.elapsed();
    stream.request(CLOSE)?;
    file.sync_all()?;
    stream.answer(CLOSE)?;
    stream.end()?;
    Ok(report("serve", bytes, elapsed))
}

/// Sends a file, which is named `name` at the server.
pub(crate) fn send(
    node: Node,
    address: SocketAddr,
    from: &Path,
    name: &str,
) -> Result<String, Failure> {
    let mut file = File::open(from)?;
    let bytes = file.metadata()?.len();
    let mut stream = Stream(Rsocket::connect(node, address)?);
    let begun = Instant::now();
    let mut path = name.as_bytes().to_vec();
    path.resize((path.len() + 1).next_multiple_of(HEADER_BYTES), 0);
    stream.ask(OPEN, MODE, &path)?;
    stream.answered(OPEN)?;
    stream.ask(WRITE, 0, &bytes.to_le_bytes())?;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = file.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        stream.0.write(&chunk[..count])?;
    }
    stream.answered(WRITE)?;
    let elapsed = begun.elapsed();
    stream.ask(CLOSE, 0, &[])?;
    stream.answered(CLOSE)?;
    stream.0.close()?;
    Ok(report("connect", bytes, elapsed))
}

fn report(side: &str, bytes: u64, elapsed: Duration) -> String {
    let rate = bytes as f64 / elapsed.as_secs_f64().max(1e-9) / 1e6;
    format!(r#"{{"tool": "rcopy", "side": "{side}", "bytes": {bytes}, "mb_per_s": {rate:.3}}}"#)
}

struct Stream(Rsocket);

impl Stream {
    fn some(&mut self, count: usize) -> Result<Vec<u8>, Failure> {
        let came = self.0.read(count)?;
        if came.is_empty() {
            return Err("the peer has closed in the middle".into());
        }
        Ok(came)
    }

    fn exactly(&mut self, count: usize) -> Result<Vec<u8>, Failure> {
        let mut came = Vec::new();
        while came.len() < count {
            came.extend(self.some(count - came.len())?);
        }
        Ok(came)
    }

    /// A header's word, and the data after the header.
    fn message(&mut self, command: u8) -> Result<(u32, Vec<u8>), Failure> {
        let header = self.exactly(HEADER_BYTES)?;
        let bytes = usize::from(u16::from_le_bytes(header[2..4].try_into()?));
        let rest = bytes
            .checked_sub(HEADER_BYTES)
            .ok_or("a header that is too short")?;
        if header[1] != command || rest > PATH_BYTES_MAX {
            return Err(format!("command {:#x} with {rest} bytes", header[1]).into());
        }
        let word = u32::from_le_bytes(header[4..8].try_into()?);
        Ok((word, self.exactly(rest)?))
    }

    fn request(&mut self, command: u8) -> Result<Vec<u8>, Failure> {
        Ok(self.message(command)?.1)
    }

    fn ask(&mut self, command: u8, word: u32, rest: &[u8]) -> Result<(), Failure> {
        let mut message = vec![0; HEADER_BYTES];
        message[1] = command;
        message[2..4].copy_from_slice(&((HEADER_BYTES + rest.len()) as u16).to_le_bytes());
        message[4..8].copy_from_slice(&word.to_le_bytes());
        message.extend_from_slice(rest);
        self.0.write(&message)
    }

    fn answer(&mut self, command: u8) -> Result<(), Failure> {
        self.ask(ANSWER | command, 0, &[])
    }

    fn answered(&mut self, command: u8) -> Result<(), Failure> {
        match self.message(ANSWER | command)? {
            (0, _) => Ok(()),
            (error, _) => {
                let error = std::io::Error::from_raw_os_error(error.cast_signed());
                Err(format!("the server answers command {command}: {error}").into())
            }
        }
    }

    /// Reads to the end, and closes.
    fn end(mut self) -> Result<(), Failure> {
        if !self.0.read(1)?.is_empty() {
            return Err("bytes behind the end".into());
        }
        self.0.close()
    }
}
