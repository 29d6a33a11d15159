//! One call of a kernel again and again, timed: to try a daemon out.
//!
//! Must stay true: a kernel that this process cannot run itself is waited for while the daemon is
//! busy. Any thread; blocks.

use super::{Args, Client, ClientError, ClientOptions, KernelId, status};
use crate::served::{KernelHash, Registry};
use sidecore_attach::Trust;
use sidecore_bare::width::{ToU64, ToUsize};
use std::path::Path;
use std::time::Instant;

/// A call that is made several times.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// Words of each request.
    pub words: &'a [u64],
    /// Bytes of its input, where it has one.
    pub input: Option<&'a [u8]>,
    /// Bytes of its output, which are discarded; none for 0.
    pub output_bytes: usize,
    /// Number of calls.
    pub count: u64,
}

/// Result of the calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// Words of the last reply.
    pub words: [u64; 6],
    /// Microseconds of each call, the first million of them.
    pub taken_us: Vec<f64>,
}

impl Tried {
    /// The calls of the kernel of this name by `client`, for people: the reply, where they ran, and
    /// that the median call took `median_us`.
    #[must_use]
    pub fn lines(&self, name: &str, client: &Client, median_us: f64) -> [String; 2] {
        let words = self.words.map(|word| word.to_string()).join(" ");
        let counters = client.counters();
        let (on_engines, on_host) = (counters.on_engines, counters.on_host);
        [
            format!("{name}: {words}"),
            format!(
                "{on_engines} calls on the daemon's engines, {on_host} on this core; median \
                 {median_us:.2} us"
            ),
        ]
    }
}

/// Options to call `kernel` by its name: one of `built_in`, which this process can run itself, or
/// else one that only the daemon at `socket` has. With `hash`, no other build of it is called.
/// Blocks on the daemon.
///
/// # Errors
/// [`ClientError::Registry`], and those of [`status`].
pub fn options_for(
    kernel: &str,
    hash: Option<KernelHash>,
    built_in: Registry,
    socket: &Path,
    trust: &Trust,
) -> Result<ClientOptions, ClientError> {
    let trusting = |registry, defaults| ClientOptions {
        registry,
        trust: trust.clone(),
        ..defaults
    };
    if built_in.find(kernel).is_some() {
        let registry = match hash {
            Some(hash) => built_in.expecting(kernel, hash)?,
            None => built_in,
        };
        return Ok(trusting(registry, ClientOptions::default()));
    }
    let served = status(socket, trust)?.served;
    let registry = match served.iter().find(|served| served.name == kernel) {
        Some(found) => built_in.with_remote(kernel, found.version, hash)?,
        // The client reports a name that neither side knows.
        None => built_in,
    };
    Ok(trusting(registry, ClientOptions::patient()))
}

impl Trial<'_> {
    /// Bytes of an arena in which input and output have room, and its own bookkeeping.
    #[must_use]
    pub fn arena_bytes(&self) -> u64 {
        let input_bytes = self.input.map_or(0, <[u8]>::len);
        let needed = input_bytes.saturating_add(self.output_bytes);
        needed.to_u64().saturating_mul(2)
    }

    /// Makes the calls, one after the other.
    ///
    /// # Errors
    /// [`ClientError`] of the first call that fails.
    pub fn run(&self, client: &Client, kernel: KernelId) -> Result<Tried, ClientError> {
        let input = self.input.map(|bytes| {
            let mut buffer = client.buffer(bytes.len());
            buffer.bytes_mut().copy_from_slice(bytes);
            buffer
        });
        let mut output = (self.output_bytes > 0).then(|| client.buffer(self.output_bytes));
        let kept = TIMES_KEPT_MAX.min(self.count.to_usize());
        let mut tried = Tried {
            words: [0; 6],
            taken_us: Vec::with_capacity(kept),
        };
        for _ in 0..self.count {
            let mut arguments = Args::new().words(self.words);
            if let Some(input) = &input {
                arguments = arguments.input(input);
            }
            if let Some(output) = &mut output {
                arguments = arguments.output(output);
            }
            let begun = Instant::now();
            tried.words = client.call(kernel, arguments)?.words;
            if tried.taken_us.len() < TIMES_KEPT_MAX {
                tried.taken_us.push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }
        Ok(tried)
    }
}

/// Times of calls that are kept.
const TIMES_KEPT_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_calls_here_where_there_is_no_daemon() {
        let socket = Path::new("/nonexistent.sock");
        let trust = Trust::default();
        let options = options_for("sum_f64", None, Registry::builtin(), socket, &trust).unwrap();
        let client = Client::detached(socket, options);
        let bytes: Vec<u8> = [0.5_f64; 16]
            .iter()
            .flat_map(|it| it.to_ne_bytes())
            .collect();
        let trial = Trial {
            words: &[],
            input: Some(&bytes),
            output_bytes: 0,
            count: 3,
        };
        assert_eq!(trial.arena_bytes(), 256);
        let tried = trial
            .run(&client, client.kernel("sum_f64").unwrap())
            .unwrap();
        assert_eq!(f64::from_bits(tried.words[0]), 8.0);
        assert_eq!((tried.taken_us.len(), client.counters().on_host), (3, 3));
        // Another name is looked for at the daemon, and there is none.
        let unknown = options_for("loaded", None, Registry::builtin(), socket, &trust);
        assert!(matches!(unknown, Err(ClientError::NoDaemon { .. })));
    }
}
