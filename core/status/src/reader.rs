//! A reader's side: asks all servers at once, within one time limit.
//!
//! Must stay true: silent servers cost the time limit together, not each. The sizes of answers,
//! one by one and all together, and the number of servers are bounded. The user and the process of
//! a server are those that the kernel names. A socket that refuses connections is removed. Source:
//! unix(7), openat2(2).

use crate::Kind;
use crate::place::{self, Opened, Servers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use serde::Serialize;
use serde_json::{Map, Value};
use sidecore_sys::local_socket;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// A live server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Server {
    /// Its kind.
    pub kind: Kind,
    /// Its process, as this process's PID namespace has it.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its name: an image's, an address. Foreign text; empty where it did not answer.
    pub name: String,
    /// The time of its start, in seconds since 1970; 0 where it did not answer.
    pub started_unix_s: u64,
    /// False where it was silent, or answered nonsense.
    pub is_answering: bool,
    /// The fields of its kind. Foreign text and numbers.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// The users whose servers are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// This user.
    Mine,
    /// All users, where this one is root; else this user.
    All,
}

/// The live servers, in the order of kind, user, process and start. Blocks for `timeout` at most.
#[must_use]
pub fn list(whose: Whose, timeout: Duration) -> Vec<Server> {
    let deadline = Instant::now() + timeout;
    let mut folders = place::of_this_user();
    if whose == Whose::All {
        folders.extend(place::of_other_users());
    }
    ask_all(&folders, deadline)
}

impl Servers {
    /// The live servers in this folder, as [`list`] does.
    #[must_use]
    pub fn list(&self, timeout: Duration) -> Vec<Server> {
        let deadline = Instant::now() + timeout;
        let folders: Vec<_> = self.open().into_iter().collect();
        ask_all(&folders, deadline)
    }
}

/// Asks the first server for which `is_it` is true to act, one of this user before those of others:
/// `request` is a JSON object with `op` as `"act"`. Returns its answer; `None` where there is no
/// such server, or it did not answer in time. Blocks for `timeout` at most.
#[must_use]
pub fn act(
    whose: Whose,
    is_it: &dyn Fn(&Server) -> bool,
    request: &Value,
    timeout: Duration,
) -> Option<Map<String, Value>> {
    let deadline = Instant::now() + timeout;
    let mut folders = place::of_this_user();
    if whose == Whose::All {
        folders.extend(place::of_other_users());
    }
    let line = format!("{request}\n");
    let mut all = own_first(&folders).into_iter();
    all.find_map(|(folder, name, kind, pid)| {
        let one = |line: &[u8]| {
            let asked = ask(&folders[folder], &name, kind, pid, line)?;
            let server = hear_one(asked, deadline);
            server.is_answering.then_some(server)
        };
        let found = one(REQUEST).filter(|server| is_it(server))?;
        let answered = one(line.as_bytes()).map(|server| server.fields);
        // The right one was found: no other is asked, though it did not answer.
        Some((found, answered))
    })
    .and_then(|(_, answered)| answered)
}

/// Waits for one answer.
fn hear_one(asked: Asked, deadline: Instant) -> Server {
    let mut room_bytes = ANSWER_BYTES_MAX;
    let mut asked = [asked];
    while asked[0].socket.is_some() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        hear(&mut asked, left, &mut room_bytes);
    }
    let [asked] = asked;
    asked.server
}

/// A server that was asked.
struct Asked {
    server: Server,
    /// The connection, until it has answered or failed.
    socket: Option<OwnedFd>,
    received: Vec<u8>,
}

fn ask_all(folders: &[Opened], deadline: Instant) -> Vec<Server> {
    let mut waiting = candidates(folders);
    // Taken from the end.
    waiting.reverse();
    let mut asked: Vec<Asked> = Vec::new();
    let mut room_bytes = ALL_BYTES_MAX;
    loop {
        let open = asked.iter().filter(|it| it.socket.is_some()).count();
        for _ in open..OPEN_MAX {
            let Some((folder, name, kind, pid)) = waiting.pop() else {
                break;
            };
            asked.extend(ask(&folders[folder], &name, kind, pid, REQUEST));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if asked.iter().all(|it| it.socket.is_none()) && waiting.is_empty() || left.is_zero() {
            break;
        }
        hear(&mut asked, left, &mut room_bytes);
    }
    let mut servers: Vec<Server> = asked.into_iter().map(|asked| asked.server).collect();
    servers.sort_by(|a, b| {
        let key = |it: &Server| (it.kind, it.uid, it.started_unix_s, it.pid);
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    servers
}

/// The sockets in the folders: index of the folder, file's name, kind and process. One of each
/// folder after the other, so that no user's many servers hide another's.
fn candidates(folders: &[Opened]) -> Vec<(usize, OsString, Kind, u32)> {
    let own = local_socket::effective_uid();
    let mut all = Vec::new();
    for (index, opened) in folders.iter().enumerate() {
        let most = if opened.uid == own {
            OWN_MAX
        } else {
            OTHERS_MAX
        };
        let names = opened.folder.names().unwrap_or_default();
        let mut found: Vec<_> = names
            .into_iter()
            .filter_map(|name| {
                let (kind, pid) = parse(&name)?;
                Some((index, name, kind, pid))
            })
            .collect();
        // In a fixed order, so that the same servers are left out each time.
        found.sort();
        found.truncate(most);
        all.extend(found.into_iter().enumerate());
    }
    all.sort();
    all.into_iter().map(|(_, found)| found).collect()
}

/// As [`candidates`], but those of this user first: another user's server may claim any name, and
/// would answer in the place of the right one.
fn own_first(folders: &[Opened]) -> Vec<(usize, OsString, Kind, u32)> {
    let own = local_socket::effective_uid();
    let mut all = candidates(folders);
    all.sort_by_key(|(folder, ..)| folders[*folder].uid != own);
    all
}

/// Kind and process of `KIND-PID-N.sock`.
fn parse(name: &OsStr) -> Option<(Kind, u32)> {
    let mut parts = name.to_str()?.strip_suffix(".sock")?.split('-');
    let kind = Kind::of_name(parts.next()?)?;
    let pid = parts.next()?.parse().ok()?;
    let _: u32 = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((kind, pid))
}

/// Sends the request to the server behind a socket. None where there is none.
fn ask(opened: &Opened, name: &OsStr, kind: Kind, pid: u32, request: &[u8]) -> Option<Asked> {
    let mut asked = Asked {
        server: Server {
            kind,
            pid,
            uid: opened.uid,
            name: String::new(),
            started_unix_s: 0,
            is_answering: false,
            fields: Map::new(),
        },
        socket: None,
        received: Vec::new(),
    };
    // By a descriptor: a name may lead elsewhere by the time that it is connected to.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let walk = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let file = openat2(&opened.folder, name, flags, Mode::empty(), walk).ok()?;
    let stat = fstat(&file).ok()?;
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    if !is_socket || stat.st_uid != opened.uid {
        return None;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match connect(&socket, &SocketAddrUnix::new(path).ok()?) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => {
            // Killed. It accepted connections before it had this name, so it is not just starting.
            opened.folder.remove_file(name).ok();
            return None;
        }
        // Alive, and too busy to accept.
        Err(Errno::AGAIN) => return Some(asked),
        Err(_) => return None,
    }
    let peer = local_socket::peer(socket.as_fd()).ok()?;
    if peer.uid != opened.uid {
        return None;
    }
    // It is 0 where the server is in another PID namespace.
    asked.server.pid = u32::try_from(peer.pid)
        .ok()
        .filter(|it| *it != 0)
        .unwrap_or(pid);
    // A socket that was just connected has room for a line.
    if send(&socket, request, SendFlags::NOSIGNAL) == Ok(request.len()) {
        asked.socket = Some(socket);
    }
    Some(asked)
}

/// Waits for answers, for `left` at most, and takes what is there.
fn hear(asked: &mut [Asked], left: Duration, room_bytes: &mut usize) {
    let mut open: Vec<&mut Asked> = asked.iter_mut().filter(|it| it.socket.is_some()).collect();
    let ready: Vec<bool> = {
        let sockets = open.iter().filter_map(|it| it.socket.as_ref());
        let mut places: Vec<PollFd<'_>> = sockets
            .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN))
            .collect();
        let limit = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        if poll(&mut places, Some(&limit)).is_err() {
            return;
        }
        places.iter().map(|it| !it.revents().is_empty()).collect()
    };
    for (asked, _) in open.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
        asked.take(room_bytes);
    }
}

impl Asked {
    /// Takes what has come, once: others have their turn.
    fn take(&mut self, room_bytes: &mut usize) {
        let Some(socket) = &self.socket else { return };
        let mut bytes = [0; 16 << 10];
        let count = match recv(socket, &mut bytes[..], RecvFlags::empty()) {
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        let bytes = &bytes[..count];
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let bytes = &bytes[..end.unwrap_or(count)];
        if self.received.len() + bytes.len() > ANSWER_BYTES_MAX || bytes.len() > *room_bytes {
            (self.socket, self.received) = (None, Vec::new());
            return;
        }
        *room_bytes -= bytes.len();
        self.received.extend_from_slice(bytes);
        if end.is_some() {
            self.understand();
        }
        if end.is_some() || count == 0 {
            (self.socket, self.received) = (None, Vec::new());
        }
    }

    fn understand(&mut self) {
        let Ok(Value::Object(mut fields)) = serde_json::from_slice(&self.received) else {
            return;
        };
        // The kernel's word and the file's name count, not the answer's.
        for known in ["kind", "pid", "uid", "is_answering"] {
            fields.remove(known);
        }
        let server = &mut self.server;
        if let Some(Value::String(name)) = fields.remove("name") {
            server.name = name;
        }
        let started = fields.remove("started_unix_s");
        server.started_unix_s = started.and_then(|it| it.as_u64()).unwrap_or(0);
        server.is_answering = true;
        server.fields = fields;
    }
}

const REQUEST: &[u8] = b"{\"op\":\"status\"}\n";
/// The longest answer of a server: a tree of some ten thousand taxa.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The most bytes of all answers.
const ALL_BYTES_MAX: usize = 64 << 20;
/// Connections at a time.
const OPEN_MAX: usize = 512;
/// The most servers of this user, and of each other user, that are asked.
const OWN_MAX: usize = 2048;
const OTHERS_MAX: usize = 64;

#[cfg(test)]
mod tests;
