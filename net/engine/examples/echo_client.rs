//! A client of an echo server, as an application on the stack's sockets: it sends its standard
//! input and prints the reply.
//!
//!     sudo sidecore net up net.toml &
//!     sudo sidecore net echo 10.77.0.2:7 &
//!     echo hello | sudo cargo run -p sidecore-net --example echo_client -- 10.77.0.2:7 [SOCKET]
//!
//! SOCKET is the stack's socket; the default path is used without it.

use sidecore_net::sock::client::{Client, ClientError, ClientOptions, Socket};
use sidecore_net::sock::control::default_socket;
use std::error::Error;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo_client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let peer = arguments.next();
    let peer = peer.ok_or("usage: echo_client ADDRESS:PORT [SOCKET]")?;
    let peer: SocketAddr = peer
        .parse()
        .map_err(|_| format!("`{peer}` is not an address and a port, like 10.77.0.2:7"))?;
    let place = arguments.next().map_or_else(default_socket, PathBuf::from);
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;

    let mut client = Client::attach(&place, &ClientOptions::default())?;
    let session = client.connect(peer)?;
    let answer = exchange(&mut client, session, &input)?;
    client.close(session)?;
    std::io::stdout().write_all(&answer)?;
    Ok(())
}

/// Sends all of it, and reads as many bytes.
fn exchange(client: &mut Client, session: Socket, input: &[u8]) -> Result<Vec<u8>, ClientError> {
    let (mut sent, mut answer) = (0, Vec::new());
    let mut piece = vec![0; 64 << 10];
    while answer.len() < input.len() {
        let readiness = client.readiness(session);
        if readiness.writable && sent < input.len() {
            sent += client.write(session, &input[sent..])?;
        }
        match client.read(session, &mut piece)? {
            // The peer sends no more.
            Some(0) => break,
            Some(count) => answer.extend_from_slice(&piece[..count]),
            // Nothing now: sleeps until the next event.
            None => {
                client.poll(Duration::from_secs(1))?;
            }
        }
    }
    Ok(answer)
}
