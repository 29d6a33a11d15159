//! Traces: the parts of an image that were read, in the order of their first read.
//!
//! Why here: a machine that boots from a remote image reads the same parts each time. Prefetched in
//! the recorded order, they are local when they are needed.
//! A trace is text: `sidecore-trace 1`, the size of the contents, then lines `OFFSET LENGTH` in
//! bytes of contents. It can therefore be used for another image of nearly the same contents with
//! other frames.
//! Must stay true: a part is written once. A trace with any contents can be read, within a size
//! limit.

use parking_lot::Mutex;
use sidecore_bare::width::ToUsize;
use sidecore_block::device::TraceSink;
use sidecore_block::format::Index;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;

/// Writes a trace.
pub(crate) struct TraceWriter {
    state: Mutex<State>,
}

struct State {
    file: File,
    /// A bit for each frame that was read, in words of 64 frames.
    seen: HashMap<u64, u64>,
    /// Frames begin at `offsets` if they are uneven, otherwise at multiples of this length; the
    /// last one ends at `raw_bytes`.
    frame_bytes: u64,
    offsets: Option<Vec<u64>>,
    raw_bytes: u64,
    failed: bool,
}

impl TraceWriter {
    /// Begins a trace of the image with `index` in a new file.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn create(path: &Path, index: &Index) -> io::Result<Self> {
        let mut file = File::create(path)?;
        writeln!(file, "{HEAD}\n{}", index.raw_bytes())?;
        let last = index.frame(index.frames() - 1);
        let frame_bytes = u64::from(index.frame_bytes());
        let even = (index.frames() - 1) * frame_bytes == last.raw_offset;
        let offsets = (!even).then(|| {
            let offsets = (0..index.frames()).map(|i| index.frame(i).raw_offset);
            offsets.collect()
        });
        Ok(Self {
            state: Mutex::new(State {
                file,
                seen: HashMap::new(),
                frame_bytes,
                offsets,
                raw_bytes: index.raw_bytes(),
                failed: false,
            }),
        })
    }
}

impl TraceSink for TraceWriter {
    fn touched(&self, frames: Range<u64>) {
        let mut state = self.state.lock();
        let mut run: Option<Range<u64>> = None;
        for frame in frames {
            // A word for 64 frames, made when one of them is read: images have millions.
            let (word, bit) = (frame / 64, 1 << (frame % 64));
            let word = state.seen.entry(word).or_default();
            if *word & bit != 0 {
                state.write(run.take());
                continue;
            }
            *word |= bit;
            run = Some(run.map_or(frame, |run| run.start)..frame + 1);
        }
        state.write(run);
    }
}

impl State {
    /// Writes a run of frames at once: a server may be killed at any time.
    fn write(&mut self, run: Option<Range<u64>>) {
        let Some(run) = run else { return };
        let offset = |frame: u64| match &self.offsets {
            None => (frame * self.frame_bytes).min(self.raw_bytes),
            Some(offsets) => offsets
                .get(frame.to_usize())
                .copied()
                .unwrap_or(self.raw_bytes),
        };
        // Bytes and not frames: they mean the same in an image that was packed otherwise.
        let (start, end) = (offset(run.start), offset(run.end));
        let line = format!("{start} {}\n", end - start);
        if let Err(error) = self.file.write_all(line.as_bytes())
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!("the trace is not complete: {error}");
        }
    }
}

/// The ranges of the image with `index` that the trace at `path` names, in its order; those that
/// touch are one.
///
/// # Errors
/// As [`read_trace`].
pub fn trace_parts(path: &Path, index: &Index) -> io::Result<Vec<Range<u64>>> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    for frame in read_trace(path, index)? {
        let frame = index.frame(frame);
        let end = frame.raw_offset + u64::from(frame.raw_bytes);
        match parts.last_mut() {
            Some(last) if last.end == frame.raw_offset => last.end = end,
            _ => parts.push(frame.raw_offset..end),
        }
    }
    Ok(parts)
}

/// Reads the trace at `path`: the frames of the image with `index` that it lists, in its order,
/// each once. Parts after the image's end are left out.
///
/// # Errors
/// The file cannot be read, or is not a trace.
pub fn read_trace(path: &Path, index: &Index) -> io::Result<Vec<u64>> {
    let bad = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut lines = BufReader::new(sidecore_sys::input::open(path)?).lines();
    let head = lines.next().transpose()?;
    if head.as_deref() != Some(HEAD) {
        return Err(bad(format!(
            "it does not begin with `{HEAD}`: it is no trace"
        )));
    }
    // The size is for human readers.
    lines.next().transpose()?;
    let mut seen = HashSet::new();
    let mut frames = Vec::new();
    for (number, line) in lines.enumerate() {
        let line = line?;
        let numbers = line.split_once(' ').and_then(|(offset, bytes)| {
            Some((offset.parse::<u64>().ok()?, bytes.parse::<u64>().ok()?))
        });
        let Some((offset, bytes)) = numbers else {
            return Err(bad(format!(
                "line {}: not an offset and a length",
                number + 3
            )));
        };
        // Any numbers may be there: a trace is not trusted more than other files.
        let end = offset.saturating_add(bytes).min(index.raw_bytes());
        if offset >= end {
            continue;
        }
        for frame in index.stored_in(index.frame_at(offset)..index.frame_at(end - 1) + 1) {
            if seen.insert(frame) {
                frames.push(frame);
            }
        }
    }
    Ok(frames)
}

const HEAD: &str = "sidecore-trace 1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_names_each_part_once_and_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let image = vec![1_u8; (10 << 16) + 100];
        let index = Index::read_raw(&&*image).unwrap();
        let trace = TraceWriter::create(&path, &index).unwrap();
        for frames in [5..7, 10..11, 0..6, 4..8, 5..6] {
            trace.touched(frames);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            ["327680 131072", "655360 100", "0 327680", "458752 65536"]
        );
        assert_eq!(
            read_trace(&path, &index).unwrap(),
            [5, 6, 10, 0, 1, 2, 3, 4, 7]
        );
        // For a shorter image, the parts inside it remain.
        let shorter = Index::read_raw(&&image[..70_000]).unwrap();
        assert_eq!(read_trace(&path, &shorter).unwrap(), [0, 1]);
        for bad in ["", "sidecore-trace 2\n1\n", "sidecore-trace 1\n1\n5 x\n"] {
            std::fs::write(&path, bad).unwrap();
            assert!(read_trace(&path, &index).is_err(), "{bad:?}");
        }
    }
}
