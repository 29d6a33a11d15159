//! Changes of a source by place, applied at once.

/// Changes in any order.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    /// Start, end, new text.
    all: Vec<(usize, usize, String)>,
}

impl Edits {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Puts `new` in the place of the bytes from `start` to `end`.
    pub(crate) fn replace(&mut self, start: usize, end: usize, new: impl Into<String>) {
        self.all.push((start, end, new.into()));
    }

    /// The source with the changes; line ends that a change covers are kept behind its text.
    pub(crate) fn apply(mut self, source: &[u8]) -> Vec<u8> {
        // Stable: edits at one place keep the order in which they were added.
        self.all.sort_by_key(|(start, end, _)| (*start, *end));
        let mut output = Vec::with_capacity(source.len() + source.len() / 8);
        let mut copied = 0;
        for (start, end, new) in &self.all {
            if *start < copied {
                continue;
            }
            output.extend_from_slice(&source[copied..*start]);
            output.extend_from_slice(new.as_bytes());
            output.extend(source[*start..*end].iter().filter(|byte| **byte == b'\n'));
            copied = *end;
        }
        output.extend_from_slice(&source[copied..]);
        output
    }
}
