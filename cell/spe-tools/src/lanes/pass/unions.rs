//! Unions of vectors with other members: their accesses take the SPU's order of bytes.

use super::{CALL_PIECES_MAX, Pass};

impl Pass<'_> {
    /// A union's array that is written whole into a mailbox, whose words programs send in the order
    /// of the halves of an address there.
    pub(super) fn halves(&mut self, name: usize) {
        let text = self.text;
        let Some(shared) = self.types.shared.get(text.at(name)) else {
            return;
        };
        let mut start = name;
        // Back to the start of the argument, `a[i].u.words` as a whole.
        while start > 0 && !matches!(text.at(start - 1), b"," | b"(" | b";" | b"{" | b"}") {
            start -= 1;
            if matches!(text.at(start), b")" | b"]") {
                start = text.partner(start).unwrap_or(start);
            }
        }
        // Bounded, so that a source of one long initializer is not walked again for each of its
        // members.
        let is_second = (0..start)
            .rev()
            .take(CALL_PIECES_MAX)
            .find(|at| text.at(*at) == b"(");
        let call = is_second.filter(|open| {
            *open > 0 && text.at(open - 1) == b"spe_in_mbox_write" && text.at(name + 1) == b","
        });
        if call.is_some() {
            let begin = format!("__lane_words({}, {}, ", shared.element, shared.width);
            self.edits
                .replace(text.start(start), text.start(start), begin);
            self.edits.replace(text.end(name), text.end(name), ")");
        }
    }

    /// Widths of the numbers and vectors that pieces declare, pointers left out.
    fn numbers(&self, from: usize, to: usize, widths: &mut Vec<usize>) {
        let mut at = from;
        while at < to {
            let mut end = at;
            while end < to && self.text.is_word(end) && self.types.is_type(self.text, at, end + 1) {
                end += 1;
            }
            let shape = self
                .types
                .shape(self.text, at, end)
                .filter(|_| end > at && self.text.at(end) != b"*");
            widths.extend(shape.map(|shape| shape.width));
            at = end.max(at + 1);
        }
    }

    /// Width of the numbers that the member at `start` has, unless their indices are turned.
    fn wider(&self, start: usize, close: usize) -> Option<usize> {
        let text = self.text;
        let end = (start..close).find(|at| text.at(*at) == b";")?;
        let plain = (start..end).all(|at| !matches!(text.at(at), b"{" | b"*" | b"(" | b","));
        let array = (start..end).find(|at| text.at(*at) == b"[");
        let name = array
            .unwrap_or(end)
            .checked_sub(1)
            .filter(|name| *name > start && plain)?;
        let turned = array.is_some() && self.types.shared.contains_key(text.at(name));
        let shape = self.types.shape(text, start, name)?;
        (!shape.vector && !turned).then_some(shape.width)
    }

    /// Vectors of unions that hold a register from its last byte to its first.
    pub(super) fn united_vectors(&mut self) {
        let text = self.text;
        for (start, end) in &self.unions.reads {
            let (start, end) = (text.start(*start), text.end(*end - 1));
            self.edits.replace(start, start, "__lane_united(");
            self.edits.replace(end, end, ")");
        }
        for (start, equals, end) in &self.unions.writes {
            let start = text.start(*start);
            self.edits.replace(start, start, "__lane_put(");
            self.edits
                .replace(text.start(*equals), text.end(*equals), ",");
            let end = text.end(*end - 1);
            self.edits.replace(end, end, ")");
        }
    }

    /// A union whose vectors have elements of several sizes, or that has a vector and a structure
    /// of numbers of another size: reads of it see memory's order.
    pub(super) fn united(&mut self, place: usize) {
        let text = self.text;
        // All of its uses were turned already.
        if self.unions.exact.contains(&place) {
            return;
        }
        let open = (place + 1..place + 3).find(|at| text.at(*at) == b"{");
        let Some((open, close)) = open.and_then(|open| Some((open, text.partner(open)?))) else {
            return;
        };
        let mut vectors = Vec::new();
        let mut parts = Vec::new();
        let mut at = open + 1;
        while at < close {
            let member = matches!(text.at(at - 1), b"{" | b";");
            parts.extend(member.then(|| self.wider(at, close)).flatten());
            let nested = matches!(text.at(at), b"struct" | b"union");
            let body = (at + 1..at + 3).find(|body| nested && text.at(*body) == b"{");
            if let Some((body, end)) = body.and_then(|body| Some((body, text.partner(body)?))) {
                self.numbers(body + 1, end, &mut parts);
                at = end;
            } else if self.types.vector(text.at(at)).is_some() && text.at(at + 1) != b"*" {
                let shape = self.types.vector(text.at(at));
                vectors.extend(shape.map(|shape| shape.width));
            }
            at += 1;
        }
        let Some(width) = vectors.first().copied() else {
            return;
        };
        if let Some(other) = vectors.iter().find(|other| **other != width) {
            self.warn(
                place,
                &format!(
                    "a union of vectors with elements of size {width} and {other} keeps \
                     memory's order"
                ),
            );
        } else if let Some(other) = parts.iter().find(|other| **other != width) {
            self.warn(
                place,
                &format!(
                    "numbers of size {other} that share memory with elements of size {width} \
                     keep memory's order"
                ),
            );
        }
    }
}
