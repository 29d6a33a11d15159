//! Jobs that are open, and whose outputs move where the daemon goes.

use crate::memory::{self, RawBuffer};
use crate::{
    INVALID, LOST, NO_MEMORY, RawJob, RawOutcome, SEGMENTS, Sidecore, WORDS, status, write_text,
};
use sidecore_daemon::client::{JobId, Outcome, Request};
use std::collections::HashMap;
use std::ffi::c_int;

/// Jobs by their numbers, which are the tokens that the Rust client sees.
#[derive(Default)]
pub(crate) struct Open {
    last: u64,
    jobs: HashMap<u64, OpenJob>,
}

struct OpenJob {
    id: JobId,
    token: u64,
    outputs: Vec<Output>,
}

/// A buffer that a job puts to; the caller leaves it alone until the outcome.
struct Output(*mut RawBuffer);

// SAFETY: only a pointer; another thread than the submitter's may take the outcome, as the header
// says.
unsafe impl Send for Output {}

impl Sidecore {
    /// Submits a job; its number, or the status that says why not.
    ///
    /// # Safety
    /// The segments that count name buffers, or NULL.
    pub(crate) unsafe fn submit(&self, job: &RawJob) -> Result<u64, c_int> {
        let count = |count: c_int| usize::try_from(count).map_err(|_| INVALID);
        let (inputs, outputs) = (count(job.input_count)?, count(job.output_count)?);
        let used = inputs.saturating_add(outputs);
        let segments = job.segments.get(..used).ok_or(INVALID)?;
        let kernel = u32::try_from(job.kernel).map_err(|_| INVALID)?;
        let mut ranges = [(0, 0); SEGMENTS];
        for (segment, range) in segments.iter().zip(&mut ranges) {
            // SAFETY: NULL or a buffer, as this function asks.
            let buffer = unsafe { segment.buffer.as_ref() }.ok_or(INVALID)?;
            // Within the buffer, not only within the arena: the next buffer is another job's.
            let end = segment.offset.checked_add(segment.bytes);
            if end.is_none_or(|end| end > buffer.bytes) {
                return Err(INVALID);
            }
            let found = buffer.range(&self.attachment, segment.offset, segment.bytes);
            *range = found.ok_or(INVALID)?;
        }
        let request = Request {
            kernel,
            words: job.words,
            inputs: &ranges[..inputs],
            outputs: &ranges[inputs..used],
        };
        // Entered before any thread can take the outcome, which needs the lock.
        let mut open = self.opened();
        let number = open.last + 1;
        let posted = self.attachment.post(&request, number);
        let id = posted.map_err(|error| status(Some(&error)))?;
        // A refused job leaves no gap, so numbers count the jobs that were posted.
        open.last = number;
        let outputs = segments[inputs..].iter();
        open.jobs.insert(
            number,
            OpenJob {
                id,
                token: job.token,
                outputs: outputs.map(|segment| Output(segment.buffer)).collect(),
            },
        );
        Ok(number)
    }

    /// Tells the end of a job; its outputs have moved where it was lost.
    pub(crate) fn end(&self, ended: &Outcome, outcome: &mut RawOutcome) {
        let job = self.opened().jobs.remove(&ended.token);
        let error = ended.result.as_ref().err();
        outcome.token = job.as_ref().map_or(0, |job| job.token);
        outcome.status = status(error);
        outcome.reply = ended
            .result
            .as_ref()
            .map_or([0; WORDS], |reply| reply.words);
        write_text(&mut outcome.text, error);
        // A job that runs may be cancelled, and its daemon go: it still writes, then.
        let is_lost = outcome.status == LOST || self.attachment.is_lost() && error.is_some();
        if let (true, Some(job)) = (is_lost, job) {
            let outputs: Vec<_> = job.outputs.iter().map(|output| output.0).collect();
            // SAFETY: buffers that the caller kept for this job, as the header asks.
            if !unsafe { memory::rescue(&outputs) } {
                outcome.status = NO_MEMORY;
            }
        }
    }

    pub(crate) fn cancel(&self, number: u64) -> bool {
        // Not under the lock: cancelling may end the job, whose outcome another thread takes.
        let id = self.opened().jobs.get(&number).map(|job| job.id);
        id.is_some_and(|id| self.attachment.cancel(id))
    }
}
