//! The window: output of earlier calls that later matches may refer to. Pure.

use crate::memory::Bytes;

/// The last bytes put out by calls before this one: a ring.
pub(super) struct Window {
    pub(super) bytes: Bytes,
    /// 0 until it is used.
    pub(super) size: usize,
    pub(super) have: usize,
    pub(super) next: usize,
    /// Distances that may lead into it.
    pub(super) distance_max: usize,
}

impl Window {
    /// Appends output; false without memory for it.
    pub(super) fn put(&mut self, out: &[u8], bits: u32) -> bool {
        // At the first output that a later call may refer to: most streams are inflated in one.
        if self.size == 0 {
            let size = 1 << bits;
            if self.bytes.set_len(size).is_err() {
                return false;
            }
            (self.size, self.have, self.next) = (size, 0, 0);
        }
        let ring = self.bytes.as_mut_slice();
        // All of the old contents are out of reach.
        if out.len() >= self.size {
            ring[..self.size].copy_from_slice(&out[out.len() - self.size..]);
            (self.next, self.have) = (0, self.size);
            return true;
        }
        let first = out.len().min(self.size - self.next);
        ring[self.next..self.next + first].copy_from_slice(&out[..first]);
        let rest = &out[first..];
        if rest.is_empty() {
            self.next += first;
            if self.next == self.size {
                self.next = 0;
            }
            self.have = self.size.min(self.have + first);
        } else {
            ring[..rest.len()].copy_from_slice(rest);
            (self.next, self.have) = (rest.len(), self.size);
        }
        true
    }

    /// True where a match at this distance, with `made` bytes put out since, begins inside it.
    pub(super) fn reaches(&self, distance: usize, made: usize) -> bool {
        // What was put out since lies between the window's end and the match.
        distance - made <= self.have && distance <= self.distance_max
    }

    /// Its contents, oldest first, in two parts.
    pub(super) fn contents(&self) -> (&[u8], &[u8]) {
        if self.have == 0 {
            return (&[], &[]);
        }
        let ring = self.bytes.as_slice();
        (&ring[self.next..self.have], &ring[..self.next])
    }
}
