//! A call's arguments: words, inputs, outputs. Pure.

use super::buffer::Buffer;
use super::error::ClientError;
use crate::shm::slot::{RANGES_MAX, WORDS};
use std::ops::Range;
use std::time::Duration;

/// The arguments of one call: up to 6 words, and up to 4 inputs and outputs together.
#[derive(Debug, Default)]
pub struct Args<'a> {
    pub(crate) words: [u64; WORDS],
    pub(crate) inputs: [Option<(&'a Buffer, Range<usize>)>; RANGES_MAX],
    pub(crate) outputs: [Option<(&'a mut Buffer, Range<usize>)>; RANGES_MAX],
    pub(crate) input_count: usize,
    pub(crate) output_count: usize,
    /// See [`Self::within`].
    pub(crate) within: Option<Duration>,
    /// The first limit that was exceeded; reported when the call is made.
    broken: Option<(&'static str, usize, usize)>,
}

impl<'a> Args<'a> {
    /// No words (all 0), no memory.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// The words; those not given are 0.
    #[must_use]
    pub fn words(mut self, words: &[u64]) -> Self {
        if words.len() > WORDS {
            self.broken = Some(("words of a request", words.len(), WORDS));
        }
        // What is too much is left out here and refused by the call, so that arguments chain.
        for (place, word) in self.words.iter_mut().zip(words) {
            *place = *word;
        }
        self
    }

    /// The next input: all of a buffer.
    #[must_use]
    pub fn input(self, buffer: &'a Buffer) -> Self {
        self.input_part(buffer, 0..buffer.len())
    }

    /// The next input: bytes of a buffer.
    #[must_use]
    pub fn input_part(mut self, buffer: &'a Buffer, range: Range<usize>) -> Self {
        self.check(&range, buffer.len());
        match self.inputs.get_mut(self.input_count) {
            Some(place) => *place = Some((buffer, range)),
            None => self.note_count(),
        }
        // Counted also where there is no place for it, so that the error tells how many were given.
        self.input_count += 1;
        self.note_count();
        self
    }

    /// The next output: all of a buffer. Bytes that the kernel does not put keep their values.
    #[must_use]
    pub fn output(self, buffer: &'a mut Buffer) -> Self {
        let all = 0..buffer.len();
        self.output_part(buffer, all)
    }

    /// The next output: bytes of a buffer.
    #[must_use]
    pub fn output_part(mut self, buffer: &'a mut Buffer, range: Range<usize>) -> Self {
        self.check(&range, buffer.len());
        match self.outputs.get_mut(self.output_count) {
            Some(place) => *place = Some((buffer, range)),
            None => self.note_count(),
        }
        // As with inputs: the count is what was given.
        self.output_count += 1;
        self.note_count();
        self
    }

    /// The most time that the call may take, where only the daemon has the kernel:
    /// [`ClientError::Late`] afterwards, within some milliseconds. Others are done by this process
    /// where an engine is held up ([`ClientOptions::held_up_max`](super::ClientOptions)).
    #[must_use]
    pub fn within(mut self, time_max: Duration) -> Self {
        self.within = Some(time_max);
        self
    }

    pub(crate) fn has_memory(&self) -> bool {
        self.input_count + self.output_count > 0
    }

    /// # Errors
    /// [`ClientError::Limit`] where something was too much.
    #[inline]
    pub(crate) fn checked(&self) -> Result<(), ClientError> {
        match self.broken {
            None => Ok(()),
            Some((what, value, limit)) => Err(ClientError::Limit { what, value, limit }),
        }
    }

    fn check(&mut self, range: &Range<usize>, len: usize) {
        if range.start > range.end || range.end > len {
            self.broken = Some(("the end of a range in a buffer", range.end, len));
        }
    }

    fn note_count(&mut self) {
        let count = self.input_count + self.output_count;
        if count > RANGES_MAX {
            self.broken = Some(("inputs and outputs of a request", count, RANGES_MAX));
        }
    }
}
