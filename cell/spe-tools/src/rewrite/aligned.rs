//! Types that are aligned beyond their size, in arrays.
//!
//! Why: compilers of the time laid the elements of such an array out by their size and aligned its
//! first one; gcc refuses the array from version 11 on. So the type gets a second name without the
//! attribute, and an array of it has the attribute itself.
//!
//! Must stay true: only declarations of arrays change; other uses keep the aligned type.

use crate::text::Edits;
use crate::tokens::{Kind, Token, seen, tokens};

/// The source with such arrays aligned as a whole; nothing where there are none.
pub(crate) fn arrays(source: &[u8]) -> Option<Vec<u8>> {
    let tokens = tokens(source);
    let pieces = seen(&tokens);
    let text = Text { source, pieces };
    let mut edits = Edits::default();
    for found in text.typedefs() {
        let mut used = false;
        for place in found.end..text.pieces.len() {
            if text.at(place) == found.name && text.declares_array(place) {
                let piece = text.pieces[place];
                let new = format!("{} __sidecore_plain_{}", found.attribute, found.word());
                edits.replace(piece.start, piece.end, new);
                used = true;
            }
        }
        if used {
            let start = text.pieces[found.place].start;
            edits.replace(start, start, format!("__sidecore_plain_{}, ", found.word()));
        }
    }
    (!edits.is_empty()).then(|| edits.apply(source))
}

/// A source's pieces without blanks.
struct Text<'a> {
    source: &'a [u8],
    pieces: Vec<&'a Token>,
}

/// `typedef … name __attribute__((aligned(…)));`
struct Typedef<'a> {
    name: &'a [u8],
    /// Place of the name.
    place: usize,
    /// Place behind the semicolon.
    end: usize,
    attribute: String,
}

impl Typedef<'_> {
    fn word(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.name)
    }
}

impl<'a> Text<'a> {
    fn at(&self, place: usize) -> &'a [u8] {
        let source = self.source;
        self.pieces
            .get(place)
            .map_or(&b""[..], |piece| piece.text(source))
    }

    /// Typedefs of a structure's body that an attribute aligns behind their only name.
    fn typedefs(&self) -> Vec<Typedef<'a>> {
        let mut all = Vec::new();
        for place in 1..self.pieces.len() {
            let attribute = matches!(self.at(place + 1), b"__attribute__" | b"__attribute");
            let aligned = attribute && matches!(self.at(place + 4), b"aligned" | b"__aligned__");
            // `}` alone: a typedef of a name that is known may stand for a vector.
            if !aligned || self.at(place - 1) != b"}" || !self.is_typedef(place - 1) {
                continue;
            }
            let Some(close) = self
                .close(place + 2)
                .filter(|close| self.at(close + 1) == b";")
            else {
                continue;
            };
            let bytes = &self.source[self.pieces[place + 1].start..self.pieces[close].end];
            all.push(Typedef {
                name: self.at(place),
                place,
                end: close + 2,
                attribute: String::from_utf8_lossy(bytes).replace('\n', " "),
            });
        }
        all
    }

    /// True where the body that closes at `close` is a typedef's.
    fn is_typedef(&self, close: usize) -> bool {
        let mut depth = 0_usize;
        for place in (0..=close).rev() {
            match self.at(place) {
                b"}" => depth += 1,
                // The body around the declaration begins here.
                b"{" if depth == 0 => return false,
                b"{" => depth -= 1,
                b";" if depth == 0 => return false,
                b"typedef" if depth == 0 => return true,
                _ => {}
            }
            if depth == 0 && place + DISTANCE_MAX < close {
                return false;
            }
        }
        false
    }

    /// The place of the parenthesis that closes the one at `open`.
    fn close(&self, open: usize) -> Option<usize> {
        let mut depth = 0_usize;
        for place in open..self.pieces.len() {
            match self.at(place) {
                b"(" => depth += 1,
                b")" => depth = depth.checked_sub(1)?,
                _ => {}
            }
            if depth == 0 {
                return Some(place);
            }
        }
        None
    }

    /// True where the type at `place` begins a declaration with an array of it.
    fn declares_array(&self, place: usize) -> bool {
        let mut at = place + 1;
        loop {
            // `T *a[4]` is an array of pointers, `T (*a)[4]` a pointer.
            if self.pieces.get(at).map(|piece| piece.kind) != Some(Kind::Word) {
                return false;
            }
            match self.at(at + 1) {
                b"[" => return true,
                b"," => at += 2,
                _ => return false,
            }
        }
    }
}

/// Pieces between `typedef` and the body, names and attributes of the structure counted.
const DISTANCE_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::arrays;

    #[test]
    fn arrays_are_aligned_and_their_elements_are_not() {
        let aligned = "__attribute__((aligned(16)))";
        let source = format!(
            "typedef struct {{ int a[5]; }} item {aligned};\n\
             static item one, list[4]; item *p; item single; item *q[2];"
        );
        let wanted = format!(
            "typedef struct {{ int a[5]; }} __sidecore_plain_item, item {aligned};\n\
             static {aligned} __sidecore_plain_item one, list[4]; \
             item *p; item single; item *q[2];"
        );
        let found = arrays(source.as_bytes()).map(|text| String::from_utf8(text).expect("text"));
        assert_eq!(found, Some(wanted));
        for same in [
            format!("typedef struct {{ int a; }} item {aligned}; item one, *list[2];"),
            format!("struct {{ int a; }} item {aligned}; void f(void) {{ item[1]; }}"),
            format!("void f(void) {{ struct {{ int a; }} x {aligned}; }}"),
        ] {
            assert_eq!(arrays(same.as_bytes()), None, "{same}");
        }
    }
}
