//! Lists the frames of an image: offsets, sizes and compression.
//!
//! `cargo run -p sidecore-format --example list_frames -- IMAGE`
//! Source: own.

#![allow(clippy::print_stdout)] // A program for people.

use sidecore_format::Index;
use std::fs::File;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args().nth(1).ok_or("usage: list_frames IMAGE")?;
    // Only the tables are read.
    let index = Index::open(&File::open(image)?)?;
    println!(
        "{}: {} bytes in {} frames",
        index.format(),
        index.raw_bytes(),
        index.frames()
    );
    for number in 0..index.frames() {
        let frame = index.frame(number);
        println!(
            "frame {number}: {} bytes at {} inflate to {} at {}, {}{}",
            frame.stored_bytes,
            frame.offset,
            frame.raw_bytes,
            frame.raw_offset,
            frame.codec,
            if index.is_zero(number) { ", zeros" } else { "" },
        );
    }
    Ok(())
}
