//! A job: its request and its outcome. Pure.

use super::super::KernelId;
use super::super::buffer::Buffer;
use super::super::error::ClientError;
use crate::served::{Memory, Registry, Reply, Request};
use crate::shm::ring::JOB_RANGES_MAX;
use crate::shm::slot::WORDS;
use sidecore_sys::SharedSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Stretches of buffers that a job names at most, inputs and outputs together.
pub const JOB_SEGMENTS_MAX: usize = JOB_RANGES_MAX;

/// A request without a waiter yet: a kernel, up to 6 words, and up to [`JOB_SEGMENTS_MAX`]
/// stretches of buffers.
///
/// It owns its buffers until its [`Outcome`] gives them back: an engine may be reading and writing
/// them. Inputs may be shared by several jobs, outputs not.
#[derive(Debug)]
pub struct Job {
    pub(super) kernel: KernelId,
    words: [u64; WORDS],
    pub(super) inputs: Vec<(Arc<Buffer>, Range<usize>)>,
    pub(super) outputs: Vec<(Buffer, Vec<Range<usize>>)>,
    /// Of a job in numbers: its ranges in the arena, inputs first. It has no buffers.
    pub(super) places: Option<Places>,
    token: u64,
    /// The first limit that was exceeded; reported when the job is submitted.
    broken: Option<(&'static str, usize, usize)>,
}

impl Job {
    /// A job without words (all 0) and without memory. Its token is 0.
    #[must_use]
    pub fn new(kernel: KernelId) -> Self {
        Self {
            kernel,
            words: [0; WORDS],
            inputs: Vec::new(),
            outputs: Vec::new(),
            places: None,
            token: 0,
            broken: None,
        }
    }

    /// A job in numbers, for one attachment: this process cannot do it.
    pub(in super::super) fn of_places(
        number: u32,
        words: &[u64; WORDS],
        inputs: &[(u64, u64)],
        outputs: &[(u64, u64)],
    ) -> Self {
        let mut job = Self::new(KernelId {
            // No number in any registry: `run` cannot find a host version of it by chance.
            index: usize::MAX,
            is_remote: true,
        })
        .words(words);
        job.places = Some(Places {
            number,
            inputs: inputs.len(),
            ranges: [inputs, outputs].concat(),
        });
        job.check_count();
        job
    }

    /// The caller's own mark, which its outcome bears, too.
    #[must_use]
    pub fn token(mut self, token: u64) -> Self {
        self.token = token;
        self
    }

    /// The words, 6 at most; those not given are 0.
    #[must_use]
    pub fn words(mut self, words: &[u64]) -> Self {
        if words.len() > WORDS {
            self.broken = Some(("words of a request", words.len(), WORDS));
        }
        for (place, word) in self.words.iter_mut().zip(words) {
            *place = *word;
        }
        self
    }

    /// The next input: all of a buffer, or of one that several jobs share (`Arc<Buffer>`).
    #[must_use]
    pub fn input(self, buffer: impl Into<Arc<Buffer>>) -> Self {
        let buffer = buffer.into();
        let all = 0..buffer.len();
        self.input_part(buffer, all)
    }

    /// The next input: bytes of a buffer.
    #[must_use]
    pub fn input_part(mut self, buffer: impl Into<Arc<Buffer>>, range: Range<usize>) -> Self {
        let buffer = buffer.into();
        self.check(&range, buffer.len());
        self.inputs.push((buffer, range));
        // Noted here and reported when it is submitted, so that the methods chain.
        self.check_count();
        self
    }

    /// The next output: all of a buffer. Bytes that the kernel does not put keep their values.
    #[must_use]
    pub fn output(self, buffer: Buffer) -> Self {
        let all = 0..buffer.len();
        self.output_parts(buffer, [all])
    }

    /// The next outputs: stretches of one buffer, in bytes, which must not overlap.
    #[must_use]
    pub fn output_parts(
        mut self,
        buffer: Buffer,
        parts: impl IntoIterator<Item = Range<usize>>,
    ) -> Self {
        let parts: Vec<_> = parts.into_iter().collect();
        for (index, part) in parts.iter().enumerate() {
            self.check(part, buffer.len());
            let overlaps = |other: &Range<usize>| part.start < other.end && other.start < part.end;
            // Each against those before it: they are few, so sorting them would not be faster.
            if parts[..index].iter().any(overlaps) {
                self.broken = Some(("overlapping outputs of one job", index + 1, 0));
            }
        }
        self.outputs.push((buffer, parts));
        self.check_count();
        self
    }

    /// Stretches that it names.
    pub(super) fn segments(&self) -> usize {
        let in_numbers = self.places.as_ref().map_or(0, |places| places.ranges.len());
        self.inputs.len() + self.output_count() + in_numbers
    }

    pub(super) fn output_count(&self) -> usize {
        self.outputs.iter().map(|(_, parts)| parts.len()).sum()
    }

    pub(super) fn request(&self) -> Request {
        Request { words: self.words }
    }

    /// # Errors
    /// [`ClientError::Limit`] where something was too much.
    pub(super) fn checked(&self) -> Result<(), ClientError> {
        match self.broken {
            None => Ok(()),
            Some((what, value, limit)) => Err(ClientError::Limit { what, value, limit }),
        }
    }

    /// Runs the kernel's host version on this thread.
    pub(super) fn run(
        &mut self,
        registry: &Registry,
        cancelled: &AtomicBool,
    ) -> Result<Reply, ClientError> {
        // Its memory is the lost daemon's arena, which the owner of the job must not read.
        if self.places.is_some() {
            return Err(ClientError::Lost);
        }
        let Some(entry) = registry.entry(self.kernel.index) else {
            return Err(ClientError::UnknownKernel {
                name: format!("number {}", self.kernel.index),
            });
        };
        let request = self.request();
        let inputs = self.inputs.iter();
        let mut stretches: Vec<SharedSlice<'_>> = inputs
            .map(|(buffer, range)| SharedSlice::from_ref(&buffer.bytes()[range.clone()]))
            .collect();
        for (buffer, parts) in &mut self.outputs {
            let all = SharedSlice::from_mut(buffer.bytes_mut());
            // Checked when they were given, so that none is missing.
            stretches.extend(parts.iter().filter_map(|part| all.range(part.clone())));
        }
        let memory = Memory::of_job(&stretches, self.inputs.len(), cancelled, None);
        Ok((entry.host)(&request, &memory)?)
    }

    /// Moves its outputs to memory that no daemon maps.
    pub(super) fn move_home(&mut self) {
        for (buffer, _) in &mut self.outputs {
            buffer.move_home();
        }
    }

    pub(super) fn end(self, result: Result<Reply, ClientError>) -> Outcome {
        Outcome {
            token: self.token,
            result,
            inputs: self.inputs.into_iter().map(|(buffer, _)| buffer).collect(),
            outputs: self.outputs.into_iter().map(|(buffer, _)| buffer).collect(),
        }
    }

    pub(super) fn mark(&self) -> u64 {
        self.token
    }

    fn check(&mut self, range: &Range<usize>, len: usize) {
        if range.start > range.end || range.end > len {
            self.broken = Some(("the end of a range in a buffer", range.end, len));
        }
    }

    fn check_count(&mut self) {
        let count = self.segments();
        if count > JOB_SEGMENTS_MAX {
            self.broken = Some(("inputs and outputs of a job", count, JOB_SEGMENTS_MAX));
        }
    }
}

/// A job's memory in numbers.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) number: u32,
    pub(super) inputs: usize,
    pub(super) ranges: Vec<(u64, u64)>,
}

/// The end of a job.
#[derive(Debug)]
pub struct Outcome {
    /// The job's mark.
    pub token: u64,
    /// The kernel's reply, or [`ClientError::Engine`] or [`ClientError::Host`] where it failed,
    /// [`ClientError::Cancelled`] where the job was taken back.
    pub result: Result<Reply, ClientError>,
    /// The job's inputs, in their order.
    pub inputs: Vec<Arc<Buffer>>,
    /// The job's outputs, in their order. Of a job without a reply they hold anything.
    pub outputs: Vec<Buffer>,
}

/// A job that was not taken, and why. Nothing of it was done.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// [`ClientError::Full`] or [`ClientError::Limit`].
    pub error: ClientError,
    /// The job, with its buffers.
    pub job: Box<Job>,
}
