//! `trace_bytes IMAGE TRACE`: compressed bytes of the frames in a trace, frames of zeros left out.

#![allow(clippy::print_stdout)] // Its result.

use sidecore_block::format::Index;
use sidecore_remote::read_trace;
use std::error::Error;
use std::fs::File;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, trace] = &arguments[..] else {
        return Err("usage: trace_bytes IMAGE TRACE".into());
    };
    let index = Index::open(&File::open(image)?)?;
    let frames = read_trace(Path::new(trace), &index)?;
    let frames = frames.into_iter().filter(|&frame| !index.is_zero(frame));
    println!(
        "{}",
        frames
            .map(|frame| u64::from(index.frame(frame).stored_bytes))
            .sum::<u64>()
    );
    Ok(())
}
