//! Compresses standard input as one frame with every codec, and decompresses it again.
//!
//! `cargo run --release -p sidecore-format --example deflate_frame < FILE`
//! Source: own.

#![allow(clippy::print_stdout)] // A program for people.

use sidecore_format::codec::{CodecId, make_deflater, make_inflater};
use std::io::Read;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut raw = Vec::new();
    // A frame is at most 1 MiB.
    std::io::stdin().take(1 << 20).read_to_end(&mut raw)?;
    if raw.is_empty() {
        return Err("standard input is empty: there is nothing to deflate".into());
    }
    let mut inflated = vec![0; raw.len()];
    for codec in CodecId::ALL {
        let mut stored = Vec::new();
        make_deflater(codec, None)?.deflate(&raw, &mut stored)?;
        make_inflater(codec).inflate(&stored, &mut inflated)?;
        if inflated != raw {
            return Err(format!("{codec} gave other bytes back").into());
        }
        println!("{codec}: {} bytes become {}", raw.len(), stored.len());
    }
    Ok(())
}
