//! Opens many queue pairs between two devices of this process, uses each both ways, and reports the
//! cost of one: `queue_pairs COUNT kernel`, or `queue_pairs COUNT SOCKET ADDRESS` over the stack
//! whose engine listens at SOCKET and has ADDRESS. Over the kernel a pair takes two open files.

#[path = "../tests/many/mod.rs"]
mod many;

use sidecore_rdma::Transport;
use std::io::Write;
use std::net::SocketAddr;

fn main() -> Result<(), many::Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let (count, socket, local) = match &arguments[..] {
        [_, count, kernel] if kernel == "kernel" => {
            (count, None, SocketAddr::from(([127, 0, 0, 1], 0)))
        }
        [_, count, socket, address] => {
            (count, Some(socket), SocketAddr::new(address.parse()?, 7198))
        }
        _ => return Err("queue_pairs COUNT (kernel | SOCKET ADDRESS)".into()),
    };
    let count: usize = count.parse()?;
    let transport = || match socket {
        Some(socket) => Transport::Stack(socket.into()),
        None => Transport::Kernel,
    };
    let report = many::run(transport, local, count)?;
    let pairs = count as u64;
    writeln!(
        std::io::stdout(),
        "{count} queue pairs, both ends in this process: opened in {:.2} s, each put and told both \
         ways in {:.2} s; resident bytes for both ends of one: {} opened, {} used",
        report.opening.as_secs_f64(),
        report.putting.as_secs_f64(),
        report.opened_bytes / pairs,
        report.used_bytes / pairs,
    )?;
    Ok(())
}
