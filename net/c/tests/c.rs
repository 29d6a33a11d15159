//! The header compiles as C and C++ without a warning; a program in C has sockets of an engine, and
//! notices its end.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

#[path = "../../../daemon/c/tests/common/c.rs"]
mod c;
#[path = "../../engine/tests/common/loopback.rs"]
mod loopback;

use loopback::Loopback;
use sidecore_net::sock::control::{Admission, Control};
use sidecore_sys::local_socket;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn a_program_in_c_has_sockets_and_notices_the_end() {
    for (language, standard) in c::LANGUAGES.into_iter().zip(["gnu99", "gnu++11"]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.sock");
        let own = std::env::current_exe().unwrap();
        // Installed under the names that its header and its soname have.
        let built = own.with_file_name("libsidecore_net_c.so");
        c::install(&built, "libsidecore_net", folder.path());
        let libraries = folder.path().display();
        let options = [
            format!("-std={standard}"),
            format!("-L{libraries}"),
            "-lsidecore_net".to_owned(),
            format!("-Wl,-rpath,{libraries}"),
        ];
        let root = env!("CARGO_MANIFEST_DIR");
        let program = c::compile_with(root, "sockets.c", language, folder.path(), &options);

        let (control, mut server) = Control::start(&path, Admission::default()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            let engine = scope.spawn(move || {
                let (mut stack, mut ready) = (Loopback::default(), Vec::new());
                while !stop.load(Ordering::Acquire) {
                    if server.poll(&mut stack) == 0 {
                        if server.arm() {
                            let nap = Duration::from_millis(20);
                            local_socket::poll(&[server.bell()], &mut ready, nap).unwrap();
                        }
                        server.disarm();
                    }
                }
                server.violations()
            });
            let mut child = Command::new(program);
            let mut child = child.arg(&path).stdout(Stdio::piped()).spawn().unwrap();
            let mut said = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            stop.store(true, Ordering::Release);
            assert_eq!(line, "ready\n");
            assert_eq!(
                engine.join().unwrap(),
                0,
                "rules of the protocol were broken"
            );
            // It has the connections, which tell a client that its engine lives.
            drop(control);
            said.read_line(&mut line).unwrap();
            assert!(line.contains("the engine is gone"), "{line}");
            assert!(child.wait().unwrap().success());
        });
    }
}
