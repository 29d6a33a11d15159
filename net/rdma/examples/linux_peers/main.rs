//! The other ends of the tools that Linux users test RDMA with: rdmacm-utils' `rdma_client`,
//! `rdma_server`, `ucmatose` and `rcopy`, and perftest's `ib_{send,write,read}_{lat,bw} -R`.
//!
//! ```text
//! linux_peers [--socket PATH] messages serve|connect ADDRESS COUNT BYTES [first]
//! linux_peers [--socket PATH] perftest serve|connect ADDRESS send|write|read lat|bw COUNT BYTES
//! linux_peers [--socket PATH] rcopy serve ADDRESS FOLDER
//! linux_peers [--socket PATH] rcopy connect ADDRESS FILE NAME
//! ```
//!
//! Over a running stack's engine at PATH, else over the kernel's TCP. A server prints `ready
//! ADDRESS`, serves one client and ends; each end prints one line of JSON. `net/rdma/guest/run`
//! runs all of them against Linux's software iWARP.
//!
//! The tools' exchanges, as observed on the wire, are described at the head of each file.

mod messages;
mod node;
mod perftest;
mod rcopy;
mod rsocket;

use node::{Failure, Node, Side};
use sidecore_rdma::Transport;
use std::io::Write;
use std::net::SocketAddr;

fn main() -> Result<(), Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut transport = Transport::Kernel;
    if arguments.first().is_some_and(|first| first == "--socket") && arguments.len() > 1 {
        transport = Transport::Stack(arguments.remove(1).into());
        arguments.remove(0);
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [tool, side, address, rest @ ..] = words.as_slice() else {
        return Err("usage: linux_peers [--socket PATH] TOOL serve|connect ADDRESS ...".into());
    };
    let side = match *side {
        "serve" => Side::Serve,
        "connect" => Side::Connect,
        other => return Err(format!("serve or connect, not {other}").into()),
    };
    let address: SocketAddr = address.parse()?;
    let mut node = Node::new(transport)?;
    if side == Side::Serve {
        let address = node.listen(address)?;
        let mut out = std::io::stdout();
        writeln!(out, "ready {address}")?;
        out.flush()?;
    }
    let said = match (*tool, side, rest) {
        ("messages", _, [count, bytes, first @ ..]) => {
            let is_first = *first == ["first"];
            messages::run(
                node,
                side,
                address,
                count.parse()?,
                bytes.parse()?,
                is_first,
            )?
        }
        ("perftest", _, [kind, measure, count, bytes]) => {
            let test = perftest::Test {
                kind: kind.parse()?,
                measure: measure.parse()?,
                count: count.parse()?,
                bytes: bytes.parse()?,
            };
            perftest::run(node, side, address, test)?
        }
        ("rcopy", Side::Serve, [folder]) => rcopy::serve(node, folder.as_ref())?,
        ("rcopy", Side::Connect, [file, name]) => rcopy::send(node, address, file.as_ref(), name)?,
        _ => return Err(format!("{tool}: see the head of main.rs").into()),
    };
    writeln!(std::io::stdout(), "{said}")?;
    Ok(())
}
