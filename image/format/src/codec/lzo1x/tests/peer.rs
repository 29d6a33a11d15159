//! liblzo2, in a program of its own: builds `lab/bench/peers/lzo_peer.c` and exchanges files with
//! it.
//!
//! Why here: the tests and `examples/bench_lzo1x.rs` (which includes this file) compare with it;
//! the crate never links it. The comment at the top of the C file describes the file formats.
//!
//! Must stay true: a missing compiler or library is an error whose message names `scripts/setup`,
//! never a skipped test. Several processes may build at once: each builds under a name of its own
//! and renames. May block on the compiler.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The peer program, built.
pub(crate) struct Peer {
    program: PathBuf,
}

/// A failure, as text.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Peer {
    /// Builds the program next to the running program.
    pub(crate) fn build() -> Result<Self, Failure> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/bench/peers/lzo_peer.c");
        let program = scratch("lzo_peer")?;
        let mut cc = Command::new("cc");
        cc.arg("-O2")
            .arg("-o")
            .arg(&program)
            .arg(&source)
            .arg("-llzo2");
        run(&mut cc).map_err(|error| {
            format!(
                "cannot build {} ({error}); run scripts/setup",
                source.display()
            )
        })?;
        Ok(Self { program })
    }

    /// Compresses blocks by LZO1X-1 (`compress1`) or LZO1X-999 (`compress999`).
    pub(crate) fn compress(&self, mode: &str, blocks: &[&[u8]]) -> Result<Vec<Vec<u8>>, Failure> {
        let mut list = Vec::new();
        for block in blocks {
            list.extend((block.len() as u32).to_le_bytes());
            list.extend(*block);
        }
        let answer = self.call(mode, &list)?;
        Ok(pairs(&answer)?
            .into_iter()
            .map(|(_, stream)| stream.to_vec())
            .collect())
    }

    /// Decompresses streams, each with a given output size; returns liblzo2's status, 0 for
    /// success, and the bytes.
    pub(crate) fn decompress(
        &self,
        streams: &[(usize, &[u8])],
    ) -> Result<Vec<(i32, Vec<u8>)>, Failure> {
        let answer = self.call("decompress-safe", &stream_file(streams))?;
        let status = |(status, out): (u32, &[u8])| (status as i32, out.to_vec());
        Ok(pairs(&answer)?.into_iter().map(status).collect())
    }

    /// The shortest time in seconds, of `repetitions` runs, to decompress a stream file.
    pub(crate) fn bench(&self, file: &Path, repetitions: usize) -> Result<f64, Failure> {
        let mut command = Command::new(&self.program);
        run(command.arg("bench").arg(file).arg(repetitions.to_string()))?
            .trim()
            .parse::<f64>()
            .map_err(Failure::from)
    }

    fn call(&self, mode: &str, input: &[u8]) -> Result<Vec<u8>, Failure> {
        let (from, to) = (scratch("in")?, scratch("out")?);
        std::fs::write(&from, input)?;
        let done = run(Command::new(&self.program).arg(mode).arg(&from).arg(&to));
        let answer = done.and_then(|_| std::fs::read(&to).map_err(Failure::from));
        let _ = (std::fs::remove_file(&from), std::fs::remove_file(&to));
        answer
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.program);
    }
}

/// Streams and their raw lengths in the peer's file format.
pub(crate) fn stream_file(streams: &[(usize, &[u8])]) -> Vec<u8> {
    let mut list = Vec::new();
    for (room, stream) in streams {
        list.extend((*room as u32).to_le_bytes());
        list.extend((stream.len() as u32).to_le_bytes());
        list.extend(*stream);
    }
    list
}

/// A list of {number, length, bytes}.
fn pairs(mut list: &[u8]) -> Result<Vec<(u32, &[u8])>, Failure> {
    let mut pairs = Vec::new();
    while let Some((&head, rest)) = list.split_first_chunk::<8>() {
        let [a, b, c, d, e, f, g, h] = head;
        let length = u32::from_le_bytes([e, f, g, h]) as usize;
        let bytes = rest.get(..length).ok_or("the peer's answer is cut short")?;
        pairs.push((u32::from_le_bytes([a, b, c, d]), bytes));
        list = &rest[length..];
    }
    Ok(pairs)
}

/// A unique file name, next to the running program.
pub(crate) fn scratch(name: &str) -> Result<PathBuf, Failure> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut path = std::env::current_exe()?;
    // Relaxed: only the numbers have to differ.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    path.set_file_name(format!("{name}.{}.{number}", std::process::id()));
    Ok(path)
}

/// Output of a command, if it succeeds.
fn run(command: &mut Command) -> Result<String, Failure> {
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {}", output.status, said.trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
