//! Measures any NBD server behind a Unix socket:
//! `nbd_load SOCKET random|sequential BLOCK_BYTES DEPTH SECONDS [SEED]`.
//!
//! Why here: the client that `block bench` measures with, on its own.
//! Source: own.

#![allow(clippy::print_stdout)] // A program for people.

use sidecore_export::nbd::client::{Load, REQUESTS_MAX, measure_random, measure_sequential};
use std::path::PathBuf;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, order, block, depth, seconds, rest @ ..] = &args[..] else {
        return Err("usage: nbd_load SOCKET random|sequential BLOCK DEPTH SECONDS [SEED]".into());
    };
    let load = Load {
        block_bytes: block.parse()?,
        depth: depth.parse()?,
        requests_max: REQUESTS_MAX,
        time_max: Duration::from_secs_f64(seconds.parse()?),
    };
    let socket = PathBuf::from(socket);
    let measured = match order.as_str() {
        "random" => {
            let seed = rest.first().map_or(Ok(1), |seed| seed.parse())?;
            measure_random(&socket, &load, seed)?
        }
        _ => measure_sequential(&socket, &load)?,
    };
    println!(
        "{order} {block} B, depth {depth}: {:.0} requests/s, {:.0} MB/s, \
         p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us",
        measured.requests_per_s,
        measured.mb_per_s,
        measured.p50_us,
        measured.p99_us,
        measured.p999_us
    );
    Ok(())
}
