//! A stack inside its application, used like by a program, with kernel sockets as its peers. Needs
//! root: each test creates its interfaces in its own network namespace.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::namespace as common;

use common::in_namespace;
use sidecore_net::hosted::host;
use sidecore_net::setup::{Setup, SetupError};
use sidecore_net::sock::client::{Client, ClientError, ClientOptions, Socket};
use sidecore_net::sock::control::SockError;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// A stack at 10.77.0.2; the kernel's end of its TAP has 10.77.0.1.
fn setup(socket: &Path) -> Setup {
    let text = format!(
        "socket = {socket:?}\n[nic]\nkind = \"tap\"\nname = \"hosted\"\nhost = [\"10.77.0.1/24\"]\n\
         [stack]\naddresses = [\"10.77.0.2/24\"]\n"
    );
    Setup::parse(&text).unwrap()
}

/// A client of a stack in this process, the stack's socket, and its folder.
fn hosted() -> (TempDir, PathBuf, Client) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hosted.sock");
    let client = host(&setup(&path), &ClientOptions::default()).unwrap();
    (folder, path, client)
}

/// Echoes at `port`, until `stop`.
fn echo(client: &mut Client, port: u16, stop: &AtomicBool) -> Result<(), ClientError> {
    let listener = client.listen(SocketAddr::from(([0, 0, 0, 0], port)), 16)?;
    let mut bytes = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        client.poll(Duration::from_millis(20))?;
        while let Some(socket) = client.next_ready() {
            if socket == listener {
                while let Some((session, _)) = client.accept(listener) {
                    answer(client, session, &mut bytes)?;
                }
            } else {
                answer(client, socket, &mut bytes)?;
            }
        }
    }
    Ok(())
}

fn answer(client: &mut Client, session: Socket, bytes: &mut [u8]) -> Result<(), ClientError> {
    while let Some(count) = client.read(session, bytes)? {
        if count == 0 {
            return client.close(session);
        }
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            let sent = client.write(session, rest)?;
            rest = &rest[sent..];
            client.poll(Duration::ZERO)?;
        }
    }
    Ok(())
}

/// Sends `bytes` to `port`, and reads back all until the end.
fn ask(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("10.77.0.2", port)).unwrap();
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).unwrap();
    let mut sender = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            sender.write_all(bytes).unwrap();
            sender.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        back
    })
}

#[test]
fn the_kernels_programs_are_answered() {
    in_namespace(|| {
        let (_folder, path, mut own) = hosted();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let serving = std::thread::spawn(move || {
            let served = echo(&mut own, 7, &stopped);
            (own, served)
        });
        let bytes: Vec<u8> = (0..300_000u32).map(|number| (number / 7) as u8).collect();
        // The first may come before it listens.
        while TcpStream::connect(("10.77.0.2", 7)).is_err() {}
        assert!(ask(7, &bytes) == bytes);

        // Another application of the same engine, which runs when its host polls.
        let mut other = Client::attach(&path, &ClientOptions::default()).unwrap();
        let (ended, ends) = (Arc::new(AtomicBool::new(false)), Arc::clone(&stop));
        let over = Arc::clone(&ended);
        let guest = std::thread::spawn(move || {
            echo(&mut other, 8, &over).unwrap();
            other
        });
        while TcpStream::connect(("10.77.0.2", 8)).is_err() {}
        assert!(ask(8, &bytes[..70_000]) == bytes[..70_000]);
        ended.store(true, Ordering::Relaxed);
        let mut other = guest.join().unwrap();

        ends.store(true, Ordering::Relaxed);
        let (own, served) = serving.join().unwrap();
        served.unwrap();
        drop(own);
        // The engine and its socket are gone with its host.
        assert!(other.is_lost());
        assert!(matches!(
            other.poll(Duration::from_secs(1)),
            Err(ClientError::Lost)
        ));
        assert!(Client::attach(&path, &ClientOptions::default()).is_err());
    });
}

#[test]
fn a_wait_ends_in_time_and_what_cannot_be_is_refused() {
    in_namespace(|| {
        let (_folder, path, mut own) = hosted();
        assert_eq!(own.poll(Duration::ZERO).unwrap(), 0);
        assert_eq!(own.poll(Duration::from_millis(30)).unwrap(), 0);
        assert!(!own.is_lost());
        // No host replies: the engine waits for the session in its own time.
        let session = own.connect(SocketAddr::from(([10, 77, 0, 1], 9))).unwrap();
        let mut tries = 0;
        while !own.readiness(session).closed && tries < 1000 {
            own.poll(Duration::from_millis(20)).unwrap();
            tries += 1;
        }
        assert!(own.readiness(session).closed, "a refused session ends");
        drop(own);
        for chunks in [0, u32::MAX] {
            let options = ClientOptions {
                chunks,
                ..ClientOptions::default()
            };
            let error = host(&setup(&path), &options).unwrap_err();
            assert!(
                matches!(error, SetupError::Sock(SockError::Refused { .. })),
                "{error}"
            );
        }
    });
}
