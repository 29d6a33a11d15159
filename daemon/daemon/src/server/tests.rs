//! Tests that need no other process: options, the socket's path.

use super::*;

fn options(folder: &Path) -> DaemonOptions {
    DaemonOptions {
        socket: folder.join("daemon.sock"),
        engines: 1,
        ..DaemonOptions::default()
    }
}

#[test]
fn options_that_make_no_sense_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut DaemonOptions)| {
        let mut options = options(folder.path());
        change(&mut options);
        let text = Daemon::start(options).unwrap_err().to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    };
    let cores = sidecore_sys::cpu::allowed().unwrap().len();
    if cores < ENGINES_MAX {
        let text = refused(&|options| options.engines = cores + 1);
        assert!(text.contains("--oversubscribe"), "{text}");
    }
    let text = refused(&|options| options.engines = ENGINES_MAX + 1);
    assert!(text.contains("1 to 62"), "{text}");
    let text = refused(&|options| options.clients_max = 0);
    assert!(text.contains("1 to 120"), "{text}");
    let text = refused(&|options| options.core.store_bytes = 1 << 10);
    assert!(
        text.contains("echo") || text.contains("local store"),
        "{text}"
    );
}

#[test]
fn clients_get_less_than_the_groups_memory() {
    let mut options = DaemonOptions::default();
    assert_eq!(options.within(None), None);
    assert_eq!(options.within(Some(16 << 30)), None);
    assert_eq!(
        (options.bytes_max, options.user_bytes_max),
        (2 << 30, 512 << 20)
    );
    assert_eq!(options.within(Some(400 << 20)), Some(300 << 20));
    assert_eq!(
        (options.bytes_max, options.user_bytes_max),
        (300 << 20, 300 << 20)
    );
}

#[test]
fn a_socket_has_one_daemon_and_is_left_clean() {
    let folder = tempfile::tempdir().unwrap();
    let first = Daemon::start(options(folder.path())).unwrap();
    let error = Daemon::start(options(folder.path())).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, DaemonError::InUse { pid: Some(pid), .. } if pid == std::process::id())
    );
    assert!(text.contains("already serves at"), "{text}");
    let socket = first.socket().to_owned();
    first.stop();
    assert!(!socket.exists());
    let stopper = {
        let second = Daemon::start(options(folder.path())).unwrap();
        let stopper = second.stopper();
        stopper.stop();
        second.wait();
        stopper
    };
    stopper.stop();
    assert!(!socket.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_other_things_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    // A socket without a listener, as a killed daemon leaves it.
    drop(local_socket::listen(&options.socket, 0o600, 1).unwrap());
    assert!(options.socket.exists());
    Daemon::start(options.clone()).unwrap().stop();
    std::fs::write(&options.socket, "a file").unwrap();
    let error = Daemon::start(options.clone()).unwrap_err();
    assert!(matches!(error, DaemonError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read(&options.socket).unwrap(), b"a file");
}

#[test]
fn a_socket_of_another_user_is_left_alone() {
    if local_socket::effective_uid() != 0 {
        // Only root can make one.
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    drop(local_socket::listen(&options.socket, 0o600, 1).unwrap());
    std::os::unix::fs::chown(&options.socket, Some(12_345), None).unwrap();
    let error = Daemon::start(options.clone()).unwrap_err();
    assert!(error.to_string().contains("user 12345"), "{error}");
    assert!(options.socket.exists());
}
