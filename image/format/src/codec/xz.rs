//! xz streams by liblzma.
//!
//! Why here: cloop V4.0 supports them; we read such images and never write them.
//! Must stay true: a stream may request a dictionary of up to 4 GiB; ours stop at
//! [`MEMORY_BYTES_MAX`], which the largest preset (`-9`) needs. liblzma allocates per frame: the
//! only codec that does, on a path kept for old images.
//! Called from: one thread at a time; values move between threads.

use super::{CodecError, CodecId, Deflater, Inflater, Position, corrupt};
use liblzma::stream::{Action, Check, Error, Status, Stream};
use sidecore_bare::width::ToUsize;

/// Decompresses xz streams; stops at any byte.
#[derive(Default)]
pub(crate) struct XzInflater {
    stream: Option<Stream>,
    position: Position,
}

impl Inflater for XzInflater {
    fn codec(&self) -> CodecId {
        CodecId::Xz
    }

    fn reset(&mut self) {
        self.stream = None;
        self.position = Position::default();
    }

    fn advance(
        &mut self,
        frame: &[u8],
        out: &mut [u8],
        target: usize,
    ) -> Result<usize, CodecError> {
        if let Some(done) = self.position.enter(CodecId::Xz, frame, out, target)? {
            return Ok(done);
        }
        let result = self.run(frame, out, target);
        self.position.leave(&result);
        result
    }
}

impl XzInflater {
    fn run(&mut self, frame: &[u8], out: &mut [u8], target: usize) -> Result<usize, CodecError> {
        let whole = out.len();
        let target = target.min(whole);
        let stream = match &mut self.stream {
            Some(stream) => stream,
            empty => {
                // The dictionary size is in the stream: without a limit a frame could ask for 4
                // GiB.
                let stream = Stream::new_stream_decoder(MEMORY_BYTES_MAX, 0)
                    .map_err(|_| corrupt(CodecId::Xz, "no memory to inflate it with"))?;
                empty.insert(stream)
            }
        };
        let mut stalled = false;
        loop {
            let (before_in, before_out) = (stream.total_in(), stream.total_out());
            // With all output written, the stream's end (and its checksum) must still be read: no
            // output space, more input.
            let status = stream
                .process(
                    &frame[before_in.to_usize()..],
                    &mut out[before_out.to_usize()..target],
                    Action::Run,
                )
                .map_err(refused)?;
            let (read, written) = (stream.total_in().to_usize(), stream.total_out().to_usize());
            self.position.written = written;
            if status == Status::StreamEnd {
                if read != frame.len() {
                    return Err(corrupt(CodecId::Xz, "bytes follow the end of the stream"));
                }
                return self.position.finish(CodecId::Xz, whole);
            }
            if written >= target && written < whole {
                return Ok(written);
            }
            // Twice in a row nothing read and nothing written: it needs bytes that do not exist.
            if (stream.total_in(), stream.total_out()) == (before_in, before_out) {
                if stalled {
                    return Err(if read == frame.len() {
                        corrupt(CodecId::Xz, "the compressed bytes end too early")
                    } else {
                        self.position.too_long(CodecId::Xz, whole)
                    });
                }
                stalled = true;
            } else {
                stalled = false;
            }
        }
    }
}

fn refused(error: Error) -> CodecError {
    corrupt(
        CodecId::Xz,
        match error {
            Error::MemLimit => "its dictionary is larger than xz -9 makes",
            Error::Format => "not an xz stream",
            Error::Options | Error::UnsupportedCheck => "uses a feature of xz that is not known",
            Error::Mem => "no memory to inflate it with",
            _ => "the stream is damaged or cut short, or holds more than the image says",
        },
    )
}

/// Compresses each frame into one xz stream. For tests and for completeness: no format of ours
/// writes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct XzDeflater {
    level: u32,
}

impl XzDeflater {
    /// `level` is liblzma's preset, 0 to 9.
    #[must_use]
    pub(crate) fn new(level: i32) -> Self {
        Self {
            level: level.clamp(0, 9).cast_unsigned(),
        }
    }
}

impl Deflater for XzDeflater {
    fn codec(&self) -> CodecId {
        CodecId::Xz
    }

    fn deflate(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        let error = |_| CodecError::Deflate {
            codec: CodecId::Xz,
            reason: "liblzma refused the frame",
        };
        out.clear();
        // `process_vec` does not grow its buffer: the worst case has to fit.
        out.reserve(raw.len() + raw.len() / 4 + 1024);
        let mut stream = Stream::new_easy_encoder(self.level, Check::Crc32).map_err(error)?;
        match stream
            .process_vec(raw, out, Action::Finish)
            .map_err(error)?
        {
            Status::StreamEnd => Ok(()),
            _ => Err(error(Error::Data)),
        }
    }
}

/// Memory limit for liblzma to decompress one frame.
pub(crate) const MEMORY_BYTES_MAX: u64 = 80 << 20;
