//! Decodes a file's frames with this crate and with libzstd in turns, and prints both rates.
//!
//! `frames FILE [FRAME_BYTES [LEVEL [BLOCK_BYTES]]]`: the file is cut into pieces (64 KiB), each
//! compressed by libzstd into a frame (level 15, blocks of 32 KiB). Both decoders decode all
//! frames, on one core, without checksums of the contents.

use sidecore_zstd::Decoder;
use std::error::Error;
use std::time::Instant;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter};

const ROUNDS: usize = 9;
/// Frames that one decoder decodes before it is the other's turn.
const PORTION: usize = 16;

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which file?")?;
    let mut number = |usual: usize| -> Result<usize, Box<dyn Error>> {
        Ok(arguments.next().map_or(Ok(usual), |text| text.parse())?)
    };
    let (frame_bytes, level, block_bytes) = (number(64 << 10)?, number(15)?, number(32 << 10)?);
    let raw = std::fs::read(path)?;
    let mut context = CCtx::create();
    for parameter in [
        CParameter::CompressionLevel(level as i32),
        CParameter::ContentSizeFlag(true),
        CParameter::MaxBlockSize(block_bytes as u32),
    ] {
        context.set_parameter(parameter).map_err(name)?;
    }
    let mut frames = Vec::new();
    for piece in raw.chunks(frame_bytes) {
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(piece.len()) + 1024);
        context.compress2(&mut frame, piece).map_err(name)?;
        frames.push((frame, piece.len()));
    }
    let stored: usize = frames.iter().map(|(frame, _)| frame.len()).sum();
    println!(
        "{} bytes in {} frames, ratio {:.3}",
        raw.len(),
        frames.len(),
        raw.len() as f64 / stored as f64
    );
    let mut ours = Decoder::new();
    ours.set_checks_contents(false);
    let mut theirs = DCtx::create();
    theirs
        .set_parameter(DParameter::ForceIgnoreChecksum(true))
        .map_err(name)?;
    let mut out = vec![0_u8; frame_bytes];
    for ((frame, bytes), piece) in frames.iter().zip(raw.chunks(frame_bytes)) {
        ours.decode(frame, &mut out[..*bytes])?;
        if out[..*bytes] != *piece {
            return Err("other bytes came out".into());
        }
    }
    // The fastest round of each portion counts, so that other load on the machine matters little;
    // portions are short, and the two decoders alternate.
    let mut seconds = [0.0; 2];
    for portion in frames.chunks(PORTION) {
        let mut best = [f64::INFINITY; 2];
        for _ in 0..ROUNDS {
            let began = Instant::now();
            for (frame, bytes) in portion {
                ours.decode(frame, &mut out[..*bytes])?;
            }
            best[0] = best[0].min(began.elapsed().as_secs_f64());
            let began = Instant::now();
            for (frame, bytes) in portion {
                theirs.decompress(&mut out[..*bytes], frame).map_err(name)?;
            }
            best[1] = best[1].min(began.elapsed().as_secs_f64());
        }
        seconds[0] += best[0];
        seconds[1] += best[1];
    }
    for (seconds, who) in seconds.iter().zip(["ours", "libzstd"]) {
        println!("{who:8} {:6.0} MB/s", raw.len() as f64 / 1e6 / seconds);
    }
    println!("ratio    {:.2}", seconds[1] / seconds[0]);
    Ok(())
}

fn name(code: usize) -> String {
    zstd_safe::get_error_name(code).to_owned()
}
