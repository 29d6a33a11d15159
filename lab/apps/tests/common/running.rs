//! A stack on a TAP in the caller's network namespace, with small servers on it.
//!
//! Both ends of a test's sessions: plain sockets of the kernel, and clients that are polled.
#![allow(clippy::unwrap_used, dead_code)] // Helper functions of tests; each test uses some.

use sidecore_net::setup::Setup;
use sidecore_net::sock::client::{Client, ClientOptions, Socket, siblings};
use sidecore_net_apps::{Served, Service, serve_engines};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A stack at 10.77.0.2 and fd77::2 on a TAP whose other end is 10.77.0.1 and fd77::1.
pub(crate) struct Running {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    stop_servers: Arc<AtomicBool>,
    engine: Option<JoinHandle<()>>,
    servers: Vec<JoinHandle<Served>>,
}

impl Running {
    pub(crate) fn up() -> Self {
        Self::with("")
    }

    /// The same with more in the stack's part of its configuration.
    pub(crate) fn with(more: &str) -> Self {
        let nic = "kind = \"tap\"\nname = \"sidecore0\"\nhost = [\"10.77.0.1/24\", \"fd77::1/64\"]";
        Self::on(nic, more)
    }

    /// The same on another NIC, whose other end has these addresses.
    pub(crate) fn on(nic: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("net.sock");
        let text = format!(
            "socket = {socket:?}\n[nic]\n{nic}\n\
             [stack]\naddresses = [\"10.77.0.2/24\", \"fd77::2/64\"]\n{more}\n"
        );
        let mut engines = Setup::parse(&text).unwrap().bring_up_engines().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let engine = std::thread::spawn(move || engines.run(&stopped).unwrap());
        Self {
            folder,
            stop,
            stop_servers: Arc::default(),
            engine: Some(engine),
            servers: Vec::new(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    pub(crate) fn serve(&mut self, service: Service, local: &str) {
        let local: SocketAddr = local.parse().unwrap();
        let sockets = siblings(&self.path(), &ClientOptions::default().trust).unwrap();
        let clients: Vec<Client> = sockets.iter().map(|path| attach(path)).collect();
        let stop = Arc::clone(&self.stop_servers);
        let (ready, is_ready) = std::sync::mpsc::channel();
        self.servers.push(std::thread::spawn(move || {
            let listening = || ready.send(()).unwrap();
            serve_engines(clients, service, local, &stop, listening).unwrap()
        }));
        is_ready.recv().unwrap();
    }

    pub(crate) fn down(mut self) -> Vec<Served> {
        self.stop_servers.store(true, Ordering::Release);
        let servers = std::mem::take(&mut self.servers);
        let served = servers.into_iter().map(|server| server.join().unwrap());
        let served = served.collect();
        self.stop.store(true, Ordering::Release);
        self.engine.take().unwrap().join().unwrap();
        served
    }
}

pub(crate) fn attach(path: &Path) -> Client {
    Client::attach(path, &ClientOptions::default()).unwrap()
}

/// A session of the kernel's.
pub(crate) fn connect(address: &str) -> TcpStream {
    let address: SocketAddr = address.parse().unwrap();
    let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// 64 bytes to an echo server, and back.
pub(crate) fn round_trip(stream: &mut TcpStream, byte: u8) {
    stream.write_all(&[byte; 64]).unwrap();
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [byte; 64]);
}

/// A datagram to an echo server, and back.
pub(crate) fn datagram(address: &str, bytes: &[u8]) {
    let own = if address.starts_with('[') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(own).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(address).unwrap();
    socket.send(bytes).unwrap();
    let mut answer = vec![0; bytes.len() + 1];
    let length = socket.recv(&mut answer).unwrap();
    assert_eq!(&answer[..length], bytes);
}

/// A session of ours, once it is open.
pub(crate) fn open(client: &mut Client, address: &str) -> Socket {
    let session = client.connect(address.parse().unwrap()).unwrap();
    until(client, |client| {
        client.readiness(session).writable.then_some(())
    });
    session
}

/// Polls until `found` finds something.
pub(crate) fn until<T>(client: &mut Client, mut found: impl FnMut(&mut Client) -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(it) = found(client) {
            return it;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not happen");
        client.poll(Duration::from_millis(100)).unwrap();
    }
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
