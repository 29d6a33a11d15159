//! Packs a file or a directory into an image, and verifies it.
//!
//! `cargo run --release -p sidecore-block --example pack_file -- SRC IMAGE`
//! Source: own.

#![allow(clippy::print_stdout)] // A program for people.

use sidecore_block::codec::Tune;
use sidecore_block::format::Format;
use sidecore_block::inner::Kind;
use sidecore_block::pack::{Existing, Options, Source, Target, pack, verify};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [source, image] = &args[..] else {
        return Err("usage: pack_file SRC IMAGE".into());
    };
    // A directory becomes an erofs file system first, in a nameless file of this directory.
    let source = Source::open(Path::new(source), Kind::Erofs, &std::env::temp_dir())?;
    let options = Options {
        format: Format::Zstd,
        frame_bytes: 64 << 10,
        level: None,
        tune: Tune::Speed,
        cdc: false,
        engines: std::thread::available_parallelism()?.get(),
        thin: Default::default(),
        limits: Default::default(),
    };
    let image = Path::new(image);
    let report = pack(
        source,
        Target::Path(image, Existing::Replace),
        &options,
        &mut |_| (),
    )?;
    println!(
        "{} bytes in {} frames, {} stored",
        report.raw_bytes, report.frames, report.stored_bytes
    );

    let verified = verify(image, options.engines, &mut |_| ())?;
    println!(
        "{} of {} frames damaged",
        verified.bad_frames_total, verified.frames
    );
    Ok(())
}
