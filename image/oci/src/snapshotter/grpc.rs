//! gRPC over HTTP/2 on a unix socket: as much of it as containerd's client needs.
//!
//! Why here: one service with ten methods and no streams but one list: `h2` is all that it takes.
//! Must stay true: a request takes at most [`MESSAGE_BYTES_MAX`]; connections and requests at once
//! are bounded; only users that may open the socket (this user) are served.
//! Called from: one thread, which runs [`serve`]; handlers run on threads of their own and block.
//! Source: grpc, `doc/PROTOCOL-HTTP2.md`.

use bytes::{BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use sidecore_bare::width::ToUsize;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

/// A refused call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) text: String,
}

/// Codes of refusals, as gRPC counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument = 3,
    NotFound = 5,
    AlreadyExists = 6,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

impl Refusal {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }
}

/// Answers a call: its path and its message; the messages of the answer are returned.
pub(crate) type Handler = dyn Fn(&str, &[u8]) -> Result<Vec<Vec<u8>>, Refusal> + Send + Sync;

/// Serves connections until `stop` is ready.
///
/// # Errors
/// The system's, before the first connection.
pub(crate) fn serve(
    listener: UnixListener,
    handler: Arc<Handler>,
    stop: tokio::sync::oneshot::Receiver<()>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime
        .enable_io()
        .enable_time()
        .max_blocking_threads(CALLS_MAX)
        .build()?;
    let served = runtime.block_on(async {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        // Taken before a connection is accepted: further ones wait in the socket's queue and cost
        // nothing here.
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let accept = async {
            let mut is_failing = false;
            loop {
                let Ok(permit) = Arc::clone(&connections).acquire_owned().await else {
                    return;
                };
                match listener.accept().await {
                    Ok((stream, _)) => {
                        is_failing = false;
                        let handler = Arc::clone(&handler);
                        tokio::spawn(async move {
                            if let Err(error) = connection(stream, handler).await {
                                tracing::debug!("a connection ended: {error}");
                            }
                            drop(permit);
                        });
                    }
                    Err(error) => {
                        // Once for all attempts: a log of each would fill the disk.
                        if !std::mem::replace(&mut is_failing, true) {
                            tracing::warn!("cannot accept a connection: {error}");
                        }
                        // The reason may be a lack of descriptors, which calls that end give back.
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            _ = stop => {}
        }
        Ok(())
    });
    // A call may wait for a registry: containerd asks again.
    runtime.shutdown_background();
    served
}

async fn connection(stream: UnixStream, handler: Arc<Handler>) -> Result<(), h2::Error> {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(STREAMS_MAX);
    let mut connection = builder.handshake::<_, Bytes>(stream).await?;
    while let Some(call) = connection.accept().await {
        let (request, respond) = call?;
        let handler = Arc::clone(&handler);
        tokio::spawn(async move {
            if let Err(error) = answer(request, respond, handler).await {
                tracing::debug!("a call ended: {error}");
            }
        });
    }
    Ok(())
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    handler: Arc<Handler>,
) -> Result<(), h2::Error> {
    let path = request.uri().path().to_owned();
    let result = match message(request.into_body()).await? {
        Ok(message) => {
            let work = move || handler(&path, &message);
            // Handlers wait for disks and registries; this thread has to go on with the other
            // calls.
            let done = tokio::task::spawn_blocking(work).await;
            done.unwrap_or_else(|_| Err(Refusal::new(Code::Internal, "the call panicked")))
        }
        Err(refusal) => Err(refusal),
    };
    let mut head = Response::new(());
    let kind = http::HeaderValue::from_static("application/grpc");
    head.headers_mut().insert("content-type", kind);
    let mut stream = respond.send_response(head, false)?;
    let mut trailers = HeaderMap::new();
    match result {
        Ok(messages) => {
            let mut body = BytesMut::new();
            for message in messages {
                // Our own messages are far below 4 GiB.
                let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
                body.put_u8(0);
                body.put_u32(length);
                body.put_slice(&message);
            }
            stream.send_data(body.freeze(), false)?;
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        }
        Err(refusal) => {
            // gRPC's status is in the trailers; the HTTP status is 200 for refusals, too.
            trailers.insert("grpc-status", (refusal.code as u16).into());
            if let Ok(text) = http::HeaderValue::from_str(&escaped(&refusal.text)) {
                trailers.insert("grpc-message", text);
            }
        }
    }
    stream.send_trailers(trailers)
}

/// Reads the one message of a request.
async fn message(mut body: RecvStream) -> Result<Result<Vec<u8>, Refusal>, h2::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        if bytes.len() + piece.len() > MESSAGE_BYTES_MAX {
            // The length in front of the message is not waited for: it may lie.
            return Err(Reason::ENHANCE_YOUR_CALM.into());
        }
        bytes.extend_from_slice(&piece);
        // Without it the peer's window stays full, and a longer message never arrives.
        body.flow_control().release_capacity(piece.len())?;
    }
    let refuse = |text| Ok(Err(Refusal::new(Code::InvalidArgument, text)));
    match bytes.split_first_chunk::<5>() {
        Some(([0, length @ ..], rest)) if u32::from_be_bytes(*length).to_usize() == rest.len() => {
            Ok(Ok(rest.to_vec()))
        }
        Some(([1, ..], _)) => refuse("compressed messages are not read"),
        _ => refuse("the message's length is wrong"),
    }
}

/// Text as gRPC puts it in a header.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for &byte in text.as_bytes().iter().take(TEXT_BYTES_MAX) {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

const MESSAGE_BYTES_MAX: usize = 4 << 20;
const CONNECTIONS_MAX: usize = 64;
const STREAMS_MAX: u32 = 128;
/// Calls at once: each may wait for a registry.
const CALLS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 2000;
/// Time between two attempts to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_listener_that_fails_takes_no_processor() {
        let (near, mut far) = UnixStream::pair().unwrap();
        // It can be read, so that each call is made; and it does not listen, so that each fails at
        // once, as it does for lack of descriptors.
        far.write_all(b"x").unwrap();
        let listener = UnixListener::from(OwnedFd::from(near));
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let handler: Arc<Handler> = Arc::new(|_: &str, _: &[u8]| Ok(Vec::new()));
        let serving = std::thread::spawn(move || {
            serve(listener, handler, stopped).unwrap();
            sidecore_sys::clock::thread_cpu_ns()
        });
        std::thread::sleep(Duration::from_millis(500));
        stop.send(()).unwrap();
        let used_ns = serving.join().unwrap();
        assert!(used_ns < 100_000_000, "{used_ns} ns");
    }
}
