//! Environment variables, files, commands and requests of this process, for the credentials lookup.
//!
//! Why here: the library that implements the lookup does no I/O itself, and is written for callers
//! that poll. Here every result is ready at the first poll, since each call blocks.
//! Must stay true: no call blocks for longer than [`ANSWER_MAX`], except for a command that the
//! user configured; no error contains a header, a body or a query.

use super::{Fault, Resolver};
use bytes::Bytes;
use reqsign_core::{
    CommandExecute, CommandOutput, Context, Error, FileRead, HttpSend, OsEnv, Result,
};
use reqwest::blocking::{Client, Request};
use std::io::Read;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// The context of this process.
pub(super) fn context(client: &Client) -> std::result::Result<Context, Fault> {
    let near = Client::builder()
        // A metadata service on the machine or next to its task is not reached through a proxy.
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .dns_resolver(Arc::new(Resolver))
        .connect_timeout(NEAR_CONNECT_MAX)
        .timeout(ANSWER_MAX)
        .build()?;
    let far = client.clone();
    Ok(Context::new()
        .with_env(OsEnv)
        .with_file_read(Files)
        .with_command_execute(Commands)
        .with_http_send(Requests { near, far }))
}

/// Runs a future of the library to completion.
pub(super) fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = std::task::Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        // Not expected: no future that is awaited here depends on another thread.
        std::thread::yield_now();
    }
}

#[derive(Debug)]
struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> Result<Vec<u8>> {
        std::fs::read(path).map_err(|error| Error::unexpected(format!("{path}: {error}")))
    }
}

#[derive(Debug)]
struct Commands;

impl CommandExecute for Commands {
    async fn command_execute<'a>(
        &'a self,
        program: &'a str,
        args: &'a [&'a str],
    ) -> Result<CommandOutput> {
        let output = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Error::unexpected(format!("{program}: {error}")))?;
        Ok(CommandOutput {
            status: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: output.stderr,
        })
    }
}

/// Plain HTTP is used only with services of the machine.
#[derive(Debug)]
struct Requests {
    near: Client,
    far: Client,
}

impl HttpSend for Requests {
    async fn http_send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        let is_near = request.uri().scheme_str() == Some("http");
        let client = if is_near { &self.near } else { &self.far };
        let asked = request.uri().host().unwrap_or_default().to_owned();
        let failed = |error: &dyn std::fmt::Display| {
            Error::unexpected(format!("{asked} does not answer: {error}")).set_retryable(true)
        };
        let sent = Request::try_from(request);
        let mut sent = sent.map_err(|error| failed(&error.without_url()))?;
        *sent.timeout_mut() = Some(ANSWER_MAX);
        let response = client.execute(sent);
        let response = response.map_err(|error| failed(&Fault::from(error)))?;
        let mut answer = http::Response::builder().status(response.status());
        for (name, value) in response.headers() {
            answer = answer.header(name, value);
        }
        let mut body = Vec::new();
        let read = response.take(ANSWER_BYTES_MAX).read_to_end(&mut body);
        read.map_err(|error| failed(&error))?;
        let answer = answer.body(Bytes::from(body));
        answer.map_err(|error| failed(&error))
    }
}

/// Time limit to connect to a metadata service: on a machine without one, packets may get no
/// answer.
const NEAR_CONNECT_MAX: Duration = Duration::from_secs(1);
/// Time limit for a whole answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longer answers are cut off, and then fail to parse.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
