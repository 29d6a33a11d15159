//! `sidecore block serve --tls-certificates` read by other authors' programs (nbdcopy, nbdinfo and
//! qemu's, over GnuTLS), and attacked by a hostile client.
//!
//! Must stay true: a tool that is missing fails the test and says to run scripts/setup; nothing is
//! left running.

#![allow(clippy::unwrap_used)] // A test's helpers may fail it too.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::serving;

use serving::until_it_says;

fn run(tool: &str, args: &[&str]) -> Output {
    Command::new(tool)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {tool} ({error}); run scripts/setup first"))
}

fn ok(tool: &str, args: &[&str]) -> String {
    let output = run(tool, args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{tool} {args:?}: {said}{printed}");
    printed
}

/// Directories as qemu and nbdkit take them: `server`, `client`, `anybody` without a certificate,
/// `stranger` with a certificate from another authority.
struct Scratch {
    directory: tempfile::TempDir,
    contents: Vec<u8>,
    port: u16,
}

impl Scratch {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let contents: Vec<u8> = (0..12 << 20)
            .map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        std::fs::write(directory.path().join("raw"), &contents).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let scratch = Self {
            directory,
            contents,
            port: port.local_addr().unwrap().port(),
        };
        scratch.block(&["pack", "raw", "-o", "image"]);
        for name in ["server", "client", "anybody", "stranger"] {
            std::fs::create_dir(scratch.path(name)).unwrap();
        }
        scratch.authority("ca");
        scratch.authority("other");
        scratch.certificate("ca", "server", "server");
        scratch.certificate("ca", "client", "client");
        scratch.certificate("other", "stranger", "client");
        for name in ["server", "client", "anybody", "stranger"] {
            let copy = scratch.path(name).join("ca-cert.pem");
            std::fs::copy(scratch.path("ca.pem"), copy).unwrap();
        }
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn authority(&self, name: &str) {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
        self.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "30",
            "-subj",
            &format!("/CN={name}"),
            "-keyout",
            &key,
            "-out",
            &certificate,
        ]);
    }

    fn certificate(&self, authority: &str, directory: &str, role: &str) {
        let file = |what: &str| format!("{directory}/{role}-{what}.pem");
        self.openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            &format!("/CN={role}"),
            "-keyout",
            &file("key"),
            "-out",
            "request",
        ]);
        let names = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
        std::fs::write(self.path("extensions"), names).unwrap();
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            "request",
            "-days",
            "30",
            "-extfile",
            "extensions",
            "-CA",
            &format!("{authority}.pem"),
            "-CAkey",
            &format!("{authority}.key"),
            "-CAcreateserial",
            "-out",
            &file("cert"),
        ]);
    }

    fn openssl(&self, args: &[&str]) {
        let mut command = Command::new("openssl");
        let output = command
            .args(args)
            .current_dir(self.directory.path())
            .output();
        let output = output.unwrap_or_else(|error| panic!("openssl ({error}): run scripts/setup"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        command.arg("block").args(args);
        command.current_dir(self.directory.path());
        command
    }

    fn block(&self, args: &[&str]) {
        let output = self.command(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
    }

    fn serve(&self, options: &[&str]) -> Serving {
        let tcp = format!("tcp:127.0.0.1:{}", self.port);
        let first = ["serve", "image", "--nbd", &tcp, "--nbd", "unix:socket"];
        let tls = ["--tls-certificates", "server"];
        let mut command = self.command(&[&first[..], &tls, options].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        until_it_says(&mut child, "ready\n");
        Serving(child)
    }

    /// The server's URI, for a client with the certificates in this directory.
    fn uri(&self, directory: &str) -> String {
        let certificates = self.text(directory);
        format!(
            "nbds://localhost:{}/?tls-certificates={certificates}",
            self.port
        )
    }

    fn assert_copied(&self, uri: &str) {
        let copy = self.text("copy");
        ok("nbdcopy", &["--connections=3", uri, &copy]);
        assert!(std::fs::read(&copy).unwrap() == self.contents);
        std::fs::remove_file(&copy).unwrap();
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }
}

struct Serving(Child);

impl Serving {
    fn end(mut self) -> Option<i32> {
        ok("kill", &["-INT", &self.0.id().to_string()]);
        self.0.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn others_clients_read_with_tls_and_not_without() {
    let scratch = Scratch::new();
    let serving = scratch.serve(&[]);
    let uri = scratch.uri("anybody");
    scratch.assert_copied(&uri);
    let socket = scratch.text("socket");
    let certificates = scratch.text("anybody");
    let query = format!("socket={socket}&tls-certificates={certificates}&tls-hostname=localhost");
    scratch.assert_copied(&format!("nbds+unix:///?{query}"));
    let told = ok("nbdinfo", &[&uri]);
    assert!(told.contains("with TLS"), "{told}");

    // Qemu's own client.
    let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={certificates}");
    let options = format!(
        "driver=nbd,host=localhost,port={},tls-creds=tls",
        scratch.port
    );
    let copy = scratch.text("qemu.raw");
    let source = ["convert", "--object", &object, "--image-opts", &options];
    ok("qemu-img", &[&source[..], &["-O", "raw", &copy]].concat());
    assert!(std::fs::read(&copy).unwrap() == scratch.contents);

    // A plain client gets nothing, and reports the reason.
    let plain = format!("nbd://localhost:{}", scratch.port);
    assert!(!run("nbdinfo", &[&plain]).status.success());
    let output = run("qemu-img", &["info", &plain]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains("TLS"), "{said}");
    // A client that trusts another authority rejects our certificate.
    let other = scratch.path("anybody").join("ca-cert.pem");
    std::fs::copy(scratch.path("other.pem"), other).unwrap();
    assert!(!run("nbdinfo", &[&uri]).status.success());
    assert_eq!(serving.end(), Some(0));
}

#[test]
fn with_verify_peer_only_certificates_by_its_authority_count() {
    let scratch = Scratch::new();
    let _serving = scratch.serve(&["--tls-verify-peer"]);
    scratch.assert_copied(&scratch.uri("client"));
    for refused in ["anybody", "stranger"] {
        let output = run("nbdinfo", &[&scratch.uri(refused)]);
        assert!(!output.status.success(), "{refused}");
    }
    scratch.assert_copied(&scratch.uri("client"));
}

#[test]
fn writes_and_flushes_go_through_it() {
    let mut scratch = Scratch::new();
    let serving = scratch.serve(&["--overlay", "overlay"]);
    let object = format!(
        "tls-creds-x509,id=tls,endpoint=client,dir={}",
        scratch.text("client")
    );
    let options = format!(
        "driver=nbd,host=localhost,port={},tls-creds=tls",
        scratch.port
    );
    let args = [
        "--object",
        &object,
        "--image-opts",
        &options,
        "-c",
        "write -P 0x55 1M 1M",
        "-c",
        "flush",
        "-c",
        "read -P 0x55 1M 1M",
    ];
    let printed = ok("qemu-io", &args);
    assert!(!printed.contains("failed"), "{printed}");
    scratch.contents[1 << 20..2 << 20].fill(0x55);
    scratch.assert_copied(&scratch.uri("client"));
    assert_eq!(serving.end(), Some(0));
}

/// The greeting, and the option that begins TLS; `behind` is sent with it in plain.
fn start_tls(stream: &mut TcpStream, behind: &[u8]) {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    let mut out = 3_u32.to_be_bytes().to_vec();
    out.extend(b"IHAVEOPT");
    out.extend(5_u32.to_be_bytes());
    out.extend(0_u32.to_be_bytes());
    out.extend(behind);
    stream.write_all(&out).unwrap();
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[12..16], 1_u32.to_be_bytes(), "an acknowledgement");
}

/// KeyUpdate (RFC 8446, section 4.6.3), which requests one in return: between requests, and behind
/// some whose replies are in flight.
#[test]
fn a_client_may_change_its_keys_at_any_time() {
    let scratch = Scratch::new();
    let serving = scratch.serve(&[]);
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(scratch.path("ca.pem")).unwrap();
    roots.add(authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client =
        rustls::ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = scratch.connect();
    start_tls(&mut stream, &[]);
    let mut tls = rustls::StreamOwned::new(client, stream);
    // NBD_OPT_EXPORT_NAME: the replies that follow are simple ones.
    tls.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    let mut export = [0; 10];
    tls.read_exact(&mut export).unwrap();
    assert_eq!(export[..8], (scratch.contents.len() as u64).to_be_bytes());

    let piece = 1 << 20;
    for changes in [0, 1, 3, 20] {
        // Four replies of a mebibyte are more than any socket holds.
        for number in 0..4_u64 {
            let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
            request.extend([0; 4]);
            request.extend(number.to_be_bytes());
            request.extend((number * piece).to_be_bytes());
            request.extend((piece as u32).to_be_bytes());
            tls.write_all(&request).unwrap();
            for _ in 0..changes {
                tls.conn.refresh_traffic_keys().unwrap();
            }
        }
        tls.flush().unwrap();
        let mut seen = [false; 4];
        for _ in 0..4 {
            let mut head = [0; 16];
            tls.read_exact(&mut head).unwrap();
            assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
            let number = u64::from_be_bytes(head[8..].try_into().unwrap());
            let mut bytes = vec![0; piece as usize];
            tls.read_exact(&mut bytes).unwrap();
            let start = (number * piece) as usize;
            assert!(bytes == scratch.contents[start..start + bytes.len()]);
            seen[number as usize] = true;
        }
        assert_eq!(seen, [true; 4], "{changes} changes of keys");
    }
    // A client that only changes keys is not one: the server ends that connection alone.
    for _ in 0..100 {
        tls.conn.refresh_traffic_keys().unwrap();
    }
    let ended = tls.flush().and_then(|()| tls.read(&mut [0; 16]));
    assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes == 0));
    scratch.assert_copied(&scratch.uri("anybody"));
    assert_eq!(serving.end(), Some(0));
}

#[test]
fn a_hostile_client_harms_nobody_else() {
    let scratch = Scratch::new();
    let _serving = scratch.serve(&[]);
    let ends = |stream: &mut TcpStream| {
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        rest
    };
    // Options in plain behind the start of TLS, which a man in the middle could have injected.
    let mut stream = scratch.connect();
    start_tls(&mut stream, b"IHAVEOPT\0\0\0\x03\0\0\0\0");
    assert!(ends(&mut stream).is_empty());
    // Noise for a handshake.
    let mut stream = scratch.connect();
    start_tls(&mut stream, &[]);
    stream.write_all(&[0xa5; 4096]).unwrap();
    // At most an alert.
    assert!(ends(&mut stream).len() < 100);
    // Half of a record, and then nothing; a few that stop within the handshake and leave.
    let mut waiting = scratch.connect();
    start_tls(&mut waiting, &[]);
    waiting.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    for _ in 0..20 {
        let mut stream = scratch.connect();
        start_tls(&mut stream, &[]);
    }
    // An option that names an export, in plain.
    let mut stream = scratch.connect();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(&3_u32.to_be_bytes()).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    assert!(ends(&mut stream).is_empty());
    scratch.assert_copied(&scratch.uri("anybody"));
    // The server closes it by itself.
    assert!(ends(&mut waiting).is_empty());
    scratch.assert_copied(&scratch.uri("anybody"));
}

/// Python's own TLS: a read of 12 MiB; the server gets its signal after a part of it.
const HALF: &str = r#"
import os, signal, socket, ssl, struct, sys
port, server = int(sys.argv[1]), int(sys.argv[2])
plain = socket.socket()
plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
plain.connect(("127.0.0.1", port))
plain.recv(18, socket.MSG_WAITALL)
plain.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 5, 0))
plain.recv(20, socket.MSG_WAITALL)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
tls = context.wrap_socket(plain)
def take(count):
    taken = b""
    while len(taken) < count:
        more = tls.recv(min(count - len(taken), 1 << 16))
        if not more:
            break
        taken += more
    return taken
tls.sendall(b"IHAVEOPT" + struct.pack(">II", 1, 0))
take(8 + 2 + 0)
size = 6 << 20
tls.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, 7, 0, size))
got = take(16 + 100000)
os.kill(server, signal.SIGINT)
got += take(16 + size - len(got))
print(len(got) - 16)
"#;

#[test]
fn replies_under_way_are_finished_when_the_server_stops() {
    let scratch = Scratch::new();
    let mut serving = scratch.serve(&[]);
    let pid = serving.0.id().to_string();
    let printed = ok("python3", &["-c", HALF, &scratch.port.to_string(), &pid]);
    assert_eq!(printed.trim(), (6 << 20).to_string());
    assert_eq!(serving.0.wait().unwrap().code(), Some(0));
}

#[test]
fn certificates_that_cannot_be_used_are_refused_in_one_line() {
    let scratch = Scratch::new();
    let refused = |options: &[&str], why: &str| {
        let args = [&["serve", "image", "--nbd", "unix:socket"], options].concat();
        let output = scratch.command(&args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(why), "{said}");
    };
    refused(&["--tls-certificates", "nowhere"], "server-cert.pem");
    let with = |name: &str, bytes: &str| {
        let directory = scratch.path(name);
        std::fs::create_dir(&directory).unwrap();
        for file in ["server-cert.pem", "server-key.pem"] {
            std::fs::copy(scratch.path("server").join(file), directory.join(file)).unwrap();
        }
        std::fs::write(Path::new(&directory).join("server-key.pem"), bytes).unwrap();
    };
    with("empty", "");
    refused(&["--tls-certificates", "empty"], "server-key.pem");
    // The key of another certificate.
    let key = std::fs::read_to_string(scratch.path("client").join("client-key.pem")).unwrap();
    with("another", &key);
    refused(&["--tls-certificates", "another"], "server-key.pem");
    with(
        "alone",
        &std::fs::read_to_string(scratch.path("server/server-key.pem")).unwrap(),
    );
    let both = ["--tls-certificates", "alone", "--tls-verify-peer"];
    refused(&both, "ca-cert.pem");
}
