//! A client's connection, passed on message by message; and its channel for messages of ours.
//!
//! Why here: `vhost-user-backend` keeps that channel to itself, and has no message by which a
//! client reads the configuration again (`VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`). So the connection
//! goes through here, and the channel's descriptor is seen on its way.
//! Must stay true: bytes and descriptors are passed on as they came and in their order, whole
//! messages alone; one that is longer than any of the protocol, or has more descriptors, ends the
//! connection. A side that does not read for [`SEND_MAX`] ends it, too: no thread waits for ever.
//! The way to the library is private: its folder is this user's alone and goes at once. Requests of
//! the guest do not come through here.
//! Threads: two a client, which end with either side. [`Channel`] may be used from any thread.
//! Source: QEMU's "Vhost-user Protocol", "Header", "Front-end message types", "Back-end message
//! types".

use parking_lot::Mutex;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use sidecore_bare::width::ToUsize;
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

/// The channel for messages of ours to the present client, where it has given one.
#[derive(Default)]
pub(super) struct Channel(Mutex<Given>);

/// A channel, and the number of the client whose it is: threads of an earlier one may end late.
#[derive(Default)]
struct Given {
    client: u64,
    descriptor: Option<OwnedFd>,
}

impl Channel {
    /// Begins with the next client; its number.
    fn begin(&self) -> u64 {
        let mut given = self.0.lock();
        given.client += 1;
        given.descriptor = None;
        given.client
    }

    /// Takes or drops the descriptor of a client, if that is the present one.
    fn set(&self, client: u64, descriptor: Option<OwnedFd>) {
        let mut given = self.0.lock();
        if given.client == client {
            given.descriptor = descriptor;
        }
    }

    /// Has the client read the device's configuration again. Does not wait for it.
    pub(super) fn config_changed(&self) {
        let given = self.0.lock();
        let Some(channel) = &given.descriptor else {
            tracing::info!("the client sees the disk's size as it starts again: it has no channel");
            return;
        };
        let mut message = Vec::with_capacity(HEAD_BYTES);
        for word in [CONFIG_CHANGE_MSG, VERSION, 0] {
            message.extend(word.to_ne_bytes());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if let Err(error) = send(channel, &message, flags) {
            tracing::warn!("a client does not hear of the disk's size: {error}");
        }
    }
}

/// A way from here to the library: a listener, and its one connection, which waits there.
pub(super) struct Way {
    listener: UnixListener,
    near: UnixStream,
}

impl Way {
    /// Makes one.
    ///
    /// # Errors
    /// The system's, also where the folder for temporary files cannot be written to.
    pub(super) fn new() -> io::Result<Self> {
        let number = RandomState::new().hash_one(0_u8);
        let folder = std::env::temp_dir().join(format!("sidecore-{number:016x}"));
        DirBuilder::new().mode(0o700).create(&folder)?;
        let path = folder.join("socket");
        let connected = UnixListener::bind(&path).and_then(|listener| {
            let near = UnixStream::connect(&path)?;
            Ok(Self { listener, near })
        });
        // Both ends have it.
        let _ = std::fs::remove_file(&path);
        let _ = std::fs::remove_dir(&folder);
        connected
    }

    /// Passes on what `client` and the library send. Returns the listener for the library.
    ///
    /// # Errors
    /// The system's; the client's connection ends then.
    pub(super) fn pass(
        self,
        client: UnixStream,
        channel: &Arc<Channel>,
    ) -> io::Result<UnixListener> {
        let Self { listener, near } = self;
        client.set_write_timeout(Some(SEND_MAX))?;
        near.set_write_timeout(Some(SEND_MAX))?;
        let (from, to) = (client.try_clone()?, near.try_clone()?);
        let (channel, number) = (Arc::clone(channel), channel.begin());
        let started = Builder::new().name("vhost-user-in".into()).spawn(move || {
            pass_all(&from, &to, Some((&*channel, number)));
            channel.set(number, None);
        });
        started?;
        let ending = client.try_clone()?;
        let started = Builder::new().name("vhost-user-out".into()).spawn(move || {
            pass_all(&near, &client, None);
        });
        if let Err(error) = started {
            // The other thread ends by that.
            ending.shutdown(Shutdown::Both).ok();
            return Err(error);
        }
        Ok(listener)
    }
}

/// Passes messages on until one side ends, or sends what is none; then both ends are closed.
fn pass_all(from: &UnixStream, to: &UnixStream, channel: Option<(&Channel, u64)>) {
    loop {
        match pass_one(from, to, channel) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                tracing::debug!("a vhost-user connection ends: {error}");
                break;
            }
        }
    }
    for end in [from, to] {
        end.shutdown(Shutdown::Both).ok();
    }
}

/// Passes one message on; false at the end.
fn pass_one(
    from: &UnixStream,
    to: &UnixStream,
    channel: Option<(&Channel, u64)>,
) -> io::Result<bool> {
    let mut message = vec![0; HEAD_BYTES];
    let mut descriptors = Vec::new();
    if !fill(from, &mut message, &mut descriptors)? {
        return Ok(false);
    }
    let field = |at: usize| {
        let bytes = message[at..].first_chunk();
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    let (request, bytes) = (field(0), field(8).to_usize());
    if bytes > BODY_BYTES_MAX {
        let text = format!("a message of {bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    message.resize(HEAD_BYTES + bytes, 0);
    if !fill(from, &mut message[HEAD_BYTES..], &mut descriptors)? {
        return Ok(false);
    }
    if let (Some((channel, client)), SET_BACKEND_REQ_FD, Some(given)) =
        (channel, request, descriptors.first())
    {
        channel.set(client, Some(given.try_clone()?));
    }
    put(to, &message, &descriptors)?;
    Ok(true)
}

/// Fills a buffer, and takes the descriptors that come with it; false where the other side has
/// ended.
fn fill(
    from: &UnixStream,
    mut buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<bool> {
    while !buffer.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(from, &mut [IoSliceMut::new(buffer)], &mut control, flags);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        // A sender of single bytes could send that many with each.
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(too_many());
        }
        match received {
            Ok(it) if it.flags.contains(ReturnFlags::CTRUNC) => return Err(too_many()),
            Ok(it) if it.bytes == 0 => return Ok(false),
            Ok(it) => buffer = &mut buffer[it.bytes..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn too_many() -> io::Error {
    let text = "a message with too many descriptors, or some of them are lost";
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Sends a message with its descriptors.
fn put(to: &UnixStream, message: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let rights: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !rights.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&rights)) {
        return Err(too_many());
    }
    let flags = SendFlags::NOSIGNAL;
    let mut sent = retry_on_intr(|| sendmsg(to, &[IoSlice::new(message)], &mut control, flags))?;
    while sent < message.len() {
        sent += retry_on_intr(|| send(to, &message[sent..], flags))?;
    }
    Ok(())
}

/// Longest wait for a side that does not read. The protocol has a message under way at a time, so
/// that a socket's room is never used up in earnest.
const SEND_MAX: Duration = Duration::from_secs(20);
/// Request, flags and length of the body.
const HEAD_BYTES: usize = 12;
/// The longest body: the library takes no longer message.
const BODY_BYTES_MAX: usize = 0x1000;
/// The most descriptors of a message, as the library counts them.
const DESCRIPTORS_MAX: usize = 32;
/// `VHOST_USER_SET_BACKEND_REQ_FD`.
const SET_BACKEND_REQ_FD: u32 = 21;
/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE_MSG: u32 = 2;
/// The protocol's version, in the flags; no reply is asked for.
const VERSION: u32 = 1;
