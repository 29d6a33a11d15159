//! A server's side: its socket in the folder of the user's servers, and the protocol there: one
//! line of JSON in, one line of JSON out.
//!
//! Must stay true: a server that cannot publish itself serves all the same. The socket gets its
//! name only when it accepts connections, so that a reader takes a socket that refuses them for a
//! dead server's. Any bytes of a client have an answer or an end. Any thread.

use crate::place::{Servers, servers_of_this_user};
use crate::service::{Dialect, Service, Step};
use crate::{Kind, Status};
use rustix::fs::RenameFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use serde_json::{Value, json};
use sidecore_sys::folder::Folder;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A published server, until it is dropped.
#[derive(Debug)]
pub struct Publisher(Option<Published>);

#[derive(Debug)]
struct Published {
    folder: Folder,
    name: OsString,
    _service: Service,
}

impl Publisher {
    /// Publishes this process as a server of this user. `fields` returns the fields of the kind as
    /// a JSON object; see [`Status::new`]. A failure is logged, at level `info`, and no more.
    pub fn start(
        kind: Kind,
        name: impl Into<String>,
        fields: impl Fn() -> Value + Send + 'static,
    ) -> Self {
        Self::of(&Status::new(kind, name, fields))
    }

    /// Publishes a status in the folder of this user's servers, as [`Publisher::start`] does.
    #[must_use]
    pub fn of(status: &Arc<Status>) -> Self {
        Self::publish(&servers_of_this_user(), status)
    }

    /// As [`Publisher::start`], in another folder.
    pub fn start_in(
        servers: &Servers,
        kind: Kind,
        name: impl Into<String>,
        fields: impl Fn() -> Value + Send + 'static,
    ) -> Self {
        Self::publish(servers, &Status::new(kind, name, fields))
    }

    fn publish(servers: &Servers, status: &Arc<Status>) -> Self {
        let folder = servers.create().map_err(|error| error.to_string());
        let published = folder.and_then(|folder| {
            let published = Published::new(folder, status);
            published.map_err(|error| format!("{}: {error}", servers.path().display()))
        });
        if let Err(error) = &published {
            tracing::info!("not in the list of servers: {error}");
        }
        Self(published.ok())
    }

    /// True if readers can find it.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.0.is_some()
    }
}

impl Published {
    fn new(folder: Folder, status: &Arc<Status>) -> io::Result<Self> {
        let hidden = folder.unused_name();
        let named = listener(&folder, &hidden)
            .and_then(|listener| Ok((listener, take_name(&folder, &hidden, status.kind())?)));
        let (listener, name) = named.inspect_err(|_| {
            // Best effort: the error that led here is the one to report.
            folder.remove_file(&hidden).ok();
        })?;
        let service = Service::start("status", listener, Lines(Arc::clone(status)));
        let service = service.inspect_err(|_| {
            folder.remove_file(&name).ok();
        })?;
        Ok(Self {
            folder,
            name,
            _service: service,
        })
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // A reader may have been faster, or the folder is gone.
        self.folder.remove_file(&self.name).ok();
    }
}

fn listener(folder: &Folder, name: &OsString) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before bind(2), which gives the file its mode.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(folder.reach(name))?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Gives the socket the first free name of this kind and process.
fn take_name(folder: &Folder, hidden: &OsString, kind: Kind) -> io::Result<OsString> {
    let pid = std::process::id();
    for _ in 0..NAMES_MAX {
        // Relaxed: only the numbers must differ.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from(format!("{}-{pid}-{number}.sock", kind.name()));
        // Another process may have this number in another PID namespace.
        let renamed =
            rustix::fs::renameat_with(folder, hidden, folder, &name, RenameFlags::NOREPLACE);
        match renamed {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}

/// Answers for one status.
struct Lines(Arc<Status>);

impl Dialect for Lines {
    fn step(&self, input: &[u8]) -> Step {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
            // A client that never ends its line must not fill the memory.
            return match input.len() > LINE_BYTES_MAX {
                true => Step::Close,
                false => Step::More,
            };
        };
        // Text that is no JSON becomes null, which has no `op`.
        let request = serde_json::from_slice::<Value>(&input[..end]).unwrap_or_default();
        let answer = match request["op"].as_str() {
            Some("status") => self.0.value(),
            Some("metrics") => {
                // Many lines: the end of the connection is the end of the text.
                let bytes = self.0.metrics().into_bytes();
                let (used, last) = (end + 1, true);
                return Step::Answer { used, bytes, last };
            }
            Some("act") => self.0.act(&request),
            _ => json!({"error": "unknown request; ask {\"op\":\"status\"}"}),
        };
        let mut bytes = answer.to_string().into_bytes();
        bytes.push(b'\n');
        Step::Answer {
            used: end + 1,
            bytes,
            last: false,
        }
    }
}

/// The number of the next server of this process.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// Names that are tried.
const NAMES_MAX: usize = 1000;
/// Clients that wait to be accepted.
const BACKLOG: i32 = 64;
/// The longest line of a client.
const LINE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step(input: &[u8]) -> Step {
        Lines(Status::new(
            Kind::Daemon,
            "a\nb",
            || json!({"jobs_total": 2}),
        ))
        .step(input)
    }

    #[test]
    fn a_line_gets_a_line() {
        let Step::Answer { used, bytes, last } = step(b"{\"op\":\"status\"}\nmore") else {
            panic!("no answer");
        };
        assert_eq!((used, last), (16, false));
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["jobs_total"], &value["name"]),
            (&json!(2), &json!("a\nb"))
        );
        assert!(matches!(step(b"{\"op\":"), Step::More));
        assert!(matches!(step(&[b'x'; LINE_BYTES_MAX + 1]), Step::Close));
    }

    proptest! {
        #[test]
        fn any_line_has_an_answer(mut line in prop::collection::vec(any::<u8>(), 0..200)) {
            line.retain(|&byte| byte != b'\n');
            line.push(b'\n');
            let Step::Answer { used, bytes, .. } = step(&line) else {
                panic!("no answer")
            };
            prop_assert_eq!(used, line.len());
            prop_assert_eq!(bytes.last(), Some(&b'\n'));
        }
    }
}
