//! Two stacks over a wire in memory: one listens, the other connects and sends a line, which is
//! echoed.
//!
//! `cargo run -p sidecore-net-stack --example two_stacks`
//!
//! No socket, no thread and no clock: time is a number that this program advances from one event to
//! the next, so each run is the same. The round of each stack is receive, settle, calls, transmit.
#![allow(clippy::print_stdout)] // a program for people

use sidecore_net_stack::frame::{Capabilities, Received, ReceivedChecksum};
use sidecore_net_stack::{Cidr, Config, NetError, SessionId, Stack};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// One-way delay of the link, in nanoseconds.
const DELAY_NS: u64 = 50_000;

/// Frames in flight to each end: their arrival times, and their bytes.
#[derive(Default)]
struct Wire([VecDeque<(u64, Vec<u8>)>; 2]);

fn stack(number: u8) -> Result<Stack, NetError> {
    let config = Config {
        addresses: vec![Cidr {
            address: IpAddr::from([10, 0, 0, number]),
            prefix_bits: 24,
        }],
        // Must be secret in an open network: sequence numbers and cookies are derived from it.
        seed: number.into(),
        sessions_max: 16,
        ..Config::default()
    };
    let nic = Capabilities::plain([2, 0, 0, 0, 0, number], 1500);
    Stack::new(config, &nic)
}

/// Lets a stack receive frames that have arrived, and send its own.
fn round(stack: &mut Stack, number: usize, wire: &mut Wire, now_ns: u64) {
    while wire.0[number]
        .front()
        .is_some_and(|frame| frame.0 <= now_ns)
    {
        let Some((_, mut bytes)) = wire.0[number].pop_front() else {
            break;
        };
        let frame = Received {
            bytes: &mut bytes,
            checksum: ReceivedChecksum::Unknown,
            segment_bytes: None,
        };
        stack.receive(now_ns, frame);
    }
    stack.transmit(now_ns, &mut |frame| {
        let bytes = [frame.header, frame.payload[0], frame.payload[1]].concat();
        wire.0[1 - number].push_back((now_ns + DELAY_NS, bytes));
        true
    });
}

/// All data of a session that can be read now.
fn read(stack: &mut Stack, session: SessionId) -> Result<Vec<u8>, NetError> {
    let bytes = stack.peek(session)?.concat();
    stack.consume(session, bytes.len())?;
    Ok(bytes)
}

fn main() -> Result<(), NetError> {
    let (mut client, mut server) = (stack(1)?, stack(2)?);
    let (mut wire, mut now_ns) = (Wire::default(), 0);
    let service = SocketAddr::from(([10, 0, 0, 2], 7));
    let listener = server.listen(service, 4)?;
    let near = client.connect(service, None)?;
    let (mut far, mut said) = (None, false);
    let answer = loop {
        round(&mut client, 0, &mut wire, now_ns);
        round(&mut server, 1, &mut wire, now_ns);
        if !said && client.is_synchronized(near) {
            client.write(near, b"a line over a wire in memory")?;
            said = true;
        }
        far = far.or(server.accept(listener)?);
        if let Some(far) = far {
            let bytes = read(&mut server, far)?;
            server.write(far, &bytes)?;
        }
        let answer = read(&mut client, near)?;
        if !answer.is_empty() {
            break answer;
        }
        // To the next event: a frame arrives, or a timer expires.
        let frames = wire.0.iter().filter_map(|way| Some(way.front()?.0));
        let timers = [client.next_timer(), server.next_timer()];
        let next = frames.chain(timers.into_iter().flatten()).min();
        now_ns = next.unwrap_or(now_ns).max(now_ns + 1);
    };
    println!(
        "after {} us: {}",
        now_ns / 1000,
        String::from_utf8_lossy(&answer)
    );
    Ok(())
}
