//! `rdma_client`, `rdma_server`, `ucmatose`: a number of messages each way, of one length.
//!
//! `rdma_client` sends one of 16 bytes and `rdma_server` answers it. With two `ucmatose` the server
//! sends all of its messages first, then the client does.

use crate::node::{DEPTH, Failure, Node, Side};
use sidecore_rdma::{Access, ConnectionId, Region};
use std::net::SocketAddr;

pub(crate) fn run(
    mut node: Node,
    side: Side,
    address: SocketAddr,
    count: usize,
    bytes: u32,
    is_first: bool,
) -> Result<String, Failure> {
    if count > DEPTH {
        return Err(format!("at most {DEPTH} messages").into());
    }
    let own: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    let adapter = node.device.adapter_mut();
    let own = adapter.register(own, Access::NONE)?;
    let other = adapter.register(vec![0; bytes as usize], Access::LOCAL_WRITE)?;
    let connection = match side {
        Side::Serve => {
            let (connection, _) = node.requested()?;
            receives(&mut node, connection, other, count)?;
            node.accept(connection, &[])?;
            connection
        }
        Side::Connect => {
            let prepare = |node: &mut Node, connection| receives(node, connection, other, count);
            node.connect(address, &[], prepare)?.0
        }
    };
    for sends in [is_first, !is_first] {
        for _ in 0..count {
            if sends {
                node.send(connection, own.piece(0, bytes))?;
                continue;
            }
            let came = node.await_done(connection, true)?.bytes;
            if came != bytes {
                return Err(format!("a message of {came} bytes, not {bytes}").into());
            }
        }
    }
    node.close(connection)?;
    Ok(format!(
        r#"{{"messages_each_way": {count}, "bytes": {bytes}}}"#
    ))
}

fn receives(
    node: &mut Node,
    from: ConnectionId,
    region: Region,
    count: usize,
) -> Result<(), Failure> {
    let piece = region.piece(0, region.bytes as u32);
    (0..count as u64).try_for_each(|id| node.post_receive(from, id, piece))
}
