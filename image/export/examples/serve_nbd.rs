//! Serves an image over NBD on a Unix socket until standard input ends.
//!
//! `cargo run --release -p sidecore-export --example serve_nbd -- IMAGE SOCKET`, and then
//! `nbdinfo "nbd+unix:///?socket=SOCKET"`. Anything that implements `BlockSource` can be served.
//! Source: own.

#![allow(clippy::print_stdout)] // A program for people.

use sidecore_block::device::{Device, DeviceConfig};
use sidecore_export::nbd::{Address, Options, Server};
use sidecore_offload::{Pool, PoolConfig};
use std::fs::File;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, socket] = &args[..] else {
        return Err("usage: serve_nbd IMAGE SOCKET".into());
    };
    let pool = Arc::new(Pool::start(PoolConfig::default())?);
    let device = Device::open(File::open(image)?, pool, DeviceConfig::default())?;
    let server = Server::bind(device, &[Address::Unix(socket.into())], Options::default())?;
    let stopper = server.stopper();
    let serving = std::thread::spawn(move || server.run());
    println!("ready");
    // Ends when the terminal does, or when the parent process closes our input.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    stopper.stop();
    serving.join().map_err(|_| "the server panicked")??;
    Ok(())
}
